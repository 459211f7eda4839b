"""Folders that models are published to: one that does not answer holds up nothing but what goes there."""

import asyncio
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed
from simpletuner_fleet.storage.publish.places import _draft_of, publish_to_place

FILE = FileEntry(path="model.safetensors", sha256="0" * 64, size=0)


async def test_a_folder_that_does_not_answer_keeps_no_thread_of_the_servers_own(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    stuck_at = _draft_of(tmp_path / "cats" / FILE.path)
    stuck_at.parent.mkdir()
    os.mkfifo(stuck_at)
    content = PublishedContent(MemoryBlobs(), (FILE,))
    publishing = asyncio.create_task(publish_to_place(tmp_path.as_uri(), "cats", content))
    for _ in range(10):
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)
    finally:
        reader = os.open(stuck_at, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(PublishFailed):
            await publishing
        os.close(reader)


async def test_what_cannot_be_published_whole_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    blobs, sha256 = MemoryBlobs(), hashlib.sha256(b"half").hexdigest()
    await blobs.put_part("uploads/j_1/part", 0, b"half")
    assert await blobs.seal("uploads/j_1/part", sha256, 4)
    content = PublishedContent(blobs, (FileEntry(path="model.safetensors", sha256=sha256, size=8),))
    with pytest.raises(PublishFailed, match="incomplete"):
        await publish_to_place(tmp_path.as_uri(), "cats", content)
    assert list((tmp_path / "cats").iterdir()) == []
