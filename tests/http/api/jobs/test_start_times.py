"""A job that is not to start before a time waits until then, in its place, says so, and brings no machine before."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from simpletuner_fleet.orchestrator.runtime import Runtime
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator

NIGHT = timezone(timedelta(hours=1))


def after(running: Running, seconds: float, zone: timezone = UTC) -> str:
    return datetime.fromtimestamp(running.clock.at + seconds, zone).isoformat()


async def state(running: Running, job_id: str) -> tuple[str, str | None]:
    job = await running.job(job_id)
    return job["status"], (job["explain"] or {}).get("code")


async def test_it_waits_until_its_time_and_keeps_its_place() -> None:
    async with orchestrator() as running:
        late = await running.submit(not_before=after(running, 70, NIGHT), name="late")
        running.clock.at += 10
        agent = await running.worker()
        assert await state(running, late["job_id"]) == ("queued", "START_TIME")
        explained = await running.get(f"/api/jobs/{late['job_id']}/explain")
        assert explained["params"]["wait_s"] == 60
        assert "UTC or later" in explained["sentence"]
        early = (await running.submit(name="early"))["job_id"]
        offer = await agent.take()
        assert offer["job_id"] == early
        other = (await running.submit(name="later submitted"))["job_id"]
        await running.pass_time(60)
        assert (await state(running, late["job_id"]))[1] != "START_TIME"
        await agent.report(offer, "completed", exit_code=0)
        # It was submitted first, so it is the first of those who wait.
        assert (await agent.take())["job_id"] == late["job_id"]
        assert (await running.job(other))["status"] == "queued"


async def test_it_starts_at_its_time_and_not_a_round_later() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        runtime = Runtime(running.fleet)
        await runtime.start()
        try:
            job_id = (await running.submit(not_before=after(running, 0.2)))["job_id"]
            running.clock.at += 0.25
            assert (await agent.take())["job_id"] == job_id
        finally:
            await runtime.stop()


async def test_its_time_is_changed_while_it_waits_and_taken_away() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job_id = (await running.submit(not_before=after(running, 30)))["job_id"]

        async def edit(not_before: Any) -> dict[str, Any]:
            answer = await running.http.patch(f"/api/jobs/{job_id}", json={"not_before": not_before})
            assert answer.status_code == 200, answer.text
            job: dict[str, Any] = answer.json()
            return job

        moved = await edit(after(running, 7200))
        assert moved["not_before"] is not None
        await running.pass_time(60)
        assert await state(running, job_id) == ("queued", "START_TIME")
        renamed = await running.http.patch(f"/api/jobs/{job_id}", json={"name": "other"})
        assert renamed.json()["not_before"] == moved["not_before"]
        assert (await edit(None))["not_before"] is None
        assert (await agent.take())["job_id"] == job_id


async def test_a_clock_that_is_set_back_lets_it_wait_and_one_that_is_set_forward_lets_it_start() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job_id = (await running.submit(not_before=after(running, 600)))["job_id"]
        running.clock.at -= 3600
        await running.pass_time(60)
        assert await state(running, job_id) == ("queued", "START_TIME")
        running.clock.at += 86_400
        await running.pass_time(1)
        offer = await agent.take()
        assert offer["job_id"] == job_id
        running.clock.at -= 2 * 86_400
        await running.pass_time(1)
        assert (await running.job(job_id))["status"] == "running"  # what has started goes on


async def test_a_time_that_is_over_holds_nothing_and_an_approval_is_waited_for_first() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        past = (await running.submit(not_before=after(running, -60)))["job_id"]
        offer = await agent.take()
        assert offer["job_id"] == past
        first = (await running.submit(name="first"))["job_id"]
        second = (await running.submit(depends_on=[first], not_before=after(running, 60)))["job_id"]
        await agent.report(offer, "completed", exit_code=0)
        await agent.report(await agent.take(), "completed", exit_code=0)
        assert await state(running, second) == ("queued", "START_TIME")
        await running.pass_time(60)
        assert (await agent.take())["job_id"] == second


@pytest.mark.parametrize(
    "wrong", ["2026-11-18T22:00:00", "tonight", "", "2400-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"]
)
async def test_a_time_without_a_zone_or_far_away_is_refused(wrong: str) -> None:
    async with orchestrator() as running:
        answer = await running.http.post(
            "/api/queue/submit", json={"config": CPU_CONFIG, "not_before": wrong}
        )
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.not_before"), answer.text


async def test_a_job_that_must_start_now_cannot_start_later() -> None:
    async with orchestrator() as running:
        await running.worker()
        body = {
            "config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}},
            "not_before": after(running, 60),
        }
        refused = await running.http.post("/api/queue/submit", json={**body, "no_wait": True})
        assert (refused.status_code, refused.json()["reason"]) == (409, "START_TIME")
        dry = await running.post("/api/queue/submit", {**body, "dry_run": True})
        assert dry["would_start_now"] is False
