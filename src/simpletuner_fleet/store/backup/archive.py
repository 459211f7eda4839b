"""Writes and reads backups: one file each, a tar with a copy of the database and a manifest.

The manifest says what the copy is, and what it must hold.
"""

import errno
import hashlib
import os
import tarfile
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 1024 * 1024
PRIVATE = 0o600
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BackupUnusable(FleetError):
    """This backup is not usable."""

    code = "backup_unusable"
    next_step = "Use another backup: 'simpletuner backup verify FILE' says which are good."


class Member(Struct, frozen=True, kw_only=True):
    name: str
    size: int
    sha256: str
    rows: int | None = None
    columns: tuple[str, ...] = ()
    """Of a table; a whole database file has neither."""


class BackupManifest(Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    version: str
    """Of the program that made it."""
    database: str
    """`sqlite` or `postgresql`."""
    schema: int
    began_at: float
    """What was committed after this moment may be missing."""
    fleet_id: str | None = None
    epoch: int
    audit_seq: int
    members: tuple[Member, ...]


def member_of(file: Path, *, rows: int | None = None, columns: tuple[str, ...] = ()) -> Member:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    size = file.stat().st_size
    return Member(name=file.name, size=size, sha256=digest.hexdigest(), rows=rows, columns=columns)


def write_archive(target: Path, folder: Path, manifest: BackupManifest) -> None:
    """Writes the archive whole under its name or not at all.

    Only its owner can read it: it holds what people train on.
    """
    draft = target.with_name(target.name + ".part")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as archive:
                for name in (MANIFEST, *(member.name for member in manifest.members)):
                    archive.add(folder / name, arcname=name)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def unpack_archive(source: Path, folder: Path) -> BackupManifest:
    """Writes what the manifest names, and nothing else, into the folder, after comparing every byte with its hash."""
    _insist_on_file(source)
    try:
        with tarfile.open(source, mode="r:gz") as archive:
            stored_manifest = archive.extractfile(MANIFEST)
            manifest = msgspec.json.decode(
                stored_manifest.read(CHUNK_BYTES) if stored_manifest else b"", type=BackupManifest
            )
            if manifest.format != FORMAT:
                raise BackupUnusable(
                    f"{source} has the format {manifest.format}; this program knows {FORMAT}."
                )
            for member in manifest.members:
                _unpack(archive, member, folder)
    except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise  # the folder is too small, and the backup may be good
        raise BackupUnusable(f"{source} cannot be read whole: {error}.") from error
    return manifest


def _insist_on_file(source: Path) -> None:
    try:
        with source.open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        raise BackupUnusable(f"There is no file {source}.", next_step="Check the path.") from None
    except IsADirectoryError:
        raise BackupUnusable(f"{source} is a folder.", next_step="Name the backup's file.") from None
    except OSError as error:
        raise BackupUnusable(
            f"{source} cannot be read: {error.strerror}.", next_step="Check the path and who may read it."
        ) from None


def _unpack(archive: tarfile.TarFile, member: Member, folder: Path) -> None:
    if Path(member.name).name != member.name:
        raise BackupUnusable(f"The backup names a file outside of itself: {member.name}.")
    stored, place = archive.extractfile(member.name), folder / member.name
    if stored is None:
        raise BackupUnusable(f"{member.name} is missing in the backup.")
    with stored, place.open("xb") as file:
        while chunk := stored.read(CHUNK_BYTES):
            file.write(chunk)
    if member_of(place, rows=member.rows, columns=member.columns) != member:
        raise BackupUnusable(f"{member.name} is not what was backed up: its content has changed.")
