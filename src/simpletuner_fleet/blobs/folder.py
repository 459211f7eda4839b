"""Stores blobs as files in a folder. A key never leads out of it, neither by dots nor by symbolic links."""

import asyncio
import errno
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar, TypeVarTuple

from simpletuner_fleet.blobs.digests import RunningDigests, digest_of_file
from simpletuner_fleet.core.errors import StorageLow
from simpletuner_fleet.core.training.checkpoint import SHA256
from simpletuner_fleet.ports import MARK

SEGMENT = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
STRIPES = 64
THREADS = 16
"""Of the storage alone: a folder on a machine that does not answer keeps nobody from logging in, for example."""
OBJECTS = "objects"
MOST_MARK_BYTES = 2**24

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class FolderBlobs:
    """Implements ports.Blobs by files in a folder."""

    def __init__(self, root: Path | str) -> None:
        folder = Path(root).absolute()
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Two appends to one blob must not both read its length before either writes.
        self._locks = [Lock() for _ in range(STRIPES)]
        self._digests = RunningDigests()
        self._threads = ThreadPoolExecutor(THREADS, "storage")

    def close(self) -> None:
        self._threads.shutdown()
        self._digests.close()
        os.close(self._root)

    async def append(self, key: str, offset: int, data: bytes) -> int:
        segments = segments_of(key)
        if offset < 0:
            raise ValueError("a blob begins at offset 0")
        return await self._in_thread(self._append, segments, offset, data)

    async def read(self, key: str, start: int, length: int) -> bytes:
        """Returns what there is of it: shorter at the end, empty beyond it or where there is no blob."""
        return await self._in_thread(self._read, segments_of(key), start, length)

    async def size(self, key: str) -> int:
        """Returns 0 where there is no blob."""
        return await self._in_thread(self._size, segments_of(key))

    async def truncate(self, key: str, size: int) -> None:
        await self._in_thread(self._truncate, segments_of(key), size)

    async def delete(self, prefix: str) -> None:
        """Deletes the blob of this key, and every blob whose key goes on from it after a '/'."""
        await self._in_thread(self._delete, segments_of(prefix))

    async def names(self, prefix: str) -> list[str]:
        return await self._in_thread(self._names, segments_of(prefix))

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        segments = segments_of(key)
        if offset < 0:
            raise ValueError("a blob begins at offset 0")
        return await self._in_thread(self._put_part, segments, offset, data)

    async def part_sizes(self, prefix: str) -> dict[str, int]:
        return await self._in_thread(self._sizes, segments_of(prefix))

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        return await self._in_thread(self._seal, segments_of(key), object_segments(sha256), sha256, size)

    async def open_verified(self, key: str, sha256: str, size: int) -> int | None:
        """Opens the parts if they are what they should be; drops them if not, and returns None.

        What is within their size never changes, but more may come after it.
        """
        return await self._in_thread(self._open_verified, segments_of(key), sha256, size)

    async def object_size(self, sha256: str) -> int | None:
        return await self._in_thread(self._size_or_none, object_segments(sha256))

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        return await self._in_thread(self._read, object_segments(sha256), start, length)

    async def delete_object(self, sha256: str) -> None:
        await self._in_thread(self._delete, object_segments(sha256))

    async def mark(self, name: str = MARK) -> bytes | None:
        content = await self._in_thread(self._read, segments_of(name), 0, MOST_MARK_BYTES)
        return content or None

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        (segment,) = segments_of(name)
        await self._in_thread(self._put_mark, segment, content)

    async def objects(self) -> AsyncIterator[str]:
        for first_two in await self._in_thread(self._names, [OBJECTS]):
            for name in await self._in_thread(self._names, [OBJECTS, first_two]):
                if SHA256.fullmatch(name):
                    yield name

    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _put_mark(self, name: str, content: bytes) -> None:
        temporary = f".{name}.tmp"
        self._delete([temporary])
        with self._open_to_write([temporary]) as file:
            write_fresh(file, 0, content)
            os.fsync(file)
        with self._folder([]) as root:
            os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
            os.fsync(root)

    def _append(self, segments: list[str], offset: int, data: bytes) -> int:
        with self._lock(segments), self._open_to_write(segments) as file:
            return write_fresh(file, offset, data)[1]

    def _truncate(self, segments: list[str], size: int) -> None:
        with self._lock(segments):
            if size <= 0:
                self._delete(segments)
            elif self._size(segments) > size:
                with self._open_to_write(segments) as file:
                    os.ftruncate(file, size)

    def _put_part(self, segments: list[str], offset: int, data: bytes) -> int:
        with self._lock(segments), self._open_to_write(segments) as file:
            before, after = write_fresh(file, offset, data)
            if after > before:
                self._digests.feed(tuple(segments), before, memoryview(data)[before - offset :])
            return after

    def _seal(self, parts: list[str], place: list[str], sha256: str, size: int) -> bool:
        with suppress(FileNotFoundError):
            self._sync(parts)  # most of it here, where nobody waits for the lock
        with self._lock(parts):
            if not self._is_whole(parts, sha256, size):
                return False
            self._sync(parts)
            with self._folder(parts[:-1]) as source, self._folder(place[:-1], make=True) as target:
                os.rename(parts[-1], place[-1], src_dir_fd=source, dst_dir_fd=target)
                os.fsync(target)
        self._sync_folders_above(place[:-1])
        return True

    def _open_verified(self, parts: list[str], sha256: str, size: int) -> int | None:
        with self._lock(parts):
            return self._open_to_read(parts) if self._is_whole(parts, sha256, size) else None

    def _is_whole(self, parts: list[str], sha256: str, size: int) -> bool:
        """Returns whether the parts are what they should be; if not, they are dropped. Hold their lock meanwhile."""
        try:
            digest_and_size = self._digest_and_size(parts)
        except FileNotFoundError:
            return False
        self._digests.forget(tuple(parts))
        if digest_and_size == (sha256, size):
            return True
        self._delete(parts)
        return False

    def _digest_and_size(self, parts: list[str]) -> tuple[str, int]:
        file = self._open_to_read(parts)
        try:
            size = os.fstat(file).st_size
            return self._digests.result(tuple(parts), size) or digest_of_file(file), size
        finally:
            os.close(file)

    def _sync(self, segments: list[str]) -> None:
        file = self._open_to_read(segments)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _sync_folders_above(self, segments: list[str]) -> None:
        """Syncs the folders above: a new one survives a power cut only if the one that holds it was synced, too."""
        for depth in range(len(segments)):
            with self._folder(segments[:depth]) as folder:
                os.fsync(folder)

    def _names(self, segments: list[str]) -> list[str]:
        try:
            with self._folder(segments) as folder:
                return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _sizes(self, segments: list[str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with suppress(FileNotFoundError, NotADirectoryError), self._folder(segments) as folder:
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):  # it was sealed or deleted in this moment
                    sizes[name] = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
        return sizes

    def _lock(self, segments: list[str]) -> Lock:
        return self._locks[hash(tuple(segments)) % STRIPES]

    @contextmanager
    def _open_to_write(self, segments: list[str]) -> Iterator[int]:
        with self._folder(segments[:-1], make=True) as folder:
            file = os.open(segments[-1], os.O_RDWR | os.O_CREAT | FILE_FLAGS, PRIVATE_FILE, dir_fd=folder)
        try:
            yield file
        finally:
            os.close(file)

    def _open_to_read(self, segments: list[str]) -> int:
        with self._folder(segments[:-1]) as folder:
            return os.open(segments[-1], os.O_RDONLY | FILE_FLAGS, dir_fd=folder)

    def _read(self, segments: list[str], start: int, length: int) -> bytes:
        try:
            file = self._open_to_read(segments)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(file, length, start)
        finally:
            os.close(file)

    def _size(self, segments: list[str]) -> int:
        return self._size_or_none(segments) or 0

    def _size_or_none(self, segments: list[str]) -> int | None:
        try:
            with self._folder(segments[:-1]) as folder:
                return os.stat(segments[-1], dir_fd=folder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

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
                try:
                    inner = os.open(segment, FOLDER_FLAGS, dir_fd=folder)
                except FileNotFoundError:
                    if not make:
                        raise
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


def object_segments(sha256: str) -> list[str]:
    if not SHA256.fullmatch(sha256):
        raise ValueError(f"not a SHA-256: {sha256!r}")
    return [OBJECTS, sha256[:2], sha256]


def write_fresh(file: int, offset: int, data: bytes) -> tuple[int, int]:
    """Writes what the file does not have yet, and returns its size before and after. Beyond a gap nothing is written."""
    before = size = os.fstat(file).st_size
    if offset > size:
        return size, size
    fresh = memoryview(data)[size - offset :]
    try:
        while fresh:
            written = os.pwrite(file, fresh, size)
            size += written
            fresh = fresh[written:]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageLow("The server's disk is full.") from error
        raise
    return before, size
