"""Keeps the keys apart from the backup, so that nobody can read a secret with only one of the two files."""

import io
import tarfile
from pathlib import Path

from simpletuner_fleet.store.backup.archive import BackupUnusable

TLS = ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem")
KEYS = (
    *("secrets.key", "secret", "audit.key", "admin_token", "local_worker_token"),
    *(f"tls/{one}" for one in TLS),
)
MAX_KEY_BYTES = 1024 * 1024


def pack_keys(data_dir: Path) -> bytes:
    """Returns the content of a file with all keys of the data folder."""
    names = [name for name in KEYS if (data_dir / name).is_file()]
    if not names:
        raise BackupUnusable(
            f"There are no keys in {data_dir}.", next_step="Name the server's data folder: --data-dir."
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for name in names:
            archive.add(data_dir / name, arcname=name)
    return packed.getvalue()


def read_keys(source: Path) -> dict[str, bytes]:
    """Returns every key of the file by its place in the data folder; raises for a name that no server uses."""
    try:
        with tarfile.open(source, mode="r:") as archive:
            keys = {member.name: _content(archive, member, source) for member in archive}
            if not keys:
                raise tarfile.ReadError("it is empty")
            return keys
    except OSError as error:
        raise BackupUnusable(
            f"{source} cannot be read: {error.strerror}.", next_step="Check the path and who may read it."
        ) from None
    except tarfile.TarError as error:
        raise BackupUnusable(
            f"{source} cannot be read whole: {error}.", next_step="Check the path."
        ) from None


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, source: Path) -> bytes:
    name = member.name
    known = name in KEYS and member.isreg() and member.size <= MAX_KEY_BYTES
    content = archive.extractfile(member) if known else None
    if content is None:
        raise BackupUnusable(f"{source} holds what is no key: {name}.")
    return content.read()
