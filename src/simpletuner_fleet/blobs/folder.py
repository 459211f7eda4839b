"""Blobs as files in a folder. Keys are made by us of ids and slashes; a key that could leave the folder is a defect."""

import asyncio
import errno
import os
import re
import shutil
import threading
from pathlib import Path

from simpletuner_fleet.core.errors import StoreUnavailable

KEY = re.compile(r"[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64}){0,7}")
LOCKS = 64
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class FolderBlobs:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    async def append(self, key: str, offset: int, data: bytes) -> int:
        return await asyncio.to_thread(self._append, key, offset, data)

    async def read(self, key: str, start: int, length: int) -> bytes:
        return await asyncio.to_thread(self._read, key, start, length)

    async def size(self, key: str) -> int:
        return await asyncio.to_thread(self._size, key)

    async def delete(self, prefix: str) -> None:
        await asyncio.to_thread(self._delete, prefix)

    def _path(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of a blob")
        return self._folder / key

    def _append(self, key: str, offset: int, data: bytes) -> int:
        path = self._path(key)
        with self._locks[hash(key) % LOCKS]:
            try:
                return _write_at(path, offset, data)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                raise StoreUnavailable("The disk that holds the logs is full.") from error

    def _read(self, key: str, start: int, length: int) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except FileNotFoundError:
            return b""

    def _size(self, key: str) -> int:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return 0

    def _delete(self, prefix: str) -> None:
        path = self._path(prefix)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write_at(path: Path, offset: int, data: bytes) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        fresh = data[size - offset :]
        if 0 <= offset <= size and fresh:
            os.pwrite(file, fresh, size)
            size = os.fstat(file).st_size
        return size
    finally:
        os.close(file)
