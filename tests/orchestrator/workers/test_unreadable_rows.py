"""A worker that runs a job of which a row cannot be read: whatever else it holds goes on, or is given to others."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.store import SqliteStore
from simpletuner_fleet.store.rows.jobs import ATTEMPTS, JOBS
from tests.http.api_kit import Agent, Running, orchestrator
from tests.ready_databases import lay_sqlite

DAMAGE = {
    "the job": "UPDATE jobs SET requires = '[1' WHERE id = ?",
    "the attempt": "UPDATE attempts SET stopping = 'x' WHERE job_id = ?",
}
POLICY = Policy(results_wait_s=600.0)
pytestmark = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)


@pytest.fixture(autouse=True)
def noted_for_no_other_test() -> Iterator[None]:
    """A process remembers the rows that it has set aside as long as it lives."""
    yield
    JOBS.set_aside.clear()
    ATTEMPTS.set_aside.clear()


class Damaged(Struct):
    """An orchestrator over the database after the damage, and the worker that held both jobs before."""

    running: Running
    agent: Agent
    offers: list[dict[str, Any]]
    bad: str
    good: str


@asynccontextmanager
async def damaged(
    file: Path, damage: str, *, finishing: bool = False, cancelled: bool = False
) -> AsyncIterator[Damaged]:
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store, policy=POLICY) as running:
        agent = await running.worker(max_jobs=2)
        created = {"worker_id": agent.id, "token": agent.token}
        bad, good = [str((await running.submit())["job_id"]) for _ in range(2)]
        offers = [await agent.take() for _ in range(2)]
        for offer in offers if finishing else ():
            await agent.report(offer, "running", progress={"phase": "finishing"})
        if cancelled:
            await running.post(f"/api/jobs/{bad}/cancel")
    await store.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute(damage, (bad,)).rowcount == 1
    connection.close()
    store = SqliteStore(file)
    async with orchestrator(store=store, policy=POLICY) as running:
        agent = Agent(running, created)
        agent.seq = 10
        yield Damaged(running, agent, offers, bad, good)
    await store.close()


async def test_its_other_job_goes_on_by_heartbeats_and_over_its_return(tmp_path: Path, damage: str) -> None:
    async with damaged(tmp_path / "fleet.db", damage) as after:
        held = [{"job_id": one["job_id"], "epoch": one["epoch"]} for one in after.offers]
        registered = await after.agent.register(attempts=held, max_jobs=2)
        assert [one["job_id"] for one in registered["keep"]] == [after.good]
        assert registered["stop"] == [], "whether the other one is to end nobody knows"
        beat = await after.agent.heartbeat(*after.offers)
        assert beat["stop"] == []
        assert (await after.running.job(after.good))["status"] == "running"


async def test_it_is_offline_once_it_is_silent_and_its_other_job_is_given_to_others(
    tmp_path: Path, damage: str
) -> None:
    async with damaged(tmp_path / "fleet.db", damage) as after:
        await after.running.pass_time(300.0)
        worker = await after.running.get(f"/api/admin/workers/{after.agent.id}")
        assert worker["status"] == "offline"
        assert (await after.running.job(after.good))["status"] == "queued"


async def test_results_of_its_other_job_are_not_waited_for_for_ever(tmp_path: Path, damage: str) -> None:
    async with damaged(tmp_path / "fleet.db", damage, finishing=True) as after:
        assert (await after.running.job(after.good))["phase"] == "finishing"
        await after.running.pass_time(POLICY.results_wait_s + 300.0)
        assert (await after.running.job(after.good))["status"] == "completed"
