"""Runs the `simpletuner backup` commands on the database itself, without asking a server."""

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from simpletuner_fleet import __version__
from simpletuner_fleet.blobs.opening import open_blobs
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, not_together, only_with
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.client import resolve_settings
from simpletuner_fleet.client.private_files import write_private_bytes
from simpletuner_fleet.client.troubles import Trouble
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.people.revocations import BackupMoment, Revocation, Withdrawn, withdrawn_since
from simpletuner_fleet.core.restoring import RestoreNote
from simpletuner_fleet.engine.kept_settings import KEY_PREFIX
from simpletuner_fleet.languages import _
from simpletuner_fleet.storage.shared_journal import read_shared_journal
from simpletuner_fleet.store.backup import key_file, sqlite_copy
from simpletuner_fleet.store.backup.archive import (
    BackupManifest,
    BackupUnusable,
    unpack_archive,
    write_archive,
)
from simpletuner_fleet.store.backup.journal import JOURNAL_FILE, RevocationJournal, read_journal
from simpletuner_fleet.store.opening import SQLITE_PREFIX, sqlite_file_of

log = logging.getLogger(__name__)

SQLITE_FILE = "fleet.db"


class DatabasePlace(NamedTuple):
    data_dir: Path
    url: str
    storage_url: str | None

    @property
    def sqlite_file(self) -> Path | None:
        """Returns the file; None with PostgreSQL. Raises StoreRefused where the URL names neither."""
        return sqlite_file_of(self.url)

    @property
    def kind(self) -> str:
        return "postgresql" if self.sqlite_file is None else "sqlite"


def create(args: argparse.Namespace) -> int:
    out, place, target = Output(args), _place(args), Path(args.file)
    keys = b""
    with _reported(_("nothing was changed")), _scratch_beside(target) as folder:
        now = time.time()
        file = place.sqlite_file
        _insist_on_own_files(target, Path(args.keys) if args.keys else None, place)
        if file is None:
            # half of what psycopg costs is its import
            from simpletuner_fleet.store.backup import postgres_copy

            manifest = postgres_copy.copy_out(place.url, folder, __version__, now)
        else:
            manifest = sqlite_copy.copy_out(file, folder, __version__, now)
        if args.keys:
            # After the copy: a key that is made when the first secret is stored has to be among them.
            keys = key_file.pack_keys(place.data_dir)
        write_archive(target, folder, manifest)
    out.say(_("%(file)s contains the database as of epoch %(epoch)s", file=target, epoch=manifest.epoch))
    if args.keys:
        with _reported_unwritten(Path(args.keys).parent):
            write_private_bytes(Path(args.keys), keys)
    else:
        out.hint(
            _("the keys are not included: --keys FILE writes them to a separate file, to be kept elsewhere")
        )
    out.hint(_("storage is not included: back up checkpoints, artifacts and datasets where they are"))
    _show(out, target, manifest)
    return ExitCode.OK


def _insist_on_own_files(target: Path, keys: Path | None, place: DatabasePlace) -> None:
    """Raises where something would be lost: the backup under the keys, the database or a key under either."""
    kept = [place.data_dir / name for name in key_file.KEYS]
    kept += [place.sqlite_file] if place.sqlite_file else []
    written = {"FILE": (target, kept), "--keys": (keys, [target, *kept])}
    for flag, (file, others) in written.items():
        for other in others:
            if file and file.resolve() == other.resolve():
                raise not_together(flag, str(other), "simpletuner backup create --help")


def _show(out: Output, file: Path, manifest: BackupManifest) -> None:
    if out.shows_result:
        out.item({"file": str(file), **msgspec.to_builtins(manifest)}, (), id_field="file")


def verify(args: argparse.Namespace) -> int:
    out = Output(args)
    with _reported(_("nothing was changed")), tempfile.TemporaryDirectory() as folder:
        manifest = _verified(Path(args.file), Path(folder))
    out.say(
        _(
            "%(file)s is intact: %(database)s, schema %(schema)s, epoch %(epoch)s, %(entries)s audit entries",
            file=args.file,
            database=manifest.database,
            schema=manifest.schema,
            epoch=manifest.epoch,
            entries=manifest.audit_seq,
        )
    )
    _show(out, Path(args.file), manifest)
    return ExitCode.OK


def restore(args: argparse.Namespace) -> int:
    out, place = Output(args), _place(args)
    with _reported(_("nothing was changed")), _scratch_beside(place.data_dir / SQLITE_FILE) as folder:
        if args.storage_url and place.kind == "sqlite":
            # It keeps no journal of revocations in its storage.
            raise only_with(
                "--storage-url", "--database-url postgresql://…", "simpletuner backup restore --help"
            )
        keys = key_file.read_keys(Path(args.keys)) if args.keys else {}
        manifest = _verified(Path(args.file), folder)
        if manifest.database != place.kind:
            raise BackupUnusable(
                f"The backup is of {manifest.database}, and the database here is {place.kind}.",
                next_step="Name a database of the same kind with --database-url.",
            )
        now = time.time()
        withdrawn, how = _withdrawn(args, place, manifest)
        note = RestoreNote(
            backup_at=manifest.began_at, backup_epoch=manifest.epoch, restored_at=now, credentials=how
        )
        text = msgspec.json.encode(note).decode()
        kept: object
        file = place.sqlite_file
        if file is None:
            from simpletuner_fleet.store.backup import postgres_copy

            kept = postgres_copy.put_back(
                folder, place.url, manifest, withdrawn, KEY_PREFIX, now, text, replace=args.replace
            )
        else:
            kept = sqlite_copy.put_back(folder, file, withdrawn, KEY_PREFIX, now, text, replace=args.replace)
    _say_restored(out, manifest, withdrawn, kept)
    with _reported_unwritten(place.data_dir):
        _put_keys(keys, place.data_dir)
        RevocationJournal(place.data_dir / JOURNAL_FILE, now, manifest.audit_seq)
    out.hint(
        _("start the server: jobs are placed once workers have had time to report what they are running")
    )
    return ExitCode.OK


def _put_keys(keys: dict[str, bytes], data_dir: Path) -> None:
    for name, content in keys.items():
        place = data_dir / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private_bytes(place, content)


def _say_restored(out: Output, manifest: BackupManifest, withdrawn: Withdrawn, kept: object) -> None:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.began_at))
    out.say(_("the database is restored as of %(time)s", time=made))
    if kept is not None:
        out.say(_("the previous data is kept: %(kept)s", kept=kept))
    if withdrawn.everything:
        out.say(
            _(
                "what has been revoked since is unknown: no token, password or worker token from the "
                "backup is accepted; the admin token in the data folder lets you in"
            )
        )
    _say_withdrawn(out, withdrawn)


def _say_withdrawn(out: Output, withdrawn: Withdrawn) -> None:
    """Names the workers whose token was rotated since: each stays away until it is given a new one."""
    if withdrawn.workers:
        ids = ", ".join(sorted(withdrawn.workers))
        out.say(_("these workers need a new token, once the server runs: %(ids)s", ids=ids))
        out.hint(_("simpletuner workers rotate-token ID, then give the token to the worker"))
    if withdrawn.passwords:
        ids = ", ".join(sorted(withdrawn.passwords))
        out.say(_("these users need a new password, once the server runs: %(ids)s", ids=ids))
    if withdrawn.tokens:
        ids = ", ".join(sorted(withdrawn.tokens))
        out.say(_("these API tokens stay revoked: %(ids)s", ids=ids))


def _withdrawn(
    args: argparse.Namespace, place: DatabasePlace, manifest: BackupManifest
) -> tuple[Withdrawn, str]:
    if args.trust_credentials:
        return Withdrawn(), "trusted"
    named = [Path(one) for one in args.revocations] or [place.data_dir / JOURNAL_FILE]
    noted = [one for file in named if file.exists() or args.revocations for one in read_journal(file)]
    if place.kind == "postgresql" and not args.revocations:
        # This server's own journal tells of its own terms only, so it does not say from when on it is whole.
        noted = [one for one in noted if one.event] + _shared_journal(place)
    withdrawn = withdrawn_since(BackupMoment(manifest.began_at, manifest.audit_seq), noted)
    return withdrawn, "all withdrawn" if withdrawn.everything else "journal"


def _shared_journal(place: DatabasePlace) -> list[Revocation]:
    """Returns the shared journal; empty if the storage cannot be read, as nobody knows then what was revoked."""
    try:
        blobs = open_blobs(place.storage_url, place.data_dir / "storage")
        return asyncio.run(read_shared_journal(blobs)) or []
    except (FleetError, OSError) as error:
        log.warning("the journal of revocations in the storage cannot be read: %s", error)
        return []


def _verified(file: Path, folder: Path) -> BackupManifest:
    manifest = unpack_archive(file, folder)
    if manifest.database == "postgresql":
        from simpletuner_fleet.store.backup import postgres_copy

        postgres_copy.verify(folder, manifest)
    else:
        sqlite_copy.verify(folder, manifest)
    return manifest


def _place(args: argparse.Namespace) -> DatabasePlace:
    names = ("data_dir", "config_file", "database_url", "storage_url")
    given = {name: getattr(args, name) for name in names if getattr(args, name, None)}
    resolved, _notes = resolve_settings.resolve("server", argparse.Namespace(**given))
    data_dir = Path(resolved["data_dir"].value)
    return DatabasePlace(
        data_dir,
        resolved["database_url"].value or f"{SQLITE_PREFIX}{data_dir / SQLITE_FILE}",
        resolved["storage_url"].value,
    )


@contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    """Makes a folder on the target's disk, whose free space counts; private, as it holds the whole database."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".backup-", dir=target.parent)
    except OSError as error:
        raise fail(
            _("nothing can be written to %(folder)s", folder=target.parent),
            error.strerror or str(error),
            _("choose a folder that you can write to, on a disk with free space:  df -h"),
            "E_FILE",
        ) from None
    with scratch as folder:
        yield Path(folder)


def _reported_unwritten(folder: Path) -> AbstractContextManager[None]:
    """Is for what is written last: what was done before has been said, and stays."""
    return _reported(_("nothing can be written to %(folder)s", folder=folder))


@contextmanager
def _reported(outcome: str) -> Iterator[None]:
    """Turns an error into one that says first what came of the command."""
    try:
        yield
    except FleetError as error:
        following = (error.next,) if error.next else ()
        raise CliError(Trouble(outcome, error.detail, following, error.code, ExitCode.FAILED)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise fail(
            outcome,
            f"{where}{error.strerror or error}",
            _("choose a folder that you can write to, on a disk with free space:  df -h"),
            "E_FILE",
        ) from None
