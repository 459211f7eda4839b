"""Jobs as they are looked at, their logs as they grow, and configs."""

import asyncio
import base64
import json
from typing import Any

from simpletuner_fleet.core.policy import Policy
from tests.http.api_kit import CPU_CONFIG, Agent, Running, orchestrator, read_events, until


async def test_one_job_has_every_field_of_the_contract() -> None:
    async with orchestrator() as running:
        job = await running.submit(name="nightly")
        job_now = await running.job(job["job_id"])
        wanted = (
            "id config_name status target priority attempt max_retries worker_id worker_name gpus progress error "
            "reason created_at started_at finished_at losses failures retry_of name explain"
        )
        assert set(wanted.split()) <= set(job_now)
        assert (job_now["status"], job_now["attempt"], job_now["max_retries"]) == ("queued", 0, 3)
        assert (job_now["name"], job_now["config_name"]) == ("nightly", "inline")
        assert job_now["explain"]["sentence"] == "no worker has joined yet"
        assert (await running.http.get("/api/jobs/j_none")).status_code == 404


async def test_the_list_is_newest_first_in_pages_and_filtered() -> None:
    async with orchestrator() as running:
        await running.save_config("other")
        ids = [(await running.submit())["job_id"] for _ in range(5)]
        running.clock.at += 100
        ids.append((await running.submit(config_name="other"))["job_id"])
        first = await running.get("/api/jobs", limit=4)
        rest = await running.get("/api/jobs", limit=4, cursor=first["next"])
        assert [job["id"] for job in first["jobs"] + rest["jobs"]] == ids[::-1]
        assert rest["next"] is None
        await running.post(f"/api/jobs/{ids[0]}/cancel")

        async def ids_found(**query: Any) -> list[str]:
            return [job["id"] for job in (await running.get("/api/jobs", **query))["jobs"]]

        assert await ids_found(status="cancelled") == [ids[0]]
        assert len(await ids_found(status=["cancelled", "queued"])) == 6
        assert await ids_found(config_name="other") == [ids[5]]
        assert await ids_found(since=running.clock.at - 50) == [ids[5]]
        assert await ids_found(since="2100-01-01T00:00:00Z") == []
        assert await ids_found(owner="t_nobody") == []
        for bad in ("status=pwned", "since=yesterday", "cursor=%5B1%5D", "limit=9999", "since=nan"):
            assert (await running.http.get(f"/api/jobs?{bad}")).status_code == 422, bad


async def test_explain_tells_the_funnel() -> None:
    async with orchestrator() as running:
        await running.worker(gpus=1)
        job = await running.submit(config={"trainer": "command", "settings": {"command": ["x"]}}, gpus=4)
        explained = await running.get(f"/api/jobs/{job['job_id']}/explain")
        assert explained["state"] == "queued"
        assert explained["class"] == "change"
        assert explained["code"] == "GPU_COUNT_TOO_LARGE"
        assert explained["funnel"][0] == {"step": "workers", "left": 1, "rule": "1 worker has joined"}
        assert explained["funnel"][-1]["left"] == 0
        assert explained["workers"][0]["fails"] == ["too_few_gpus"]
        assert explained["as_of"].endswith("Z")
        assert {"ahead", "fixes", "params"} <= set(explained)


async def test_explain_of_a_job_that_does_not_wait_says_so() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        await agent.take()
        assert (await running.get(f"/api/jobs/{job['job_id']}/explain"))["code"] == "NOT_WAITING"


async def test_attempts_and_events_tell_the_story() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit(retry_on_failure=True)
        offer = await agent.take()
        await agent.report(offer, "failed", exit_code=3, error="out of luck", last_lines="Traceback")
        again = await agent.take()
        await agent.report(again, "completed")
        tries = (await running.get(f"/api/jobs/{job['job_id']}/attempts"))["attempts"]
        assert [(one["attempt"], one["outcome"], one["exit_code"]) for one in tries] == [
            (1, "failed", 3),
            (2, "completed", 0),
        ]
        assert tries[0]["error"] == "out of luck"
        assert tries[0]["last_lines"] == "Traceback"
        assert tries[0]["epoch"] < tries[1]["epoch"]
        events = (await running.get(f"/api/jobs/{job['job_id']}/events"))["events"]
        kinds = [event["event_type"] for event in events]
        assert kinds[0] == "job.submitted"
        assert kinds[-1] == "job.completed"
        assert kinds.count("job.dispatched") == 2
        assert all("ip" not in event for event in events)
        for path in ("attempts", "events", "metrics", "artifacts", "explain", "logs"):
            assert (await running.http.get(f"/api/jobs/j_none/{path}")).status_code == 404, path


async def test_metrics_and_artifacts_are_honest_about_what_is_kept() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        await agent.report(offer, "running", progress={"step": 2, "loss": 0.25})
        assert (await running.job(job["job_id"]))["progress"] == {"step": 2, "loss": 0.25}
        kept = await running.get(f"/api/jobs/{job['job_id']}/metrics")
        assert kept.pop("cursor")
        assert kept == {"keys": [], "attempt": None, "series": {}, "begins": {}, "total": 0}
        assert await running.get(f"/api/jobs/{job['job_id']}/artifacts") == {"manifests": []}


async def test_a_retry_is_a_new_job_with_the_same_copy_of_everything() -> None:
    async with orchestrator() as running:
        await running.save_config("c", CPU_CONFIG)
        job = await running.submit(config_name="c", priority=7)
        early = await running.http.post(f"/api/jobs/{job['job_id']}/retry")
        assert early.status_code == 409
        await running.post(f"/api/jobs/{job['job_id']}/cancel")
        again = await running.post(f"/api/jobs/{job['job_id']}/retry")
        assert again["id"] != job["job_id"]
        assert (again["retry_of"], again["priority"], again["status"]) == (job["job_id"], 7, "queued")


MEMBER = (
    "queue.submit",
    "queue.submit.command",
    "queue.read",
    "queue.cancel",
    "jobs.read",
    "jobs.cancel",
    "jobs.retry",
)


async def test_trying_again_does_not_get_round_an_approval_that_was_refused_or_never_given() -> None:
    async with orchestrator(policy=Policy(require_approval=True)) as running:
        token = await running.token(*MEMBER)
        async with running.as_user(token) as user:
            jobs = [
                (await user.post("/api/queue/submit", json={"config": CPU_CONFIG})).json()["job_id"]
                for _ in range(2)
            ]
            await running.post(f"/api/queue/{jobs[0]}/reject", {"reason": "too dear"})
            await user.post(f"/api/jobs/{jobs[1]}/cancel")
            for job in jobs:
                again = (await user.post(f"/api/jobs/{job}/retry")).json()
                assert (again["status"], again["explain"]["code"]) == ("blocked", "APPROVAL_REQUIRED")
        by_an_approver = await running.post(f"/api/jobs/{jobs[0]}/retry")
        assert by_an_approver["status"] == "queued"


async def test_a_retry_waits_for_the_same_jobs_and_is_refused_when_one_of_them_failed() -> None:
    async with orchestrator() as running:
        first = (await running.submit())["job_id"]
        second = (await running.submit(depends_on=[first]))["job_id"]
        await running.post(f"/api/jobs/{second}/cancel")
        again = await running.post(f"/api/jobs/{second}/retry")
        assert (again["status"], again["explain"]["code"]) == ("blocked", "DEPENDENCY")
        await running.post(f"/api/jobs/{first}/cancel")
        assert (await running.job(again["id"]))["reason"] == "dependency_failed"
        refused = await running.http.post(f"/api/jobs/{again['id']}/retry")
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "$.depends_on")


async def test_a_raised_priority_takes_its_permission_at_submission_and_when_trying_again() -> None:
    async with orchestrator() as running:
        token = await running.token(*MEMBER)
        async with running.as_user(token) as user:
            for priority in (1, "high"):
                body = {"config": CPU_CONFIG, "priority": priority}
                refused = await user.post("/api/queue/submit", json=body)
                assert (refused.status_code, refused.json()["permission"]) == (403, "queue.priority")
            low = await user.post("/api/queue/submit", json={"config": CPU_CONFIG, "priority": "low"})
            job = low.json()["job_id"]
            await running.post(f"/api/queue/{job}/priority", {"priority": "urgent"})
            await user.post(f"/api/jobs/{job}/cancel")
            assert (await user.post(f"/api/jobs/{job}/retry")).json()["priority"] == 0
        assert (await running.post(f"/api/jobs/{job}/retry"))["priority"] == 100


async def with_log(running: Running, text: bytes) -> tuple[Agent, dict[str, Any]]:
    agent = await running.worker()
    await running.submit()
    offer = await agent.take()
    await send_log(agent, offer, 0, text)
    return agent, offer


async def send_log(agent: Agent, offer: dict[str, Any], offset: int, text: bytes) -> None:
    body = {"epoch": offer["epoch"], "offset": offset, "data": base64.b64encode(text).decode()}
    await agent.call(f"job/{offer['job_id']}/logs", body)


async def test_a_log_is_bytes_that_no_browser_will_run() -> None:
    async with orchestrator() as running:
        nasty = b"\xff\x00<script>alert(1)</script>\x1b[2J\n"
        _, offer = await with_log(running, nasty)
        answer = await running.http.get(f"/api/jobs/{offer['job_id']}/logs")
        assert answer.content == nasty
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"].startswith("attachment;")
        assert (answer.headers["x-log-offset"], answer.headers["x-log-size"]) == ("0", str(len(nasty)))


async def test_a_log_is_read_by_pieces_and_by_tail() -> None:
    async with orchestrator() as running:
        lines = b"".join(b"line %d\n" % at for at in range(50_000))
        agent, offer = await with_log(running, lines[:400_000])
        await send_log(agent, offer, 400_000, lines[400_000:] + b"half")
        path = f"/api/jobs/{offer['job_id']}/logs"

        async def read(query: str) -> bytes:
            return (await running.http.get(f"{path}?{query}")).content

        assert await read("tail=2") == b"line 49999\nhalf"
        assert (await read("tail=30001")).startswith(b"line 20000\n")
        assert await read("tail=999999") == lines + b"half"
        assert await read("tail=0") == b""
        assert await read("offset=5&limit=3") == lines[5:8]
        assert await read(f"offset={len(lines)}") == b"half"
        assert await read("offset=99999999") == b""
        assert await read("attempt=1&limit=4") == b"line"
        assert (await running.http.get(f"{path}?attempt=2")).status_code == 404
        assert (await running.http.get(f"{path}?tail=1&offset=1")).status_code == 422
        assert (await running.http.get(f"{path}?tail=-1")).status_code == 422


async def test_a_job_without_any_attempt_has_an_empty_log() -> None:
    async with orchestrator() as running:
        job = await running.submit()
        answer = await running.http.get(f"/api/jobs/{job['job_id']}/logs")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_a_followed_log_grows_until_the_attempt_ends() -> None:
    async with orchestrator() as running:
        agent, offer = await with_log(running, b"one\n")
        seen = bytearray()

        async def follow() -> None:
            path = f"/api/jobs/{offer['job_id']}/logs?follow=1"
            async with running.http.stream("GET", path, timeout=10) as answer:
                async for chunk in answer.aiter_bytes():
                    seen.extend(chunk)

        task = asyncio.create_task(follow())
        await until(lambda: b"one" in seen)
        await send_log(agent, offer, 4, b"two\n")
        await until(lambda: b"two" in seen)
        assert not task.done()
        await send_log(agent, offer, 8, b"three\n")
        await agent.report(offer, "completed")
        await asyncio.wait_for(task, 3)
        assert seen == b"one\ntwo\nthree\n"


async def test_following_a_waiting_job_begins_when_it_does() -> None:
    async with orchestrator() as running:
        job = await running.submit()
        path = f"/api/jobs/{job['job_id']}/logs?follow=1"

        async def follow() -> bytes:
            return (await running.http.get(path, timeout=10)).content

        task = asyncio.create_task(follow())
        agent = await running.worker()
        offer = await agent.take()
        await send_log(agent, offer, 0, b"at last\n")
        await agent.report(offer, "completed")
        assert await asyncio.wait_for(task, 5) == b"at last\n"


async def test_a_followed_log_comes_as_events_for_those_who_ask() -> None:
    async with orchestrator() as running:
        agent, offer = await with_log(running, "é".encode()[:1])
        path = f"/api/jobs/{offer['job_id']}/logs?follow=1"
        async with running.http.stream(
            "GET", path, timeout=10, headers={"Accept": "text/event-stream"}
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            await send_log(agent, offer, 1, "é".encode()[1:] + b"!\n")
            await agent.report(offer, "completed")
            text = (await answer.aread()).decode()
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert "".join(one.get("text", "") for one in data) == "é!\n"
        assert data[-1] == {"attempt": 1, "outcome": "completed"}


async def test_configs_are_saved_in_versions_and_jobs_keep_their_copy() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.post("/api/queue/concurrency", {"global_running": 0})
        first = await running.http.put("/api/configs/c", json=CPU_CONFIG)
        assert (first.json()["version"], first.json()["changed"]) == (1, True)
        same = await running.http.put("/api/configs/c", json=CPU_CONFIG)
        assert (same.json()["version"], same.json()["changed"]) == (1, False)
        job = await running.submit(config_name="c")
        changed = {**CPU_CONFIG, "settings": {"command": ["false"]}}
        assert (await running.http.put("/api/configs/c", json=changed)).json()["version"] == 2
        assert (await running.get("/api/configs/c"))["settings"] == {"command": ["false"]}
        assert (await running.get("/api/configs/c", version=1))["settings"] == {"command": ["true"]}
        versions = (await running.get("/api/configs/c/versions"))["versions"]
        assert [one["version"] for one in versions] in ([1, 2], [2, 1])
        assert (await running.http.delete("/api/configs/c")).status_code == 200
        assert (await running.http.delete("/api/configs/c")).status_code == 404
        assert (await running.http.get("/api/configs/c")).status_code == 404
        assert (await running.get("/api/configs"))["configs"] == []
        await running.post("/api/queue/concurrency", {"global_running": None})
        assert (await agent.offer())["config"] == {"command": ["true"]}
        assert (await running.job(job["job_id"]))["config_version"] == 1


async def test_a_bare_config_json_is_taken_as_settings() -> None:
    async with orchestrator() as running:
        await running.http.put("/api/configs/flux", json={"--model_type": "lora", "num_processes": 2})
        saved = await running.get("/api/configs/flux")
        assert saved["trainer"] == "simpletuner"
        assert saved["settings"] == {"--model_type": "lora", "num_processes": 2}
        assert saved["dataloader"] is None
        assert (await running.get("/api/configs"))["configs"][0]["name"] == "flux"


async def test_bad_configs_are_field_errors() -> None:
    async with orchestrator() as running:
        bad: list[tuple[str, Any]] = [
            ("c", {"settings": {}, "trainr": "x"}),
            ("c", {"settings": {}, "trainer": "command"}),
            ("c", {"settings": {}, "files": {"../x": "y"}}),
            ("c", {"settings": {}, "env": {"SIMPLETUNER_X": "y"}}),
            ("c", {"num_processes": "two"}),
            ("c", [1]),
            ("-c", {}),
        ]
        for name, body in bad:
            answer = await running.http.put(f"/api/configs/{name}", json=body)
            assert answer.status_code == 422, body
        assert (await running.http.put("/api/configs/a%2Fb", json={})).status_code == 404


async def test_watchers_are_told_what_changed_and_nothing_they_may_not_see() -> None:
    async with orchestrator() as running:
        everything = await read_events(running.http, "/api/events")
        token = await running.token("jobs.read")
        async with running.as_user(token) as user:
            jobs_only = await read_events(user, "/api/events")
            await everything.events.next("ready")
            await running.worker()
            job = await running.submit()
            with_state_for_people = [(await everything.events.next("worker"))["status"] for _ in range(2)]
            assert with_state_for_people == ["connecting", "idle"]
            for reading in (everything, jobs_only):
                event = await reading.events.next("job")
                assert event["id"] == job["job_id"]
            assert jobs_only.events.of_kind("worker") == []
            await jobs_only.close()
        await everything.close()


async def test_of_the_audit_log_they_are_told_who_may_read_it() -> None:
    async with orchestrator() as running:
        auditor = await running.token("jobs.read", "admin.audit", name="auditor")
        keeper = await running.token("jobs.read", "admin.workers", name="keeper")
        async with running.as_user(auditor) as first, running.as_user(keeper) as second:
            reads, does_not = (
                await read_events(first, "/api/events"),
                await read_events(second, "/api/events"),
            )
            for reading in (reads, does_not):
                await reading.events.next("ready")
            refused = await running.http.post(
                "/api/workers/register", json={"name": "x"}, headers={"x-worker-token": "wrong"}
            )
            assert refused.status_code == 401
            assert (await reads.events.next("audit"))["event_type"] == "worker.registration_failed"
            await running.worker()
            await does_not.events.next("worker")
            assert does_not.events.of_kind("audit") == []
            await reads.close()
            await does_not.close()


async def test_one_caller_cannot_hold_endless_event_streams() -> None:
    async with orchestrator() as running:
        running.deps.watching.by_caller["t_admin"] = 64
        answer = await running.http.get("/api/events")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "10"
