"""A worker that runs many jobs is lost in several steps, so that the server answers others in between."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from simpletuner_fleet.core.jobs.fencing import turn_of
from simpletuner_fleet.core.policy import Policy
from tests.http.api_kit import Agent, Running, orchestrator

JOBS, FEW = 5, 2


@asynccontextmanager
async def full_worker() -> AsyncIterator[tuple[Running, Agent, list[int]]]:
    """With how many attempts ended in each commit from then on; more jobs wait for a place on it."""
    async with orchestrator(policy=Policy(given_up_at_once=FEW)) as running:
        agent = await running.worker(max_jobs=JOBS)
        for _ in range(JOBS):
            await running.submit(name="held")
        for _ in range(JOBS):
            await agent.take()
        for _ in range(JOBS):
            await running.submit(name="waits")
        ended: list[int] = []
        running.fleet.on_commit = lambda _: ended.append(0)

        def count(outcome: str, failure: str) -> None:
            ended[-1] += 1

        running.fleet.on_attempt_end = count
        yield running, agent, ended


async def statuses(running: Running, name: str) -> list[str]:
    jobs = (await running.get("/api/jobs"))["jobs"]
    return [one["status"] for one in jobs if one["name"] == name]


async def test_each_step_gives_up_a_few_and_gives_it_no_other_meanwhile() -> None:
    async with full_worker() as (running, agent, ended):
        await running.pass_time(300.0)
        assert (max(ended), sum(ended)) == (FEW, JOBS)
        assert await statuses(running, "held") == ["queued"] * JOBS
        assert await statuses(running, "waits") == ["queued"] * JOBS
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert worker["status"] == "offline"
        events = await running.get("/api/audit", event_type="worker.lost")
        assert len(events["entries"]) == 1


async def test_one_that_is_heard_meanwhile_keeps_what_was_not_given_up_yet() -> None:
    async with full_worker() as (running, agent, ended):
        fleet = running.fleet

        live = await fleet.read(lambda view: view.live_attempts())

        def heard(outcome: str, failure: str) -> None:
            ended[-1] += 1
            fleet.presence.heard(agent.id, running.clock.now())
            for attempt in live:
                fleet.presence.confirmed(turn_of(attempt), agent.id)

        fleet.on_attempt_end = heard
        await running.pass_time(fleet.policy.heartbeat_timeout_s + fleet.policy.sweep_interval_s)
        assert sum(ended) == FEW
        assert sorted(await statuses(running, "held")) == ["queued"] * FEW + ["running"] * (JOBS - FEW)
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] != "offline"
