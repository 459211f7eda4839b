"""Where the last lines of a log begin, however many there are of them."""

import asyncio
import random
import time

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.storage.log_reading import BLOCK_BYTES, StoredLog
from simpletuner_fleet.storage.logs import MARK, log_key, times_key


async def log_of(content: bytes) -> StoredLog:
    blobs = MemoryBlobs()
    await blobs.append(log_key("a_1"), 0, content)
    return StoredLog(blobs, "a_1")


@pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n"])
async def test_the_last_lines_are_found_across_blocks(ending: bytes) -> None:
    chance = random.Random(7)
    lines = [b"x" * chance.choice((0, 1, 80, 3_000, BLOCK_BYTES + 5)) for _ in range(60)]
    content = b"\n".join(lines) + ending
    log = await log_of(content)
    whole = content.splitlines(keepends=True)
    for count in (0, 1, 2, 7, len(whole) - 1, len(whole), len(whole) + 1):
        expected = len(content) - sum(map(len, whole[len(whole) - min(count, len(whole)) :]))
        assert await log.start_of_lines_before(len(content), count) == expected, count


async def test_a_log_of_empty_lines_is_read_backwards_as_quickly_as_any_other() -> None:
    log = await log_of(b"\n" * 2**20)
    began = time.process_time()
    assert await log.start_of_lines_before(2**20, 10**9) == 0
    assert await log.start_of_lines_before(2**20, 2**19) == 2**19
    assert time.process_time() - began < 2.0


class DeletedMeanwhile(MemoryBlobs):
    """Somebody deletes the log when so many pieces of it were read."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    async def read(self, key: str, start: int, length: int) -> bytes:
        if self.pieces == 0:
            await self.delete("logs")
        self.pieces -= 1
        await asyncio.sleep(0)
        return await super().read(key, start, length)


@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_a_log_that_is_deleted_while_it_is_read_ends_there(pieces: int) -> None:
    async def deleted_meanwhile() -> StoredLog:
        blobs = DeletedMeanwhile(pieces)
        await blobs.append(log_key("a_1"), 0, b"xx")
        await blobs.append(times_key("a_1"), 0, MARK.pack(0, 100.0) + MARK.pack(1, 101.0))
        return StoredLog(blobs, "a_1")

    async with asyncio.timeout(5):
        times = await (await deleted_meanwhile()).times_of([0, 1])
        assert set(times) <= {None, 100.0, 101.0}
        assert await (await deleted_meanwhile()).offset_since(200.0) in (0, 2)
