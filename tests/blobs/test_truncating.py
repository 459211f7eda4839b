"""What was appended can be taken back, in all homes alike."""

import pytest

from simpletuner_fleet.ports import Blobs

KEYS = ["logs/a_1", "metrics/a_1/loss"]


@pytest.mark.parametrize("key", KEYS)
async def test_what_is_beyond_the_size_is_gone_and_the_blob_grows_on(blobs: Blobs, key: str) -> None:
    await blobs.append(key, 0, b"hello world")
    await blobs.truncate(key, 5)
    assert await blobs.size(key) == 5
    assert await blobs.append(key, 5, b" again") == 11
    assert await blobs.read(key, 0, 100) == b"hello again"


@pytest.mark.parametrize("key", KEYS)
async def test_a_shorter_blob_stays_as_it_is(blobs: Blobs, key: str) -> None:
    await blobs.append(key, 0, b"abc")
    await blobs.truncate(key, 3)
    await blobs.truncate(key, 99)
    await blobs.truncate(f"{key}.other", 99)
    assert await blobs.read(key, 0, 10) == b"abc"
    assert await blobs.size(f"{key}.other") == 0


async def test_a_blob_of_which_nothing_is_left_has_no_name(blobs: Blobs) -> None:
    await blobs.append("metrics/a_1/loss", 0, b"abc")
    await blobs.truncate("metrics/a_1/loss", 0)
    await blobs.truncate("metrics/a_1/step", 0)
    assert await blobs.names("metrics/a_1") == []
