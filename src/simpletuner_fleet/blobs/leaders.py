"""Lets only the leader of a term change the shared storage: who does not lead for sure changes nothing."""

from collections.abc import AsyncIterator, Callable

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.ports import MARK, Blobs


class LeadersBlobs:
    """Implements ports.Blobs for an orchestrator that must lead to change anything.

    The lease is checked immediately before each change; reading needs no check.
    """

    def __init__(self, blobs: Blobs, may_promise: Callable[[], bool]) -> None:
        self._blobs = blobs
        self._may_promise = may_promise
        self.read = blobs.read
        self.size = blobs.size
        self.names = blobs.names
        self.part_sizes = blobs.part_sizes
        self.object_size = blobs.object_size
        self.read_object = blobs.read_object
        self.mark = blobs.mark

    def _insist(self) -> None:
        if not self._may_promise():
            raise NotLeader("This orchestrator is not sure it still leads; nothing was changed.")

    async def append(self, key: str, offset: int, data: bytes) -> int:
        self._insist()
        return await self._blobs.append(key, offset, data)

    async def truncate(self, key: str, size: int) -> None:
        self._insist()
        await self._blobs.truncate(key, size)

    async def delete(self, prefix: str) -> None:
        self._insist()
        await self._blobs.delete(prefix)

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        self._insist()
        return await self._blobs.put_part(key, offset, data)

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        self._insist()
        return await self._blobs.seal(key, sha256, size)

    async def delete_object(self, sha256: str) -> None:
        self._insist()
        await self._blobs.delete_object(sha256)

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        self._insist()
        await self._blobs.put_mark(content, name)

    def objects(self) -> AsyncIterator[str]:
        return self._blobs.objects()
