"""The loop around the sweep: it goes on, whatever a round meets."""

import asyncio
import hashlib

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.storage.sweeping import sweeper as sweeping
from simpletuner_fleet.storage.sweeping.sweeper import StorageSweeper
from tests.http.api_kit import orchestrator

NOBODYS = b"nobody's"


class FailsOnce(MemoryBlobs):
    """The storage is away when it is first asked."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.swept = asyncio.Event()

    async def names(self, prefix: str) -> list[str]:
        if not self.failed:
            self.failed = True
            raise StoreUnavailable("The storage is away.")
        return await super().names(prefix)

    async def delete_object(self, sha256: str) -> None:
        await super().delete_object(sha256)
        self.swept.set()


async def test_a_round_that_fails_is_followed_by_one_that_sweeps(caplog: pytest.LogCaptureFixture) -> None:
    blobs, sha256 = FailsOnce(), hashlib.sha256(NOBODYS).hexdigest()
    await blobs.put_part("uploads/j_1/part", 0, NOBODYS)
    assert await blobs.seal("uploads/j_1/part", sha256, len(NOBODYS))
    async with orchestrator(
        blobs=blobs, policy=Policy(object_grace_s=0.01, object_delete_delay_s=0.0)
    ) as running:
        sweeper = StorageSweeper(running.deps.storage)
        sweeper.start()
        await asyncio.wait_for(blobs.swept.wait(), 10)
        await sweeper.stop()
    assert blobs.failed
    assert await blobs.object_size(sha256) is None
    assert "it is tried again" in caplog.text


class TellsWhatGoes(MemoryBlobs):
    def __init__(self) -> None:
        super().__init__()
        self.deleted = asyncio.Event()

    async def delete(self, prefix: str) -> None:
        await super().delete(prefix)
        self.deleted.set()


async def test_the_first_round_comes_long_before_the_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "FIRST_PAUSE_S", 0.01, raising=False)
    blobs = TellsWhatGoes()
    await blobs.put_part("uploads/j_of_nobody/part", 0, NOBODYS)
    async with orchestrator(blobs=blobs) as running:
        sweeper = StorageSweeper(running.deps.storage)
        sweeper.start()
        await asyncio.wait_for(blobs.deleted.wait(), 10)
        await sweeper.stop()
    assert await blobs.names("uploads") == []
