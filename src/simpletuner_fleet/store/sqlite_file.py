"""Checks where a SQLite database may be: on a local disk, undamaged, private, and with one orchestrator only."""

import fcntl
import os
import shutil
import sqlite3
from pathlib import Path

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.store.failures import StoreBusy, StoreRefused

PRIVATE = 0o600
MOUNTS = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "ceph", "lustre", "gpfs"),
        *("beegfs", "glusterfs", "ocfs2", "gfs2", "orangefs", "davfs", "vboxsf", "prl_fs"),
    }
)
NETWORK_FUSE_TYPES = frozenset(
    {
        *("sshfs", "glusterfs", "s3fs", "gcsfuse", "goofys", "rclone", "davfs", "davfs2", "juicefs"),
        *("ceph", "ceph-fuse", "cephfs", "mfs", "seaweedfs", "curlftpfs", "smbnetfs", "blobfuse", "geesefs"),
    }
)
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
PRIMARY_CODE = 0xFF
"""SQLite's codes have more details in their higher bits."""
DISK_FULL = "The disk that holds the database is full; nothing was changed."
LEAST_FREE_BYTES = 1024 * 1024
"""With less, a database that is opened finds no room for the files beside it, and calls that an error of the disk."""
WAL_RESET_BUG = ((3, 7, 0), (3, 51, 2))
WAL_RESET_WARNING = N_(
    "This Python uses SQLite %(version)s. Versions 3.7.0 to 3.51.2 can corrupt a database when two "
    "programs write to or checkpoint it at once. The orchestrator writes through one connection only, so "
    "it is safe; do not write to its database with other programs while it runs."
)


def sqlite_warning(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """Returns the warning to give at the start about the SQLite that this Python is linked with, if any."""
    first, last = WAL_RESET_BUG
    if not first <= version <= last:
        return None
    return WAL_RESET_WARNING % {"version": ".".join(map(str, version))}


def claimed(path: Path) -> int:
    """Takes an exclusive lock beside the database, held until the descriptor is closed or the process ends."""
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreBusy(f"Another orchestrator is using the database {path}.") from None
    return lock


def make_private(path: Path) -> None:
    """Makes sure that the database exists and only its owner can read it.

    SQLite gives its other files the same mode.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        file = path.with_name(name)
        if file.exists():
            file.chmod(PRIVATE)


def refuse_network_file_system(path: Path) -> None:
    kind = network_type_of(path, MOUNTS.read_text() if MOUNTS.exists() else "")
    if kind is not None:
        raise StoreRefused(
            f"{path} lies on a network file system ({kind}), where SQLite can lose or corrupt data.",
            next_step="Put the data directory on a local disk, or use PostgreSQL (SIMPLETUNER_DATABASE_URL).",
        )


def network_type_of(path: Path, mountinfo: str) -> str | None:
    """Returns the type of the file system that holds the path, if it is a network file system."""
    best, best_type = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount_point = _unescaped(fields[4])
        if len(mount_point) >= len(best) and _holds(mount_point, path):
            best, best_type = mount_point, after.split()[0]
    kind, _, fuse_kind = best_type.partition(".")
    is_network = kind in NETWORK_TYPES or (kind == "fuse" and fuse_kind in NETWORK_FUSE_TYPES)
    return best_type if is_network else None


def _holds(mount_point: str, path: Path) -> bool:
    return path.is_relative_to(mount_point)


def _unescaped(mount_point: str) -> str:
    """Decodes a mount point: the kernel writes blanks and backslashes in octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(code, character)
    return mount_point


def refuse_damaged(connection: sqlite3.Connection, path: Path) -> None:
    try:
        complaints = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & PRIMARY_CODE not in DAMAGE:
            raise  # a full disk, a lock or a missing right says nothing about what the file holds
        complaints = [str(error)]
    if complaints != ["ok"]:
        raise damaged(path, "; ".join(complaints))


def unusable(path: Path, error: sqlite3.Error) -> StoreRefused:
    """Returns why the database cannot be opened now, though nothing may be wrong with the file itself."""
    why = DISK_FULL if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES else f"{error}."
    return StoreRefused(f"The database {path} cannot be used: {why}")


def damaged(path: Path, why: str) -> StoreRefused:
    return StoreRefused(
        f"The database {path} is damaged: {why}",
        next_step="Keep a copy of the file, and restore the newest backup.",
    )
