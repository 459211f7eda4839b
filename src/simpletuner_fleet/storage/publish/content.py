"""Reads a job's files from the storage to publish them, and defines how publishing fails."""

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.ports import Blobs

CHUNK_BYTES = 4 * 1024 * 1024


class PublishFailed(FleetError):
    """The model could not be published."""

    code = "publish_failed"

    def __init__(
        self, detail: str, *, hopeless: bool = False, wait_s: float = 0.0, answered: int = 0
    ) -> None:
        super().__init__(detail)
        self.hopeless = hopeless
        """To try it again the same way would end the same way."""
        self.wait_s = wait_s
        """How long the other side wants to be left alone."""
        self.answered = answered
        """The status of its answer, 0 where there was none."""


def always_leads() -> None:
    """Does nothing: an orchestrator that is the only one always leads."""


class PublishedContent(Struct, frozen=True):
    blobs: Blobs
    files: tuple[FileEntry, ...]
    insist_on_leading: Callable[[], None] = always_leads
    """Called immediately before anything is changed where it is published to. Raises NotLeader."""

    async def read(self, file: FileEntry, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Reads the file in pieces: a model may be larger than the memory."""
        end = file.size if length is None else min(file.size, start + length)
        while start < end:
            piece = await self.blobs.read_object(file.sha256, start, min(CHUNK_BYTES, end - start))
            if not piece:
                raise PublishFailed(f"{file.path} is incomplete in storage.")
            yield piece
            start += len(piece)

    async def whole(self, file: FileEntry, most: int | None = None) -> bytes:
        return b"".join([piece async for piece in self.read(file, 0, most)])
