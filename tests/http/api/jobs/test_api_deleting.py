"""Ended jobs are deleted with all they had: what they have used stays counted, and the audit log stays whole."""

from typing import Any

import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.storage.sweeping.retention import remove_files_of_deleted_jobs
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from tests.http.api_kit import Agent, Running, orchestrator
from tests.http.upload_kit import Uploader

DAY_S = 86_400.0


async def ended(running: Running, agent: Agent, **options: Any) -> Uploader:
    """A job with a checkpoint, a log and a curve, which ran for an hour."""
    await running.submit(**options)
    up = Uploader(agent, await agent.take())
    await up.checkpoint(10)
    attempt_id = up.offer["attempt_id"]
    for key in (f"logs/{attempt_id}", f"logs/{attempt_id}.r1", f"metrics/{attempt_id}/loss"):
        await running.deps.blobs.append(key, 0, b"12345678")
    running.clock.at += 3600
    await agent.report(up.offer, "completed", exit_code=0)
    return up


async def delete(running: Running, job_id: str) -> tuple[int, dict[str, Any]]:
    answer = await running.http.delete(f"/api/jobs/{job_id}")
    return answer.status_code, answer.json()


async def usage(running: Running) -> Any:
    return await running.get("/api/usage", by="person", since="7d")


async def test_all_of_a_job_goes_what_it_used_stays_and_the_audit_log_is_whole() -> None:
    policy = Policy(object_grace_s=60.0, object_delete_delay_s=60.0)
    async with orchestrator(policy=policy) as running:
        agent = await running.worker("gpu-1", gpus=1)
        up = await ended(running, agent, gpus=1)
        kept = await ended(running, agent, gpus=1, name="kept")
        job_id = up.offer["job_id"]
        before = await usage(running)
        status, answer = await delete(running, job_id)
        assert (status, answer["id"]) == (200, job_id)
        assert (await running.http.get(f"/api/jobs/{job_id}")).status_code == 404
        assert [one["id"] for one in (await running.get("/api/jobs"))["jobs"]] == [kept.offer["job_id"]]
        assert (await running.get("/api/queue/stats"))["by_state"]["completed"] == 1
        assert await usage(running) == before

        entries = (await running.get("/api/audit", event_type="job.deleted"))["entries"]
        assert [one["target_id"] for one in entries] == [job_id]
        assert (await running.get("/api/audit/verify"))["valid"]

        # The bytes go in two steps, and what the other job has stays.
        assert await remove_files_of_deleted_jobs(running.deps.storage) == 1
        assert await remove_files_of_deleted_jobs(running.deps.storage) == 0
        logs = await running.deps.blobs.names("logs")
        assert [name for name in logs if name.startswith(up.offer["attempt_id"])] == []
        assert [name for name in logs if name.startswith(kept.offer["attempt_id"])] != []
        objects = [one async for one in running.deps.blobs.objects()]
        await sweep_storage_once(running.deps.storage)
        assert [one async for one in running.deps.blobs.objects()] == objects
        running.clock.at += 61
        await sweep_storage_once(running.deps.storage)
        artifacts = await running.get(f"/api/jobs/{kept.offer['job_id']}/artifacts")
        named = {file["sha256"] for one in artifacts["manifests"] for file in one["files"]}
        assert {one async for one in running.deps.blobs.objects()} == named


async def test_a_request_that_is_repeated_is_answered_again_and_a_late_worker_is_stale() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        up = await ended(running, agent)
        job_id = up.offer["job_id"]
        first = await delete(running, job_id)
        running.clock.at += 5
        assert await delete(running, job_id) == first
        assert (await delete(running, "j_never"))[0] == 404
        assert len((await running.get("/api/audit", event_type="job.deleted"))["entries"]) == 1
        late = await agent.http.post(
            f"/api/workers/{agent.id}/jobs/{job_id}/status",
            json={"status": "completed", "epoch": up.offer["epoch"], "exit_code": 0},
        )
        assert late.status_code in (404, 409), late.text


@pytest.mark.parametrize("state", ["queued", "dispatched", "running", "cancelling"])
async def test_only_an_ended_job_is_deleted(state: str) -> None:
    async with orchestrator() as running:
        agent = None if state == "queued" else await running.worker()
        job_id = (await running.submit())["job_id"]
        if agent and state != "dispatched":
            await agent.take()
        if state == "cancelling":
            await running.post(f"/api/jobs/{job_id}/cancel")
        assert (await running.job(job_id))["status"] == state
        status, answer = await delete(running, job_id)
        assert (status, answer["code"]) == (409, "wrong_job_state")
        assert (await running.job(job_id))["status"] == state


async def test_what_somebody_still_needs_stays() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        up = await ended(running, agent)
        job_id = up.offer["job_id"]
        (manifest,) = (await running.get(f"/api/jobs/{job_id}/artifacts"))["manifests"]
        pin = f"/api/jobs/{job_id}/artifacts/{manifest['id']}/pin"

        assert (await running.http.put(pin)).status_code == 200
        status, answer = await delete(running, job_id)
        assert (status, answer["code"], answer["why"]) == (409, "job_still_needed", "pinned")
        assert (await running.http.delete(pin)).status_code == 200

        goes_on = (await running.submit(resume_from=job_id, worker_labels={"no": "such"}))["job_id"]
        status, answer = await delete(running, job_id)
        assert (status, answer["why"], answer["job_id"]) == (409, "resumed_from", goes_on)
        await running.post(f"/api/jobs/{goes_on}/cancel")

        other = (await running.submit(worker_labels={"no": "such"}))["job_id"]
        waits = (await running.submit(depends_on=[job_id, other]))["job_id"]
        status, answer = await delete(running, job_id)
        assert (status, answer["why"], answer["job_id"]) == (409, "depended_on", waits)
        await running.post(f"/api/jobs/{waits}/cancel")
        assert (await delete(running, job_id))[0] == 200
        # The one that went on from it has its own checkpoint, and can be tried again from there.
        assert len((await running.get(f"/api/jobs/{goes_on}/artifacts"))["manifests"]) == 1


async def test_a_submission_that_is_repeated_makes_no_second_job_of_a_deleted_one() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        up = await ended(running, agent, idempotency_key="once")
        assert (await delete(running, up.offer["job_id"]))[0] == 200
        body = {"config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}}
        again = await running.http.post("/api/queue/submit", json={**body, "idempotency_key": "once"})
        assert (again.status_code, again.json()["code"]) == (410, "job_deleted")
        assert (await running.get("/api/jobs"))["jobs"] == []
        anew = await running.http.post("/api/queue/submit", json={**body, "idempotency_key": "twice"})
        assert anew.status_code == 200, anew.text


async def test_a_quota_of_the_hour_counts_a_deleted_job_also_after_a_restart() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        quota = {"kind": "jobs_per_hour", "ceiling": 1, "scope": "all", "action": "refuse"}
        up = await ended(running, agent)
        running.clock.at -= 3000  # the hour that it ran is not yet over
        assert (await delete(running, up.offer["job_id"]))[0] == 200
        answer = await running.http.post("/api/quotas", json=quota)
        assert answer.status_code in (200, 201), answer.text
        refused = await running.http.post(
            "/api/queue/submit", json={"config": {"trainer": "command", "settings": {"command": ["true"]}}}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "quota_reached")


async def test_all_matching_ended_jobs_are_deleted_some_refused_and_none_twice() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        old = [await ended(running, agent) for _ in range(3)]
        running.clock.at += 30 * DAY_S
        young = await ended(running, agent)
        waiting = (await running.submit(worker_labels={"no": "such"}))["job_id"]
        pinned = old[0].offer["job_id"]
        (manifest,) = (await running.get(f"/api/jobs/{pinned}/artifacts"))["manifests"]
        assert (
            await running.http.put(f"/api/jobs/{pinned}/artifacts/{manifest['id']}/pin")
        ).status_code == 200
        search = {"ended_until": "7d"}
        counted = await running.post("/api/matching/count", {"search": search, "act": "delete"})
        assert counted == {"count": 3, "at_least": False}
        acted = await running.post("/api/matching/delete", {"search": search, "expected": 3})
        assert (acted["done"], acted["refused"], acted["next"]) == (2, 1, None)
        assert [one["id"] for one in acted["refusals"]] == [pinned]
        left = {one["id"] for one in (await running.get("/api/jobs"))["jobs"]}
        assert left == {pinned, young.offer["job_id"], waiting}
        again = await running.http.post("/api/matching/delete", json={"search": search, "expected": 3})
        assert (again.status_code, again.json()["code"]) == (409, "count_changed")


async def test_who_may_not_cancel_a_job_may_not_delete_it() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        up = await ended(running, agent)
        path = f"/api/jobs/{up.offer['job_id']}"
        async with running.as_user(await running.token("jobs.read")) as reader:
            assert (await reader.delete(path)).status_code == 403
        assert (await running.http.get(path)).status_code == 200
