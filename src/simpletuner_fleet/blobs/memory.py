"""Stores blobs in memory, for tests and the simulator."""

import hashlib
from collections.abc import AsyncIterator

from simpletuner_fleet.ports import MARK


class MemoryBlobs:
    """Implements ports.Blobs in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._objects: dict[str, bytes] = {}
        self._marks: dict[str, bytes] = {}

    async def append(self, key: str, offset: int, data: bytes) -> int:
        blob = self._blobs.get(key, b"")
        if 0 <= offset <= len(blob):
            blob += data[len(blob) - offset :]
            self._blobs[key] = blob
        return len(blob)

    async def read(self, key: str, start: int, length: int) -> bytes:
        return self._blobs.get(key, b"")[start : start + length]

    async def size(self, key: str) -> int:
        return len(self._blobs.get(key, b""))

    async def truncate(self, key: str, size: int) -> None:
        remaining = self._blobs.pop(key, b"")[:size]
        if remaining:
            self._blobs[key] = remaining

    async def delete(self, prefix: str) -> None:
        for key in [key for key in self._blobs if key == prefix or key.startswith(f"{prefix}/")]:
            del self._blobs[key]

    async def names(self, prefix: str) -> list[str]:
        rest = [key.removeprefix(f"{prefix}/") for key in self._blobs if key.startswith(f"{prefix}/")]
        return sorted({key.partition("/")[0] for key in rest})

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        return await self.append(key, offset, data)

    async def part_sizes(self, prefix: str) -> dict[str, int]:
        return {name: len(self._blobs[f"{prefix}/{name}"]) for name in await self.names(prefix)}

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        data = self._blobs.pop(key, None)
        if data is None or len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            return False
        self._objects[sha256] = data
        return True

    async def object_size(self, sha256: str) -> int | None:
        data = self._objects.get(sha256)
        return None if data is None else len(data)

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        return self._objects.get(sha256, b"")[start : start + length]

    async def delete_object(self, sha256: str) -> None:
        self._objects.pop(sha256, None)

    async def mark(self, name: str = MARK) -> bytes | None:
        return self._marks.get(name)

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        self._marks[name] = content

    async def objects(self) -> AsyncIterator[str]:
        for sha256 in list(self._objects):
            yield sha256
