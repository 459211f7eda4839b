import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.blobs.folder import FolderBlobs, segments_of


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[FolderBlobs]:
    opened = FolderBlobs(tmp_path / "blobs")
    yield opened
    opened.close()


KEY = "j_1/a_1/log"


async def test_what_is_appended_can_be_read_in_parts(blobs: FolderBlobs) -> None:
    assert await blobs.append(KEY, 0, b"hello ") == 6
    assert await blobs.append(KEY, 6, b"world") == 11
    assert await blobs.size(KEY) == 11
    assert await blobs.read(KEY, 0, 100) == b"hello world"
    assert await blobs.read(KEY, 4, 4) == b"o wo"
    assert await blobs.read(KEY, 11, 5) == b""
    assert await blobs.read(KEY, 99, 5) == b""


async def test_a_blob_that_is_not_there_is_empty(blobs: FolderBlobs) -> None:
    assert await blobs.size(KEY) == 0
    assert await blobs.read(KEY, 0, 10) == b""
    await blobs.delete(KEY)


async def test_a_repeat_writes_only_what_is_new(blobs: FolderBlobs) -> None:
    await blobs.append(KEY, 0, b"abc")
    assert await blobs.append(KEY, 0, b"abc") == 3
    assert await blobs.append(KEY, 0, b"ab") == 3
    assert await blobs.append(KEY, 1, b"XXdef") == 6
    assert await blobs.read(KEY, 0, 10) == b"abcdef"


async def test_a_gap_writes_nothing_and_tells_the_length(blobs: FolderBlobs) -> None:
    assert await blobs.append(KEY, 5, b"later") == 0
    await blobs.append(KEY, 0, b"abc")
    assert await blobs.append(KEY, 4, b"later") == 3
    assert await blobs.read(KEY, 0, 10) == b"abc"


async def test_a_negative_offset_is_refused(blobs: FolderBlobs) -> None:
    with pytest.raises(ValueError, match="offset 0"):
        await blobs.append(KEY, -1, b"x")


async def test_deleting_a_prefix_takes_everything_beneath_it_and_nothing_beside(blobs: FolderBlobs) -> None:
    for key in ("j_1/a_1/log", "j_1/a_2/log", "j_10/log"):
        await blobs.append(key, 0, b"x")
    await blobs.delete("j_1")
    sizes = [await blobs.size(key) for key in ("j_1/a_1/log", "j_1/a_2/log", "j_10/log")]
    assert sizes == [0, 0, 1]
    await blobs.delete("j_10/log")
    assert await blobs.size("j_10/log") == 0


@pytest.mark.parametrize(
    "key",
    ["", "/", "a//b", "../x", "a/../b", "a/.", "...", "/etc/passwd", "a/", "a b", "a\0b", "ä", "a\n", "a\\b"],
)
async def test_a_key_that_could_lead_elsewhere_is_refused(blobs: FolderBlobs, key: str) -> None:
    for call in (blobs.append(key, 0, b"x"), blobs.read(key, 0, 1), blobs.size(key), blobs.delete(key)):
        with pytest.raises(ValueError, match="not the key"):
            await call


@given(st.text())
def test_every_key_that_is_accepted_stays_beneath_the_root(key: str) -> None:
    try:
        segments = segments_of(key)
    except ValueError:
        return
    assert all(segment not in ("", ".", "..") and "/" not in segment for segment in segments)


async def test_no_symbolic_link_is_followed(blobs: FolderBlobs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    (tmp_path / "blobs" / "folder").symlink_to(outside)
    (tmp_path / "blobs" / "file").symlink_to(outside / "file")
    for key in ("folder/file", "file"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            await blobs.read(key, 0, 10)
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            await blobs.append(key, 6, b"more")
    await blobs.delete("folder")
    await blobs.delete("file")
    assert (outside / "file").read_bytes() == b"secret"


async def test_appends_at_the_same_time_never_mix(blobs: FolderBlobs) -> None:
    """As when an agent repeats a chunk whose answer it did not hear."""
    whole = bytes(range(256)) * 64
    pieces = [(offset, whole[offset : offset + 1024]) for offset in range(0, len(whole), 1024)]

    async def send_all() -> None:
        for offset, piece in pieces:
            assert await blobs.append(KEY, offset, piece) >= offset + len(piece)

    await asyncio.gather(*(send_all() for _ in range(4)))
    assert await blobs.read(KEY, 0, len(whole) + 1) == whole


async def test_only_the_owner_can_read_blobs(blobs: FolderBlobs, tmp_path: Path) -> None:
    await blobs.append(KEY, 0, b"x")
    root = tmp_path / "blobs"
    assert [path.stat().st_mode & 0o777 for path in (root, root / "j_1", root / KEY)] == [0o700, 0o700, 0o600]


async def test_a_storage_that_does_not_answer_takes_none_of_the_servers_own_threads(
    blobs: FolderBlobs, tmp_path: Path
) -> None:
    await blobs.append("logs/other", 0, b"x")
    frozen = tmp_path / "blobs" / "logs" / "frozen"
    os.mkfifo(frozen)  # whoever opens it waits until somebody else does, too
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    stuck = asyncio.create_task(blobs.read("logs/frozen", 0, 1))
    try:
        assert await blobs.read("logs/other", 0, 1) == b"x"
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)
    finally:
        os.close(os.open(frozen, os.O_RDWR | os.O_NONBLOCK))
    with pytest.raises(OSError, match="Illegal seek"):
        await stuck
