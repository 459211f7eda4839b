"""Blobs as files in a folder. A key never leads out of it, neither by dots nor by symbolic links."""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

SEGMENT = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
STRIPES = 64


class FolderBlobs:
    """The promise of ports.Blobs."""

    def __init__(self, root: Path | str) -> None:
        folder = Path(root).absolute()
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Two appends to one blob must not both read its length before either writes.
        self._locks = [Lock() for _ in range(STRIPES)]

    def close(self) -> None:
        os.close(self._root)

    async def append(self, key: str, offset: int, data: bytes) -> int:
        segments = segments_of(key)
        if offset < 0:
            raise ValueError("a blob begins at offset 0")
        return await asyncio.to_thread(self._append, segments, offset, data)

    async def read(self, key: str, start: int, length: int) -> bytes:
        """What there is of it: shorter at the end, empty beyond it or where there is no blob."""
        return await asyncio.to_thread(self._read, segments_of(key), start, length)

    async def size(self, key: str) -> int:
        """0 where there is no blob."""
        return await asyncio.to_thread(self._size, segments_of(key))

    async def delete(self, prefix: str) -> None:
        """The blob of this key, and every blob whose key goes on from it after a '/'."""
        await asyncio.to_thread(self._delete, segments_of(prefix))

    def _append(self, segments: list[str], offset: int, data: bytes) -> int:
        with self._locks[hash(tuple(segments)) % STRIPES], self._folder(segments[:-1], make=True) as folder:
            file = os.open(segments[-1], os.O_RDWR | os.O_CREAT | FILE_FLAGS, PRIVATE_FILE, dir_fd=folder)
            try:
                size = os.fstat(file).st_size
                if offset > size:
                    return size
                fresh = memoryview(data)[size - offset :]
                while fresh:
                    written = os.pwrite(file, fresh, size)
                    size += written
                    fresh = fresh[written:]
                return size
            finally:
                os.close(file)

    def _read(self, segments: list[str], start: int, length: int) -> bytes:
        try:
            with self._folder(segments[:-1]) as folder:
                file = os.open(segments[-1], os.O_RDONLY | FILE_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(file, length, start)
        finally:
            os.close(file)

    def _size(self, segments: list[str]) -> int:
        try:
            with self._folder(segments[:-1]) as folder:
                return os.stat(segments[-1], dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def _delete(self, segments: list[str]) -> None:
        with suppress(FileNotFoundError), self._folder(segments[:-1]) as folder:
            try:
                os.unlink(segments[-1], dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(segments[-1], dir_fd=folder)

    @contextmanager
    def _folder(self, segments: list[str], *, make: bool = False) -> Iterator[int]:
        """Walks down one folder at a time, each opened beneath the one before and none through a link."""
        folder = os.dup(self._root)
        try:
            for segment in segments:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(segment, PRIVATE_FOLDER, dir_fd=folder)
                inner = os.open(segment, FOLDER_FLAGS, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def segments_of(key: str) -> list[str]:
    segments = key.split("/")
    if not all(SEGMENT.fullmatch(segment) and segment.strip(".") for segment in segments):
        raise ValueError(f"not the key of a blob: {key!r}")
    return segments
