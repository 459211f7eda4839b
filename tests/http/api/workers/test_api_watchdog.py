"""A watchdog's verdict at the orchestrator: what is gone on from, what is charged, what is told."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.http.api_kit import CPU_CONFIG, Running, orchestrator
from tests.http.upload_kit import Uploader, uploading

SPOILED: dict[str, Any] = {"error": "watchdog: the loss was NaN at step 60", "resume_below": 60}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator() as one:
        yield one


async def steps_of(running: Running, job_id: str) -> list[int]:
    artifacts = await running.get(f"/api/jobs/{job_id}/artifacts")
    return sorted(one["step"] for one in artifacts["manifests"])


async def test_a_restart_goes_on_below_the_first_bad_step_and_is_charged(running: Running) -> None:
    first = await uploading(running)
    for step in (20, 40, 60):
        await first.checkpoint(step)
    job_id = first.offer["job_id"]
    await first.agent.report(first.offer, "failed", restart=True, **SPOILED)
    again = await first.agent.offer()
    assert again["resume"]["step"] == 40
    assert await steps_of(running, job_id) == [20, 40]
    job = await running.job(job_id)
    assert (job["failures"], job["status"]) == (1, "dispatched")
    attempts = (await running.get(f"/api/jobs/{job_id}/attempts"))["attempts"]
    assert (attempts[0]["failure_class"], attempts[0]["resume_below"]) == ("watchdog_nan", 60)


async def test_without_a_good_checkpoint_it_begins_anew(running: Running) -> None:
    first = await uploading(running)
    await first.checkpoint(60)
    await first.agent.report(first.offer, "failed", restart=True, **SPOILED)
    assert (await first.agent.offer())["resume"] is None


async def test_what_the_next_attempt_makes_of_the_same_step_is_good(running: Running) -> None:
    first = await uploading(running)
    await first.checkpoint(40)
    await first.agent.report(first.offer, "failed", restart=True, **SPOILED)
    second = Uploader(first.agent, await first.agent.take())
    await second.checkpoint(60)
    await second.agent.report(second.offer, "failed", restart=True, error="watchdog: no step for 30 min")
    await running.pass_time(10)
    assert (await second.agent.offer())["resume"]["step"] == 60


async def test_restarts_end_with_the_retries(running: Running) -> None:
    first = await uploading(running, max_retries=0)
    await first.agent.report(first.offer, "failed", restart=True, **SPOILED)
    job = await running.job(first.offer["job_id"])
    assert (job["status"], job["reason"]) == ("failed", "retries_exhausted")


async def test_a_failure_by_choice_keeps_the_good_checkpoints_and_takes_no_late_bad_one(
    running: Running,
) -> None:
    first = await uploading(running)
    await first.checkpoint(40)
    await first.agent.report(first.offer, "failed", **SPOILED)
    job = await running.job(first.offer["job_id"])
    assert (job["status"], job["failure"]["class"]) == ("failed", "watchdog_nan")
    assert "learning rate" in job["failure"]["advice"]
    files = {"model.bin": b"spoiled"}
    await first.send(*files.values())
    problem = await first.manifest(60, files, expect=409)
    assert problem["code"] == "stale_attempt"
    assert await steps_of(running, job["id"]) == [40]


@pytest.mark.parametrize("below", [-1, 2**60, "60"])
async def test_a_step_that_is_none_is_refused(running: Running, below: Any) -> None:
    first = await uploading(running)
    await first.agent.report(first.offer, "failed", expect=422, restart=True, resume_below=below)


async def test_an_offer_carries_what_config_and_submission_say(running: Running) -> None:
    config = {**CPU_CONFIG, "watchdog": {"nan": "ignore", "stall_s": 60}}
    agent = await running.worker()
    await running.submit(config=config, watchdog={"nan": "restart-from-last-good"})
    offer = await agent.offer()
    assert offer["watchdog"] == {"nan": "restart-from-last-good", "stall_s": 60}


@pytest.mark.parametrize("wrong", [{"nan": "panic"}, {"naan": "fail"}, {"stall_s": -1}, [], "fail"])
async def test_a_wrong_watchdog_is_refused_with_its_place(running: Running, wrong: Any) -> None:
    await running.save_config()
    answer = await running.http.post("/api/queue/submit", json={"config_name": "c", "watchdog": wrong})
    assert answer.status_code == 422
    assert "$.watchdog" in answer.text
