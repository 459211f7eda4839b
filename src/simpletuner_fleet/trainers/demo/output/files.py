"""Writes files that are whole or not there, also after a power cut."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes under a temporary name first: a reader never sees half of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
