import asyncio
import hashlib

import httpx2
import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.http.api.service.health import STORAGE_PROBED_EVERY_S
from tests.http.api_kit import orchestrator


class FullDisk(MemoryBlobs):
    """Takes nothing while it is full."""

    full = False

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return await super().put_part(key, offset, data)


class Forgetful(MemoryBlobs):
    """Gives back something else than it was given."""

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        return hashlib.sha256(b"other").digest()


async def test_ready_says_that_the_storage_takes_nothing_and_when_it_does_again() -> None:
    blobs = FullDisk()
    async with orchestrator(blobs=blobs) as running:
        assert (await running.http.get("/health/ready")).status_code == 200
        blobs.full = True
        running.clock.at += STORAGE_PROBED_EVERY_S + 1
        answer = await running.http.get("/health/ready")
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "No space left on device" in answer.json()["detail"]
        blobs.full = False
        assert (await running.http.get("/health/ready")).status_code == 200


@pytest.mark.parametrize("blobs", [Forgetful()])
async def test_a_storage_that_gives_back_something_else_is_not_ready(blobs: MemoryBlobs) -> None:
    async with orchestrator(blobs=blobs) as running:
        assert (await running.http.get("/health/ready")).status_code == 503


class SlowDisk(MemoryBlobs):
    """Takes its time, until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.tries = 0

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        self.tries += 1
        await self.goes_on.wait()
        return await super().put_part(key, offset, data)


async def test_a_prober_that_is_less_patient_than_the_storage_hears_of_it_in_the_end() -> None:
    blobs = SlowDisk()
    async with orchestrator(blobs=blobs) as running:
        for _ in range(3):
            with pytest.raises(httpx2.ReadTimeout):
                await running.http.get("/health/ready", timeout=0.2)
        blobs.goes_on.set()
        assert (await running.http.get("/health/ready")).status_code == 200
        assert blobs.tries == 1
