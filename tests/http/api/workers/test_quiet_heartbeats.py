"""A heartbeat that says and finds nothing new is answered without a transaction; anything new is noticed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.orchestrator.workers import administer, attendance
from simpletuner_fleet.orchestrator.workers.report import report
from simpletuner_fleet.protocol.messages import Heartbeat, HeartbeatAnswer, ReportStatus, StatusReport
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import Agent, Running, orchestrator

ADMIN = Actor("admin", "admin")
COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator() as running:
        yield running


async def quiet(running: Running, gpus: int = 1) -> Agent:
    """A worker whose next heartbeat would be the same as its last."""
    agent = await running.worker(gpus=gpus)
    await agent.heartbeat()
    assert await transactions_of(running, agent) == 0
    return agent


async def transactions_of(running: Running, agent: Agent) -> int:
    commits: list[float] = []
    running.fleet.on_commit = commits.append
    await agent.heartbeat()
    return len(commits)


async def test_a_quiet_heartbeat_takes_no_transaction_and_is_answered_in_full(running: Running) -> None:
    agent = await quiet(running)
    first, second = await agent.heartbeat(), await agent.heartbeat()
    assert first == second
    assert (second["status"], second["heartbeat_interval_s"]) == ("idle", 30)
    assert second["audit_head"]["seq"] > 0


async def test_the_worker_was_heard(running: Running) -> None:
    agent = await quiet(running)
    for _ in range(6):
        await running.pass_time(60)
        await agent.heartbeat()
    assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] == "idle"


async def test_its_head_of_the_audit_log_is_taken_and_the_newest_is_told(running: Running) -> None:
    agent = await quiet(running)
    old = (await agent.heartbeat())["audit_head"]
    await running.create_worker("another")
    new = (await agent.heartbeat(audit_head=old))["audit_head"]
    assert new["seq"] > old["seq"]
    assert running.fleet.witnesses[agent.id].seq == old["seq"]


async def test_an_offer_is_told(running: Running) -> None:
    agent = await quiet(running)
    submitted = await running.submit(config=COMMAND)
    assert [job["job_id"] for job in (await agent.heartbeat())["jobs"]] == [submitted["job_id"]]


async def test_a_drain_is_told(running: Running) -> None:
    agent = await quiet(running)
    await running.post(f"/api/admin/workers/{agent.id}/drain", {})
    assert (await agent.heartbeat())["drain"] is True


async def test_an_attempt_that_nobody_knows_is_stopped(running: Running) -> None:
    agent = await quiet(running)
    answer = await agent.heartbeat({"job_id": "j_unknown", "epoch": 7})
    assert [one["job_id"] for one in answer["stop"]] == ["j_unknown"]


async def test_a_gpu_that_fails_is_noticed(running: Running) -> None:
    agent = await quiet(running)
    await agent.heartbeat(gpus=[{"uuid": f"GPU-{agent.id}-0", "healthy": False}])
    worker = await running.fleet.read(lambda view: view.worker(agent.id))
    assert worker
    assert [gpu.unusable for gpu in worker.gpus] == ["unhealthy"]


async def test_an_older_process_of_the_worker_is_refused(running: Running) -> None:
    agent = await quiet(running)
    newer = Agent(running, {"worker_id": agent.id, "token": agent.token}, incarnation="i-2")
    await newer.register(gpus=1)
    assert (await agent.heartbeat(expect=409))["code"] == "superseded"


async def test_who_leaves_is_offered_nothing(running: Running) -> None:
    agent = await quiet(running)
    await agent.heartbeat(status="leaving")
    assert (await running.submit(config=COMMAND))["status"] == "queued"
    await agent.heartbeat()
    assert (await agent.offer())["job_id"]


async def test_what_is_not_stored_yet_is_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await quiet(running)
    monkeypatch.setattr(type(running.fleet.store), "is_stored", property(lambda _: False))
    assert await transactions_of(running, agent) == 1


@pytest.fixture
async def batching(tmp_path: Path) -> AsyncIterator[Running]:
    """An orchestrator whose store commits all steps together that are asked for in one moment."""
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store=store) as running:
        yield running
    await store.close()


async def decided(running: Running, agent: Agent) -> HeartbeatAnswer:
    """The answer to a heartbeat in a step of its own, whatever was remembered."""
    running.fleet.quiet_heartbeats.forget(agent.id)
    message = Heartbeat(worker_id=agent.id, incarnation=agent.incarnation, attempts=[])
    return await attendance.heartbeat(
        running.fleet, agent.id, message, base_url="", token_hash=tokens.hashed(agent.token)
    )


async def test_a_drain_in_the_same_commit_is_told_by_the_next_heartbeat(batching: Running) -> None:
    agent = await quiet(batching)
    before, _ = await asyncio.gather(
        decided(batching, agent), administer.drain(batching.fleet, agent.id, "", ADMIN)
    )
    assert (before.drain, before.status) == (False, "idle")
    after = await agent.heartbeat()
    assert (after["drain"], after["status"]) == (True, "draining")


async def test_a_job_that_ends_in_the_same_commit_leaves_its_worker_idle(batching: Running) -> None:
    agent = await batching.worker(gpus=1)
    await batching.submit(config=COMMAND)
    offer = await agent.take()
    worker = await batching.fleet.read(lambda view: view.worker(agent.id))
    assert worker
    end = StatusReport(status=ReportStatus.COMPLETED, epoch=offer["epoch"], exit_code=0)
    before, _ = await asyncio.gather(
        decided(batching, agent), report(batching.fleet, worker, offer["job_id"], end)
    )
    assert before.status == "busy"
    assert (await agent.heartbeat())["status"] == "idle"


async def test_whatever_shares_a_commit_with_it_a_heartbeat_is_answered_as_if_nothing_was_remembered(
    batching: Running,
) -> None:
    agent, fleet, chance = await quiet(batching), batching.fleet, random.Random(7)
    acts: list[Callable[[], Awaitable[Any]]] = [
        lambda: decided(batching, agent),
        lambda: agent.heartbeat(),
        lambda: administer.drain(fleet, agent.id, "", ADMIN),
        lambda: administer.resume(fleet, agent.id, ADMIN),
        lambda: administer.set_labels(fleet, agent.id, {"rack": str(chance.randrange(3))}, ADMIN),
        lambda: attendance.stream_closed(fleet, agent.id, lambda _: False),
    ]
    for _ in range(60):
        await asyncio.gather(*(act() for act in chance.sample(acts, 3)))
        remembered = await agent.heartbeat()
        fresh = await decided(batching, agent)
        assert (remembered["drain"], remembered["status"]) == (fresh.drain, fresh.status)
