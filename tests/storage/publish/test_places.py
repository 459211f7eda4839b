"""Publishing to a folder."""

import asyncio
import hashlib
import os
from pathlib import Path
from threading import Timer

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed
from simpletuner_fleet.storage.publish.places import publish_to_place

MODEL = bytes(range(256))
SHA256 = hashlib.sha256(MODEL).hexdigest()


class Watching(MemoryBlobs):
    """Sees under which names files are made in a folder while they are read."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.drafts: set[Path] = set()

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        self.drafts.update(self.folder.glob(".*"))
        return await super().read_object(sha256, start, length)


async def content_of(blobs: MemoryBlobs, *paths: str) -> PublishedContent:
    await blobs.put_part("uploads/model", 0, MODEL)
    assert await blobs.seal("uploads/model", SHA256, len(MODEL))
    return PublishedContent(
        blobs, tuple(FileEntry(path=path, size=len(MODEL), sha256=SHA256) for path in paths)
    )


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("length", [1, 249, 250, 255])
async def test_a_file_of_any_name_is_published_and_nothing_else_is_left(tmp_path: Path, length: int) -> None:
    name = "x" * length
    content = await content_of(MemoryBlobs(), name, f"inner/{name}")
    assert await publish_to_place(tmp_path.as_uri(), "cats", content) == (tmp_path / "cats").as_uri()
    assert files_in(tmp_path / "cats") == {name, f"inner/{name}"}
    assert (tmp_path / "cats" / name).read_bytes() == MODEL


async def test_a_folder_that_does_not_answer_holds_up_nobody_else(tmp_path: Path) -> None:
    """A pipe lies where the file is made: whoever opens it waits for somebody who reads from it."""
    blobs = Watching(tmp_path / "cats")
    content = await content_of(blobs, "model")
    await publish_to_place(tmp_path.as_uri(), "cats", content)
    (draft,) = blobs.drafts
    os.mkfifo(draft)
    readers: list[int] = []
    answers = Timer(2.0, lambda: readers.append(os.open(draft, os.O_RDONLY | os.O_NONBLOCK)))
    answers.start()
    publishing = asyncio.create_task(publish_to_place(tmp_path.as_uri(), "cats", content))
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not publishing.done(), "it waits, and everybody else goes on"
    answers.cancel()
    readers.append(os.open(draft, os.O_RDONLY | os.O_NONBLOCK))
    with pytest.raises(PublishFailed):
        await publishing
    for reader in readers:
        os.close(reader)
