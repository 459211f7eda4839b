"""Stopping by the API: what is asked, what is shown meanwhile, and what is refused."""

from typing import Any

import pytest

from tests.http.api_kit import orchestrator


async def test_a_cancel_with_a_checkpoint_first_is_seen_until_it_is_done_and_hurried_by_another() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        job_id = (await running.submit())["job_id"]
        offer = await worker.take()
        body = {"checkpoint_first": True, "grace_s": 12}
        job = await running.post(f"/api/jobs/{job_id}/cancel", body)
        assert job["status"] == "cancelling"
        assert job["stopping"]["sentence"] == "cancelling: saving a checkpoint first"
        order = await worker.events.next("job_cancel")
        assert (order["reason"], order["grace_s"], order["save_s"]) == ("cancelled", 12, 300)
        hurried = await running.post(f"/api/queue/{job_id}/cancel")
        assert hurried["stopping"]["sentence"] == "cancelling: stopping the trainer"
        again = await worker.events.next("job_cancel")
        assert again["save_s"] is None
        await worker.report(offer, "cancelled")
        assert (await running.job(job_id))["stopping"] is None


async def test_a_drain_with_a_timeout_is_seen_audited_and_undone_by_resume() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        job_id = (await running.submit())["job_id"]
        await worker.take()
        path = f"/api/admin/workers/{worker.id}"
        seen = await running.post(f"{path}/drain", {"note": "driver", "timeout_s": 0})
        assert seen["drain_deadline"] is not None
        assert seen["drain_checkpoint_first"] is True
        order = await worker.events.next("job_cancel")
        assert (order["reason"], order["save_s"]) == ("drained", 300)
        job = await running.job(job_id)
        assert (job["status"], job["stopping"]["reason"]) == ("running", "drained")
        assert job["stopping"]["sentence"] == "leaving its worker: saving a checkpoint first"
        events = [
            event["event_type"] for event in (await running.get(f"/api/jobs/{job_id}/events"))["events"]
        ]
        assert "job.stop_requested" in events
        entries = (await running.get("/api/audit", event_type="worker.drained"))["entries"]
        assert entries[0]["details"]["timeout_s"] == 0
        assert (await running.post(f"{path}/resume"))["drain_deadline"] is None


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/jobs/{job}/cancel", {"grace_s": -1}, "$.grace_s"),
        ("/api/jobs/{job}/cancel", {"grace_s": 1e9}, "$.grace_s"),
        ("/api/jobs/{job}/cancel", {"checkpoint": True}, None),
        ("/api/jobs/{job}/cancel", {"checkpoint_first": "yes"}, "$.checkpoint_first"),
        ("/api/admin/workers/{worker}/drain", {"timeout_s": -1}, "$.timeout_s"),
        ("/api/admin/workers/{worker}/drain", {"timeout_s": 1e12}, "$.timeout_s"),
        ("/api/queue/submit", {"config_name": "c", "on_time_limit": "requeue"}, "$.on_time_limit"),
        ("/api/queue/submit", {"config_name": "c", "on_time_limit": "sleep"}, "$.on_time_limit"),
    ],
)
async def test_a_wish_that_cannot_be_meant_is_refused_by_name(
    path: str, body: Any, field: str | None
) -> None:
    async with orchestrator() as running:
        await running.save_config()
        worker = await running.worker()
        job_id = (await running.submit())["job_id"]
        answer = await running.http.post(path.format(job=job_id, worker=worker.id), json=body)
        assert answer.status_code == 422, answer.text
        if field:
            assert field in answer.text


async def test_a_job_says_what_happens_at_its_time_limit() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        job_id = (await running.submit(time_limit_s=3600, on_time_limit="requeue"))["job_id"]
        offer = await worker.take()
        assert (offer["on_time_limit"], offer["checkpoint_wait_s"]) == ("requeue", 300)
        assert (await running.job(job_id))["on_time_limit"] == "requeue"
