"""The worker protocol, call by call."""

import base64
from typing import Any

from tests.http.api_kit import Agent, orchestrator


async def test_a_registration_answers_everything_the_contract_names() -> None:
    async with orchestrator() as running:
        created = await running.create_worker("gpu-1", labels={"team": "nlp"})
        agent = Agent(running, created)
        answer = await agent.register(
            gpus=2, labels={"team": "theirs", "rack": "7"}, version="1.2", name="another-name"
        )
        assert answer["worker_id"] == agent.id
        assert answer["name"] == "gpu-1"
        assert answer["status"] == "connecting"
        assert answer["heartbeat_interval_s"] == 30
        assert answer["heartbeat_timeout_s"] == 120
        assert answer["ping_interval_s"] == 15
        assert answer["stream_url"] == f"/api/workers/stream?worker_id={agent.id}"
        assert answer["jobs"] == answer["stop"] == answer["keep"] == []
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert worker["labels"] == {"team": "nlp"}
        assert worker["reported_labels"]["team"] == "theirs"
        assert worker["effective_labels"]["team"] == "nlp"
        assert worker["effective_labels"]["rack"] == "7"
        assert worker["gpu_count"] == 2
        assert worker["gpu_name"] == "NVIDIA A100"
        assert worker["gpu_vram_gb"] == 80
        assert worker["version"] == "1.2"


async def test_the_flat_gpu_fields_of_the_documents_register_gpus_too() -> None:
    async with orchestrator() as running:
        agent = Agent(running, await running.create_worker())
        await agent.register(
            gpus=None,
            gpu_count=2,
            gpu_name="NVIDIA A100-SXM4-80GB",
            gpu_vram_gb=80,
            accelerator_type="cuda",
        )
        worker = await running.get(f"/api/admin/workers/{agent.id}")
        assert worker["gpu_count"] == 2
        assert worker["gpu_name"] == "NVIDIA A100-SXM4-80GB"
        assert worker["accelerator_type"] == "cuda"
        assert worker["effective_labels"]["gpu_type"] == "a100-sxm4-80gb"


async def test_a_job_lives_from_submission_to_completion() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=2)
        assert (await running.get("/api/admin/workers"))["workers"][0]["status"] == "idle"
        done = await running.submit(config={"trainer": "command", "settings": {"command": ["true"]}})
        assert done["status"] == "dispatched"
        assert done["allocated_worker_id"] == agent.id
        assert len(done["allocated_gpus"]) == 1
        offer = await agent.offer()
        assert offer["job_id"] == done["job_id"]
        assert offer["gpus"] == done["allocated_gpus"]
        assert offer["config"] == {"command": ["true"]}
        assert offer["upload_endpoint"] == f"{running.listening.url}/api/workers/job/{done['job_id']}"
        assert offer["upload_token"].startswith("ut_")
        assert offer["resume"] is None
        accepted = await agent.accept(offer)
        assert accepted == {
            "job_id": done["job_id"],
            "attempt": 1,
            "epoch": offer["epoch"],
            "status": "running",
        }
        assert (await agent.accept(offer))["status"] == "running"
        assert (await running.job(done["job_id"]))["status"] == "running"
        assert (await running.get("/api/admin/workers"))["workers"][0]["status"] == "busy"
        await agent.report(offer, "starting")
        answer = await agent.report(offer, "running", progress={"step": 3, "total": 10, "loss": 0.5})
        assert answer == {"accepted": True, "job_status": "running", "stop": False}
        assert (await running.job(done["job_id"]))["progress"]["step"] == 3
        assert (await agent.report(offer, "completed", exit_code=0))["job_status"] == "completed"
        assert (await agent.report(offer, "completed", exit_code=0))["accepted"]
        await agent.report(offer, "failed", expect=409)
        job = await running.job(done["job_id"])
        assert job["status"] == "completed"
        assert job["worker_name"] == "gpu-1"
        assert (await running.get("/api/admin/workers"))["workers"][0]["status"] == "idle"


async def test_a_heartbeat_carries_the_same_orders_as_the_stream() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        answer = await agent.heartbeat()
        assert [offer["job_id"] for offer in answer["jobs"]] == [job["job_id"]]
        offer = await agent.take()
        assert (await agent.heartbeat(offer))["jobs"] == []
        await running.post(f"/api/queue/{job['job_id']}/cancel")
        stop = (await agent.heartbeat(offer))["stop"]
        assert [(one["job_id"], one["epoch"], one["reason"]) for one in stop] == [
            (job["job_id"], offer["epoch"], "cancelled")
        ]
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        assert (await agent.heartbeat(offer))["drain"] is True


async def test_a_heartbeat_cannot_change_what_the_administrator_decided() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        for said in ("idle", "busy", "pwned"):
            answer = await agent.heartbeat(status=said)
            assert answer["status"] == "draining"
        await agent.register(gpus=0)
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["admin_state"] == "draining"


async def test_a_heartbeat_of_an_attempt_that_is_not_ours_is_told_to_stop() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        stray = {"job_id": "j_unknown", "epoch": 99}
        stop = (await agent.heartbeat(stray))["stop"]
        assert [(one["job_id"], one["epoch"], one["reason"]) for one in stop] == [("j_unknown", 99, "stale")]


async def test_an_accept_after_the_offer_was_taken_back_is_refused() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.offer()
        await running.pass_time(running.fleet.policy.offer_timeout_s + 4)
        refused = await agent.accept(offer, expect=409)
        assert refused["code"] == "offer_withdrawn"


async def test_a_goodbye_gives_running_attempts_back_at_once_and_charges_nothing() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        await agent.report(offer, "running")
        answer = await agent.call("disconnect", {"reason": "spot notice", "worker_id": agent.id})
        assert answer == {"success": True}
        after = await running.job(job["job_id"])
        assert after["status"] == "queued"
        assert after["losses"] == after["failures"] == 0
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] == "offline"


async def test_what_was_sent_before_a_goodbye_and_is_read_after_it_brings_nobody_back() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        goodbye = {"incarnation": agent.incarnation, "reason": "its job is done"}
        assert await agent.call("disconnect", goodbye) == {"success": True}
        assert (await agent.heartbeat(expect=409))["code"] == "superseded"
        assert await agent.call("disconnect", goodbye) == {"success": True}, "its answer may have been lost"
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] == "offline"


async def test_a_goodbye_needs_no_body() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        answer = await agent.http.post("/api/workers/disconnect")
        assert answer.status_code == 200
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] == "offline"


async def test_an_older_agent_can_ask_whether_it_still_has_work() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        path = f"/api/workers/queue?worker_id={agent.id}"
        assert (await agent.http.get(path)).json() == {"has_jobs": False, "name": "gpu-1"}
        await running.submit()
        assert (await agent.http.get(path)).json()["has_jobs"] is True
        assert (await agent.http.get("/api/workers/queue?worker_id=")).json()["has_jobs"] is True


async def test_registering_again_with_a_running_attempt_resumes_it() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        await agent.report(offer, "running")
        held = [{"job_id": job["job_id"], "epoch": offer["epoch"], "state": "running", "step": 5}]
        answer = await agent.register(attempts=held)
        assert [one["job_id"] for one in answer["keep"]] == [job["job_id"]]
        assert answer["stop"] == answer["jobs"] == []
        assert (await running.job(job["job_id"]))["status"] == "running"
        assert (await running.job(job["job_id"]))["attempt"] == 1


async def test_registering_again_without_the_trainer_loses_the_attempt() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        await agent.take()
        await agent.register(attempts=[])
        after = await running.job(job["job_id"])
        assert (after["status"], after["losses"], after["attempt"]) == ("dispatched", 1, 2)


async def test_the_token_of_one_attempt_reports_for_that_attempt_alone() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        first = await running.submit()
        offer = await agent.take()
        headers = {"X-Upload-Token": offer["upload_token"]}
        async with running.as_user(None) as shim:
            body: dict[str, Any] = {"status": "lost", "epoch": offer["epoch"], "error": "the agent died"}
            other = await running.submit()
            refused = await shim.post(
                f"/api/workers/job/{other['job_id']}/status", json=body, headers=headers
            )
            assert refused.status_code == 409
            answer = await shim.post(f"/api/workers/job/{first['job_id']}/status", json=body, headers=headers)
            assert answer.status_code == 200
            refused = await shim.post("/api/workers/heartbeat", json={}, headers=headers)
            assert refused.status_code == 401
        assert (await running.job(first["job_id"]))["losses"] == 1


async def test_a_worker_cannot_report_its_own_loss() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await agent.report(offer, "lost", expect=409)


async def test_log_chunks_are_resumable_and_repeats_are_harmless() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()

        async def send(offset: int, text: bytes, expect: int = 200) -> Any:
            body = {"epoch": offer["epoch"], "offset": offset, "data": base64.b64encode(text).decode()}
            return await agent.call(f"job/{job['job_id']}/logs", body, expect)

        assert await send(0, b"one\n") == {"next_offset": 4}
        assert await send(0, b"one\n") == {"next_offset": 4}
        assert await send(9, b"late\n") == {"next_offset": 4}
        assert await send(2, b"e\ntwo\n") == {"next_offset": 8}
        await send(-1, b"x", expect=422)
        answer = await running.http.get(f"/api/jobs/{job['job_id']}/logs")
        assert answer.content == b"one\ntwo\n"
        await agent.report(offer, "completed")
        assert await send(8, b"last words\n") == {"next_offset": 19}


async def test_garbage_in_a_log_chunk_is_a_field_error() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        body = {"epoch": offer["epoch"], "offset": 0, "data": "not base64!"}
        refused = await agent.call(f"job/{job['job_id']}/logs", body, 422)
        assert refused["errors"][0]["path"] == "$.data"
