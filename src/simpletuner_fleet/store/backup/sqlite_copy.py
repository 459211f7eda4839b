"""Backs up and restores a SQLite database. SQLite itself makes the copy, while the server goes on writing."""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.store.backup.archive import BackupManifest, BackupUnusable, member_of
from simpletuner_fleet.store.backup.restore_fixups import apply_fixups
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.sqlite import PASSING_TROUBLE
from simpletuner_fleet.store.sqlite_file import PRIVATE, claimed, damaged

COPY = "fleet.db"
BESIDE = ("-journal", "-wal", "-shm")
"""The endings of files that SQLite keeps beside a database, and reads as part of whatever has its name."""

NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC)


class DatabaseFacts(NamedTuple):
    schema: int
    epoch: int
    audit_seq: int
    fleet_id: str | None


def copy_out(database: Path, folder: Path, version: str, now: float) -> BackupManifest:
    """Copies the database within one read transaction of it, which nobody has to wait for."""
    if not database.is_file():
        raise BackupUnusable(
            f"There is no database {database}.", next_step="Name it with --data-dir or --database-url."
        )
    place = folder / COPY
    with (
        closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(place)) as target,
    ):
        try:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        except sqlite3.Error as error:
            raise _uncopied(database, folder, error) from error
        facts = check(target)
    return BackupManifest(
        version=version,
        database="sqlite",
        began_at=now,
        members=(member_of(place),),
        schema=facts.schema,
        epoch=facts.epoch,
        audit_seq=facts.audit_seq,
        fleet_id=facts.fleet_id,
    )


def _uncopied(database: Path, folder: Path, error: sqlite3.Error) -> Exception:
    if getattr(error, "sqlite_errorcode", None) in NO_ROOM:
        return OSError(errno.ENOSPC, str(error), str(folder.parent))
    primary = _primary_code(error)
    return (
        StoreRefused(PASSING_TROUBLE[primary])
        if primary in PASSING_TROUBLE
        else damaged(database, str(error))
    )


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def check(connection: sqlite3.Connection) -> DatabaseFacts:
    """Returns what a manifest says of a database; raises where the database is damaged or contradicts itself."""
    try:
        complaints = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if complaints != ["ok"]:
            raise BackupUnusable(f"The copy of the database is damaged: {'; '.join(complaints)}.")
        lost = connection.execute("PRAGMA foreign_key_check").fetchone()
        if lost is not None:
            raise BackupUnusable(f"A row of {lost[0]} belongs to nothing.")
        (schema,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
        (epoch,) = connection.execute("SELECT epoch FROM counters").fetchone()
        (highest,) = connection.execute("SELECT coalesce(max(epoch), 0) FROM attempts").fetchone()
        (audit_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM audit").fetchone()
        fleet = connection.execute("SELECT value FROM settings WHERE key = 'fleet.id'").fetchone()
    except (sqlite3.Error, ValueError) as error:
        raise BackupUnusable(f"The copy is no database of ours: {error}.") from error
    if highest > epoch:
        raise BackupUnusable(f"The database has given the epoch {highest} and counts only to {epoch}.")
    return DatabaseFacts(schema, epoch, audit_seq, fleet[0] if fleet else None)


def verify(folder: Path, manifest: BackupManifest) -> None:
    with closing(sqlite3.connect(folder / COPY)) as connection:
        facts = check(connection)
    said = DatabaseFacts(manifest.schema, manifest.epoch, manifest.audit_seq, manifest.fleet_id)
    if facts != said:
        raise BackupUnusable(f"The manifest says {said}, and the database {facts}.")


def put_back(
    folder: Path,
    database: Path,
    withdrawn: Withdrawn,
    link_prefix: str,
    now: float,
    note: str,
    *,
    replace: bool,
) -> Path | None:
    """Restores the database: everything is done to the copy, which then takes its place.

    Returns where the database is that was there before.
    """
    database = database.resolve()  # as the server does, which locks the file that a link leads to
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = claimed(database)
    try:
        if database.exists() and not replace:
            raise BackupUnusable(
                f"There is a database already: {database}.",
                next_step="Say --replace; the present one is kept beside it.",
            )
        copy = folder / COPY
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                apply_fixups(connection.execute, withdrawn, link_prefix, now, note)
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _uncopied(copy, folder, error) from error
        draft = database.with_name(database.name + ".restored")
        try:
            _copy_privately(copy, draft)
            kept = _put_aside(database, now)
            draft.replace(database)
        finally:
            draft.unlink(missing_ok=True)
        descriptor = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return kept
    finally:
        os.close(lock)


def _copy_privately(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    with open(descriptor, "wb") as written, source.open("rb") as content:
        shutil.copyfileobj(content, written)
        written.flush()
        os.fsync(written.fileno())


def _put_aside(database: Path, now: float) -> Path | None:
    """Moves the old database aside with all that SQLite keeps beside it, which would become part of the new one.

    Returns where it is now, or None where there was none.
    """
    kept = database.with_name(f"{database.name}.before-{int(now)}")
    if database.exists():
        _gather(database)
    for ending in BESIDE:
        file = database.with_name(database.name + ending)
        if file.exists():
            file.replace(kept.with_name(kept.name + ending))
    if not database.exists():
        return None
    try:
        os.link(database, kept)  # so that there is a database at every moment
    except OSError:
        database.replace(kept)
    return kept


def _gather(database: Path) -> None:
    """Writes the write-ahead log into its database. A damaged one stays as it is: it is about to be replaced."""
    try:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        primary = _primary_code(error)
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreRefused(PASSING_TROUBLE[primary]) from error
