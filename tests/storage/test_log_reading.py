"""Where the last lines of a log begin, however many there are of them."""

import random
import time

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.storage.log_reading import BLOCK_BYTES, StoredLog
from simpletuner_fleet.storage.logs import log_key


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
