"""Going on from what another job has stored: submitted, retried, fetched, and never begun at the start instead."""

from typing import Any

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.storage.sweeping.retention import DAY_S, empty_old_jobs_once
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import STATE, Uploader, uploading

COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


async def failed_job(running: Running, *steps: int) -> Uploader:
    up = await uploading(running)
    for step in steps:
        await up.checkpoint(step)
    await up.agent.report(up.offer, "failed", exit_code=1)
    return up


async def refused(
    running: Running, expect: int, token: str | None = None, **asked_for: Any
) -> dict[str, Any]:
    body = {"config": COMMAND, **asked_for}
    if token is None:
        answer = await running.http.post("/api/queue/submit", json=body)
    else:
        async with running.as_user(token) as http:
            answer = await http.post("/api/queue/submit", json=body)
    assert answer.status_code == expect, answer.text
    reported: dict[str, Any] = answer.json()
    return reported


async def test_a_retry_goes_on_from_the_newest_and_a_new_job_from_a_chosen_step() -> None:
    async with orchestrator() as running:
        up = await failed_job(running, 10, 20)
        old = up.offer["job_id"]
        assert (await running.job(old))["checkpoint_step"] == 20
        job = await running.post(f"/api/jobs/{old}/retry", {"resume_from": old})
        assert (job["resume_from"], job["retry_of"]) == (f"{old}:20", old)
        offer = await up.agent.take()
        assert (offer["job_id"], offer["resume"]["step"], offer["resume"]["name"]) == (
            job["id"],
            20,
            "checkpoint-20",
        )
        answer = await Uploader(up.agent, offer).fetch(STATE)
        assert answer.content == STATE
        await up.agent.report(offer, "completed", exit_code=0)
        other = await running.submit(resume_from=f"{old}:10")
        offer = await up.agent.take()
        assert (offer["job_id"], offer["resume"]["step"]) == (other["job_id"], 10)
        events = (await running.get(f"/api/jobs/{other['job_id']}/events"))["events"]
        submitted = next(one for one in events if one["event_type"] == "job.submitted")
        assert submitted["details"]["resume_from"] == f"{old}:10"


async def test_a_retry_without_a_wish_begins_at_the_start() -> None:
    async with orchestrator() as running:
        up = await failed_job(running, 10)
        job = await running.post(f"/api/jobs/{up.offer['job_id']}/retry")
        assert job["resume_from"] is None
        assert (await up.agent.take())["resume"] is None


async def test_the_new_job_needs_nothing_of_the_old_one_any_more() -> None:
    policy = Policy(jobs_keep_days=1.0, object_grace_s=60.0)
    async with orchestrator(policy=policy) as running:
        up = await failed_job(running, 10)
        old = up.offer["job_id"]
        await up.agent.close_stream()
        job = await running.post(f"/api/jobs/{old}/retry", {"resume_from": f"{old}:10"})
        running.clock.at += 2 * DAY_S
        assert await empty_old_jobs_once(running.deps.storage) == 1
        running.clock.at += 120.0
        await sweep_storage_once(running.deps.storage)
        (own,) = (await running.get(f"/api/jobs/{job['id']}/artifacts"))["manifests"]
        assert own["step"] == 10
        sha256 = own["files"][0]["sha256"]
        assert await running.deps.blobs.object_size(sha256) == own["files"][0]["size"]


async def test_later_attempts_go_on_from_the_jobs_own_newer_checkpoints() -> None:
    async with orchestrator() as running:
        up = await failed_job(running, 10)
        await running.submit(resume_from=up.offer["job_id"])
        offer = await up.agent.take()
        await Uploader(up.agent, offer).checkpoint(15)
        await up.agent.report(offer, "released", reason="preempted")
        await up.agent.heartbeat()
        assert (await up.agent.take())["resume"]["step"] == 15


async def test_what_cannot_be_gone_on_from_is_refused_with_what_there_is() -> None:
    async with orchestrator() as running:
        up = await failed_job(running, 10, 20)
        old = up.offer["job_id"]
        reported = await refused(running, 422, resume_from=f"{old}:15")
        assert "those there are have step 10, 20" in reported["detail"]
        assert reported["errors"][0]["path"] == "$.resume_from"
        assert "There is no job j_none" in (await refused(running, 422, resume_from="j_none"))["detail"]
        assert "JOB:STEP" in (await refused(running, 422, resume_from="../x"))["detail"]
        other_trainer = {"settings": {"model_family": "sdxl"}}
        assert (
            "was trained with"
            in (await refused(running, 422, config=other_trainer, resume_from=old))["detail"]
        )
        empty = await running.submit()
        reported = await refused(running, 422, resume_from=empty["job_id"])
        assert "No checkpoint of job" in reported["detail"]


async def test_whoever_may_not_read_jobs_may_not_go_on_from_one() -> None:
    async with orchestrator() as running:
        up = await failed_job(running, 10)
        token = await running.token("queue.submit", "queue.submit.command")
        reported = await refused(running, 403, token, resume_from=up.offer["job_id"])
        assert "jobs.read" in reported["detail"] + str(reported.get("permission"))
        reader = await running.token("queue.submit", "queue.submit.command", "jobs.read", name="reader")
        await refused(running, 200, reader, resume_from=up.offer["job_id"])


async def test_a_job_whose_checkpoint_nobody_can_fetch_fails_and_never_begins_at_the_start() -> None:
    async with orchestrator(policy=Policy(resume_tries=2)) as running:
        up = await failed_job(running, 10)
        job_id = (await running.submit(resume_from=up.offer["job_id"]))["job_id"]
        for _ in range(2):
            offer = await up.agent.take()
            assert offer["resume"]["step"] == 10
            await up.agent.report(offer, "released", reason="resume_failed", error="it is damaged")
            await up.agent.heartbeat()
        job = await running.job(job_id)
        assert (job["status"], job["reason"], job["error"]) == ("failed", "resume_failed", "it is damaged")
        assert (await running.get(f"/api/jobs/{job_id}/attempts"))["attempts"][-1]["outcome"] == "released"
