"""Keeps the keys apart from the backup, so that nobody can read a secret with only one of the two files."""

import os
import tarfile
from pathlib import Path

from simpletuner_fleet.store.backup.archive import BackupUnusable

KEYS = ("secrets.key", "secret", "audit.key", "admin_token", "local_worker_token")
TLS = ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem")
PRIVATE = 0o600


def write_keys(target: Path, data_dir: Path) -> None:
    names = [name for name in (*KEYS, *(f"tls/{one}" for one in TLS)) if (data_dir / name).is_file()]
    if not names:
        raise BackupUnusable(
            f"There are no keys in {data_dir}.", next_step="Name the server's data folder: --data-dir."
        )
    draft = target.with_name(target.name + ".part")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in names:
                archive.add(data_dir / name, arcname=name)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)


def read_keys(source: Path, data_dir: Path) -> None:
    """Puts the keys of the file into the data folder; raises for a name that no server uses."""
    known = {*KEYS, *(f"tls/{one}" for one in TLS)}
    with tarfile.open(source, mode="r:") as archive:
        for name in archive.getnames():
            content = archive.extractfile(name) if name in known else None
            if content is None:
                raise BackupUnusable(f"{source} holds what is no key: {name}.")
            place = data_dir / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as file:
                file.write(content.read())
