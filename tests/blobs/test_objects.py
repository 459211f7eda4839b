"""What every home of blobs promises about objects: parts at any byte, verified whole, found by content."""

import asyncio
import hashlib
import os

import pytest

from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.probe import prove_storage

KEY = "uploads/j_1/part"
WHOLE = bytes(range(256)) * 1000
SHA = hashlib.sha256(WHOLE).hexdigest()
TRIES = 20


async def stored(blobs: Blobs, data: bytes = WHOLE) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    await blobs.put_part(KEY, 0, data)
    assert await blobs.seal(KEY, sha256, len(data))
    return sha256


async def seen(blobs: Blobs) -> set[str]:
    return {sha256 async for sha256 in blobs.objects()}


async def test_an_object_is_there_only_once_it_is_sealed(blobs: Blobs) -> None:
    assert await blobs.put_part(KEY, 0, WHOLE[:1000]) == 1000
    assert await blobs.part_sizes("uploads/j_1") == {"part": 1000}
    assert await blobs.object_size(SHA) is None
    assert await blobs.read_object(SHA, 0, 10) == b""
    assert await blobs.put_part(KEY, 1000, WHOLE[1000:]) == len(WHOLE)
    assert await blobs.seal(KEY, SHA, len(WHOLE))
    assert await blobs.object_size(SHA) == len(WHOLE)
    assert await blobs.part_sizes("uploads/j_1") == {}
    assert await seen(blobs) == {SHA}


async def test_parts_may_repeat_and_overlap_but_leave_no_gap(blobs: Blobs) -> None:
    await blobs.put_part(KEY, 0, WHOLE[:5000])
    assert await blobs.put_part(KEY, 0, WHOLE[:3000]) == 5000
    assert await blobs.put_part(KEY, 4000, WHOLE[4000:9000]) == 9000
    assert await blobs.put_part(KEY, 20_000, b"beyond a gap") == 9000
    assert await blobs.put_part(KEY, 9000, WHOLE[9000:]) == len(WHOLE)
    assert await blobs.seal(KEY, SHA, len(WHOLE))
    assert await blobs.read_object(SHA, 0, len(WHOLE)) == WHOLE


@pytest.mark.parametrize("bad", [WHOLE[:-1], WHOLE + b"x", b"x" + WHOLE[1:], b""])
async def test_what_is_not_what_it_should_be_is_dropped(blobs: Blobs, bad: bytes) -> None:
    await blobs.put_part(KEY, 0, bad)
    assert not await blobs.seal(KEY, SHA, len(WHOLE))
    assert await blobs.part_sizes("uploads/j_1") == {}
    assert await blobs.object_size(SHA) is None
    assert await stored(blobs) == SHA


async def test_what_never_arrived_cannot_be_sealed(blobs: Blobs) -> None:
    assert not await blobs.seal(KEY, SHA, len(WHOLE))


async def test_an_empty_file_is_an_object_too(blobs: Blobs) -> None:
    sha256 = await stored(blobs, b"")
    assert await blobs.object_size(sha256) == 0
    assert await blobs.read_object(sha256, 0, 10) == b""


async def test_an_object_is_read_from_any_byte_and_ends_where_it_ends(blobs: Blobs) -> None:
    await stored(blobs)
    assert await blobs.read_object(SHA, 1234, 100) == WHOLE[1234:1334]
    assert await blobs.read_object(SHA, len(WHOLE) - 5, 100) == WHOLE[-5:]
    assert await blobs.read_object(SHA, len(WHOLE), 100) == b""
    assert await blobs.read_object(SHA, len(WHOLE) + 7, 100) == b""


async def test_storing_the_same_content_again_is_harmless(blobs: Blobs) -> None:
    await stored(blobs)
    await stored(blobs)
    assert await blobs.read_object(SHA, 0, len(WHOLE)) == WHOLE


async def test_a_deleted_object_is_gone_and_deleting_it_again_is_harmless(blobs: Blobs) -> None:
    await stored(blobs)
    other = await stored(blobs, b"other")
    await blobs.delete_object(SHA)
    await blobs.delete_object(SHA)
    assert await blobs.object_size(SHA) is None
    assert await seen(blobs) == {other}


async def test_a_large_object_goes_through_in_parts(blobs: Blobs) -> None:
    data = os.urandom(1024) * 20_000
    at = 0
    while at < len(data):
        at = await blobs.put_part(KEY, at, data[at : at + 8_000_000])
    sha256 = hashlib.sha256(data).hexdigest()
    assert await blobs.seal(KEY, sha256, len(data))
    assert await blobs.object_size(sha256) == len(data)
    assert await blobs.read_object(sha256, 19_999_999, 64) == data[19_999_999:20_000_063]


async def test_names_are_the_next_segments_of_keys(blobs: Blobs) -> None:
    for key in ("uploads/j_1/a", "uploads/j_1/b", "uploads/j_2/a", "logs/x"):
        await blobs.append(key, 0, b"x")
    assert await blobs.names("uploads") == ["j_1", "j_2"]
    assert await blobs.names("uploads/j_1") == ["a", "b"]
    assert await blobs.names("nowhere") == []


async def test_logs_still_grow(blobs: Blobs) -> None:
    assert await blobs.append("logs/a_1", 0, b"one ") == 4
    assert await blobs.append("logs/a_1", 4, b"two") == 7
    assert await blobs.read("logs/a_1", 0, 100) == b"one two"


async def test_the_mark_at_the_root_is_there_whole_and_is_no_object(blobs: Blobs) -> None:
    assert await blobs.mark() is None
    await blobs.put_mark(b'{"fleet_id":"f_longer_than_the_next"}')
    await blobs.put_mark(b'{"fleet_id":"f_1"}')
    assert await blobs.mark() == b'{"fleet_id":"f_1"}'
    assert await blobs.mark("another.jsonl") is None
    await blobs.put_mark(b"another", "another.jsonl")
    assert (await blobs.mark("another.jsonl"), await blobs.mark()) == (b"another", b'{"fleet_id":"f_1"}')
    assert await seen(blobs) == set()


async def test_a_storage_that_works_is_proven_by_use_and_nothing_is_left_of_it(blobs: Blobs) -> None:
    await prove_storage(blobs)
    assert await seen(blobs) == set()
    assert await blobs.names("probes") == []


async def test_bytes_that_come_while_it_is_sealed_are_not_in_it(blobs: Blobs) -> None:
    """Somebody says that there is more, at the very moment at which it was found to be whole."""
    for _ in range(TRIES):
        await blobs.put_part(KEY, 0, WHOLE)
        sealed, *_ = await asyncio.gather(
            blobs.seal(KEY, SHA, len(WHOLE)),
            *(blobs.put_part(KEY, len(WHOLE) + number, b"x") for number in range(8)),
        )
        if sealed:
            assert await blobs.object_size(SHA) == len(WHOLE)
            assert await blobs.read_object(SHA, 0, 2 * len(WHOLE)) == WHOLE
        await blobs.delete(KEY)
        await blobs.delete_object(SHA)
