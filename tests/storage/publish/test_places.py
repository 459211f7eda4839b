"""Folders that models are published to: one that does not answer holds up nothing but what goes there."""

import asyncio
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
