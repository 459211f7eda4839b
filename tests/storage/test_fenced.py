"""Bytes of an attempt that was lost: refused when they come late, taken back when they came at that very moment."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from tests.http.api_kit import Agent, Running, orchestrator

LONG_SILENCE_S = 200
AT = 1_700_000_000

Send = Callable[[Agent, dict[str, Any], int, int], Awaitable[str]]


async def send_log(agent: Agent, offer: dict[str, Any], start: int, expect: int) -> str:
    answer = await agent.http.put(
        f"/api/workers/job/{offer['job_id']}/logs",
        params={"epoch": offer["epoch"], "offset": start, "gap": 7 if start else 0},
        content=b"x",
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == expect, answer.text
    return answer.text


def send_points(path: str, *keys: str) -> Send:
    async def send(agent: Agent, offer: dict[str, Any], start: int, expect: int) -> str:
        points = [{"step": start, "at": AT + start, "values": dict.fromkeys(keys[: start + 1], 0.5)}]
        answer = await agent.http.post(
            f"/api/workers/job/{offer['job_id']}/{path}",
            json={"epoch": offer["epoch"], "first": start, "points": points},
        )
        assert answer.status_code == expect, answer.text
        return answer.text

    return send


SENDERS = [
    pytest.param(send_log, id="log"),
    pytest.param(send_points("metrics", "loss", "lr"), id="metrics"),
    pytest.param(send_points("gpu-metrics", "gpu.0.utilization", "gpu.0.power_w"), id="gpu-metrics"),
]
"""The second piece names a gap, or a key that was not there before."""


async def picture(running: Running, job_id: str) -> list[Any]:
    """What a person sees of the job's output and numbers."""
    page = await running.http.get(f"/api/jobs/{job_id}/logs", headers={"Accept": "application/json"})
    curves = await running.get(f"/api/jobs/{job_id}/metrics")
    del curves["cursor"]  # says how often something was added, not what there is
    return [page.json()["lines"], page.json()["gap_bytes"], curves]


async def lose(running: Running, agent: Agent) -> None:
    await agent.close_stream()
    await running.pass_time(LONG_SILENCE_S)


class MemoryInterrupted(MemoryBlobs):
    """Something happens just after the first append of a request."""

    then: Callable[[], Awaitable[None]] | None = None

    async def append(self, key: str, offset: int, data: bytes) -> int:
        size = await super().append(key, offset, data)
        then, self.then = self.then, None
        if then:
            await then()
        return size


class FolderInterrupted(FolderBlobs):
    """The same with files."""

    then: Callable[[], Awaitable[None]] | None = None

    async def append(self, key: str, offset: int, data: bytes) -> int:
        size = await super().append(key, offset, data)
        then, self.then = self.then, None
        if then:
            await then()
        return size


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryInterrupted | FolderInterrupted:
    return MemoryInterrupted() if request.param == "memory" else FolderInterrupted(tmp_path)


@pytest.mark.parametrize("send", SENDERS)
async def test_a_lost_attempt_s_bytes_are_refused_and_nobody_sees_them(send: Send) -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await send(agent, offer, 0, 200)
        await lose(running, agent)
        before = await picture(running, offer["job_id"])
        assert "stale_attempt" in await send(agent, offer, 1, 409)
        assert await picture(running, offer["job_id"]) == before


@pytest.mark.parametrize("send", SENDERS)
async def test_bytes_written_while_their_attempt_is_lost_are_taken_back(
    send: Send, blobs: MemoryInterrupted | FolderInterrupted
) -> None:
    async with orchestrator(blobs=blobs) as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await send(agent, offer, 0, 200)
        before = await picture(running, offer["job_id"])
        blobs.then = lambda: lose(running, agent)
        assert "stale_attempt" in await send(agent, offer, 1, 409)
        assert await picture(running, offer["job_id"]) == before


@pytest.mark.parametrize("send", SENDERS)
async def test_an_attempt_that_is_taken_up_again_goes_on_where_it_was(
    send: Send, blobs: MemoryInterrupted | FolderInterrupted
) -> None:
    async with orchestrator(blobs=blobs) as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await send(agent, offer, 0, 200)
        blobs.then = lambda: lose(running, agent)
        await send(agent, offer, 1, 409)
        await agent.report(offer, "running")
        assert "2" in await send(agent, offer, 1, 200)


async def test_the_rest_of_a_failed_attempt_s_log_is_taken_after_the_job_went_on_elsewhere() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit(retry_on_failure=True)
        offer = await agent.take()
        await agent.report(offer, "failed")
        await running.pass_time(600)
        await (await running.worker("gpu-2")).take()
        await send_log(agent, offer, 0, 200)
        await send_points("metrics", "loss")(agent, offer, 0, 409)


async def test_the_log_of_a_job_given_back_is_closed() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await send_log(agent, offer, 0, 200)
        await agent.report(offer, "released")
        await send_log(agent, offer, 1, 409)
