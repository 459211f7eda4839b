"""Computes the SHA-256 of files in chunks, and not twice for an unchanged file. It blocks: call it in a thread."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.trainers.job_files import open_job_file

CHUNK_BYTES = 1024 * 1024
REMEMBERED_FILES = 50_000


class HashingStopped(Exception):
    """The work on a file was stopped: nobody waits for the answer any more."""


def sha256_of(path: Path, interrupted: Callable[[], bool] = lambda: False) -> tuple[str, int]:
    """Returns digest and size of exactly the bytes that were read."""
    digest, size = hashlib.sha256(), 0
    with open_job_file(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            if interrupted():
                raise HashingStopped
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


class HashCache:
    """Remembers digests by path, size and time of change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def entries(
        self, root: Path, files: Iterable[Path], interrupted: Callable[[], bool] = lambda: False
    ) -> list[FileEntry]:
        return [self.entry(root, file, interrupted) for file in files]

    def entry(self, root: Path, file: Path, interrupted: Callable[[], bool] = lambda: False) -> FileEntry:
        facts = file.stat()
        mark = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
        mark_known, sha256 = self._known.get(str(file), (None, ""))
        size = facts.st_size
        if mark_known != mark:
            sha256, size = sha256_of(file, interrupted)
            if len(self._known) >= REMEMBERED_FILES:
                self._known.clear()
            self._known[str(file)] = ((size, mark[1], mark[2]), sha256)
        return FileEntry(path=file.relative_to(root).as_posix(), size=size, sha256=sha256)

    def forget(self, file: Path) -> None:
        """Forgets a digest that has turned out wrong."""
        self._known.pop(str(file), None)
