"""Blobs in memory: for tests and the simulator."""


class MemoryBlobs:
    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    async def append(self, key: str, offset: int, data: bytes) -> int:
        held = self._blobs.get(key, b"")
        if 0 <= offset <= len(held):
            held += data[len(held) - offset :]
            self._blobs[key] = held
        return len(held)

    async def read(self, key: str, start: int, length: int) -> bytes:
        return self._blobs.get(key, b"")[start : start + length]

    async def size(self, key: str) -> int:
        return len(self._blobs.get(key, b""))

    async def delete(self, prefix: str) -> None:
        for key in [key for key in self._blobs if key == prefix or key.startswith(f"{prefix}/")]:
            del self._blobs[key]
