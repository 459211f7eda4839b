"""What is counted of uploads under way is what lies there, and is not looked up for each file."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import DigestMismatch
from simpletuner_fleet.storage.uploads import unfinished
from simpletuner_fleet.storage.uploads.content import other_parts_bytes, put_part
from simpletuner_fleet.storage.uploads.datasets import DatasetUploads
from simpletuner_fleet.storage.uploads.unfinished import LOOKED_UP_FOR_S, UnfinishedParts
from tests.http.api_kit import orchestrator


class CountedLooks(MemoryBlobs):
    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.held = asyncio.Event()
        self.held.set()

    async def part_sizes(self, prefix: str) -> dict[str, int]:
        self.looks += 1
        seen = await super().part_sizes(prefix)
        await self.held.wait()
        return seen


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


def contents(count: int) -> list[bytes]:
    return [f"content {number}".encode() for number in range(count)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_thousand_begun_files_are_counted_and_looked_up_once() -> None:
    blobs = CountedLooks()
    async with orchestrator(blobs=blobs) as running:
        storage, owner = running.deps.storage, DatasetUploads(running.deps.storage, "u_1")
        for data in contents(1000):
            await put_part(storage, owner, sha(data), len(data), 0, pieces(data[:4]))
        assert blobs.looks == 1
        assert await other_parts_bytes(storage, owner, "") == 4_000
        for data in contents(10):
            await put_part(storage, owner, sha(data), len(data), 4, pieces(data[4:]))
        assert await other_parts_bytes(storage, owner, "") == 4_000 - 40
        with pytest.raises(DigestMismatch):
            await put_part(storage, owner, sha(b"others"), 4, 0, pieces(b"ours"))
        assert await other_parts_bytes(storage, owner, "") == 4_000 - 40


async def test_what_nobody_noted_is_known_after_a_while() -> None:
    blobs, now = CountedLooks(), [1000.0]
    parts = UnfinishedParts(blobs, lambda: now[0])
    assert await parts.bytes_beside("data-uploads/u_1", "") == 0
    await blobs.put_part("data-uploads/u_1/a", 0, b"four")
    assert await parts.bytes_beside("data-uploads/u_1", "") == 0
    now[0] += LOOKED_UP_FOR_S
    assert await parts.bytes_beside("data-uploads/u_1", "") == 4


async def test_what_changes_while_it_is_looked_up_is_looked_up_again() -> None:
    blobs = CountedLooks()
    parts = UnfinishedParts(blobs, lambda: 1000.0)
    blobs.held.clear()
    looking = asyncio.create_task(parts.bytes_beside("data-uploads/u_1", ""))
    async with asyncio.timeout(10):
        while not blobs.looks:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await blobs.put_part("data-uploads/u_1/a", 0, b"four")
    parts.note("data-uploads/u_1", "a", 4)
    blobs.held.set()
    assert await looking == 0
    assert await parts.bytes_beside("data-uploads/u_1", "") == 4


async def test_what_is_remembered_of_all_owners_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "PARTS_REMEMBERED", 10)
    blobs = CountedLooks()
    known = UnfinishedParts(blobs, lambda: 1000.0)
    for folder, parts in (("few", 3), ("some", 5), ("many", 20)):
        for number in range(parts):
            await blobs.put_part(f"{folder}/{number}", 0, b"four")
    for _ in range(2):
        assert await known.bytes_beside("few", "0") == 8
        assert await known.bytes_beside("some", "0") == 16
    assert blobs.looks == 2
    for _ in range(2):
        assert await known.bytes_beside("many", "0") == 76
    assert blobs.looks == 4
    assert await known.bytes_beside("few", "0") == 8
    assert blobs.looks == 5
