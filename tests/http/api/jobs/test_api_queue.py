"""The queue: submissions with all their options, order, reasons, changes of mind."""

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import CPU_CONFIG, GPU_CONFIG, Agent, orchestrator


async def test_a_submission_answers_every_field_of_the_contract() -> None:
    async with orchestrator() as running:
        await running.save_config("my-training-config", GPU_CONFIG)
        answer = await running.submit(config_name="my-training-config", target="worker")
        assert answer["success"] is True
        assert answer["status"] == "queued"
        assert answer["queue_position"] == 1
        assert answer["allocated_worker_id"] is None
        assert answer["allocated_gpus"] == []
        assert answer["explain"]["code"] == "NO_WORKERS"
        assert answer["explain"]["class"] == "admin"


async def test_an_unknown_config_is_not_found_and_no_config_is_a_field_error() -> None:
    async with orchestrator() as running:
        missing = await running.http.post("/api/queue/submit", json={"config_name": "nope"})
        assert missing.status_code == 404
        assert "configs list" in missing.json()["next"]
        empty = await running.http.post("/api/queue/submit", json={})
        assert empty.status_code == 422
        assert empty.json()["errors"][0]["path"] == "$.config_name"


async def test_the_named_version_of_a_config_runs_whatever_was_saved_since() -> None:
    async with orchestrator() as running:
        for config in (CPU_CONFIG, GPU_CONFIG):
            await running.save_config("c", config)
        older = await running.submit(config_name="c", config_version=1)
        newest = await running.submit(config_name="c")
        assert [answer["config"]["version"] for answer in (older, newest)] == [1, 2]
        missing = await running.http.post("/api/queue/submit", json={"config_name": "c", "config_version": 3})
        assert (missing.status_code, missing.json()["detail"]) == (404, "Config 'c' has no version 3.")
        both = await running.http.post("/api/queue/submit", json={"config": CPU_CONFIG, "config_version": 1})
        assert (both.status_code, both.json()["errors"][0]["path"]) == (422, "$.config_version")


async def test_bad_wishes_are_field_errors_with_their_paths_and_change_nothing() -> None:
    async with orchestrator() as running:
        await running.save_config()
        bad: dict[str, dict[str, Any]] = {
            "$.gpus": {"gpus": -1},
            "$.target": {"target": "moon"},
            "$.priority": {"priority": "soon"},
            "$.max_retries": {"max_retries": 1000},
            "$.time_limit_s": {"time_limit_s": 0},
            "$.depends_on": {"depends_on": ["j_none"]},
            "$.worker_labels[...]": {"worker_labels": {"team": 7}},
            "$.min_vram_gb": {"min_vram_gb": -1},
            "$.gpuz": {"gpuz": 1},
        }
        for path, options in bad.items():
            answer = await running.http.post("/api/queue/submit", json={"config_name": "c", **options})
            assert answer.status_code == 422, options
            assert answer.json()["errors"][0]["path"] == path, answer.json()
        assert (await running.get("/api/jobs"))["jobs"] == []


async def test_a_misspelt_wish_is_told_with_a_guess() -> None:
    async with orchestrator() as running:
        body = {"config": CPU_CONFIG, "worker_label": {"team": "nlp"}}
        answer = await running.http.post("/api/queue/submit", json=body)
        assert answer.status_code == 422
        assert "did you mean 'worker_labels'?" in answer.json()["detail"]


async def test_the_same_idempotency_key_gives_the_same_job() -> None:
    async with orchestrator() as running:
        body = {"config": CPU_CONFIG}
        first = await running.http.post("/api/queue/submit", json=body, headers={"Idempotency-Key": "k"})
        again = await running.http.post("/api/queue/submit", json=body, headers={"Idempotency-Key": "k"})
        field = await running.http.post("/api/queue/submit", json={**body, "idempotency_key": "k"})
        assert first.json()["job_id"] == again.json()["job_id"] == field.json()["job_id"]
        assert (first.json()["repeated"], again.json()["repeated"]) == (False, True)
        other = await running.http.post(
            "/api/queue/submit", json={**body, "priority": 5}, headers={"Idempotency-Key": "k"}
        )
        assert other.status_code == 409
        assert other.json()["code"] == "idempotency_mismatch"
        long = await running.http.post("/api/queue/submit", json=body, headers={"Idempotency-Key": "x" * 300})
        assert long.status_code == 422


async def test_no_wait_is_refused_when_nothing_is_free_and_taken_when_something_is() -> None:
    async with orchestrator() as running:
        body = {"config": CPU_CONFIG, "no_wait": True}
        refused = await running.http.post("/api/queue/submit", json=body)
        assert refused.status_code == 409
        assert refused.json()["code"] == "cannot_be_placed"
        assert refused.json()["reason"] == "NO_WORKERS"
        assert (await running.get("/api/jobs"))["jobs"] == []
        await running.worker()
        assert (await running.submit(no_wait=True))["status"] == "dispatched"


async def test_a_dry_run_says_what_would_happen_and_does_nothing() -> None:
    async with orchestrator() as running:
        answer = await running.submit(dry_run=True)
        assert answer["job_id"] is None
        assert answer["dry_run"] is True
        assert answer["would_start_now"] is False
        assert answer["explain"]["code"] == "NO_WORKERS"
        assert (answer["queue_position"], answer["explain"]["ahead"]) == (1, 0)
        await running.worker()
        assert (await running.submit(dry_run=True))["would_start_now"] is True
        assert (await running.get("/api/jobs"))["jobs"] == []


async def test_a_dry_run_counts_who_could_take_the_job_and_who_could_now() -> None:
    async with orchestrator() as running:
        for name in ("one", "two"):
            await running.worker(gpus=2, name=name)
        await running.worker(gpus=0, name="none")
        asked = {"config": GPU_CONFIG, "gpus": 2}
        answer = await running.submit(dry_run=True, **asked)
        assert (answer["matching_workers"], answer["idle_workers"]) == (2, 2)
        dry_run = await running.submit(**asked)
        assert "matching_workers" not in dry_run
        answer = await running.submit(dry_run=True, **asked)
        assert (answer["matching_workers"], answer["idle_workers"]) == (2, 1)
        assert answer["would_start_now"] is True


async def test_a_dry_run_names_the_place_that_the_job_would_get() -> None:
    async with orchestrator() as running:
        await running.submit()
        foreseen = await running.submit(dry_run=True)
        dry_run = await running.submit()
        assert foreseen["queue_position"] == dry_run["queue_position"] == 2
        assert foreseen["explain"]["ahead"] == dry_run["explain"]["ahead"] == 1


async def test_a_dry_run_knows_that_a_limit_is_reached() -> None:
    async with orchestrator() as running:
        await running.worker()
        await running.post("/api/queue/concurrency", {"global_running": 0})
        answer = await running.submit(dry_run=True)
        assert answer["would_start_now"] is False
        assert answer["explain"]["code"] == "QUOTA_GLOBAL"


async def test_who_must_start_now_is_answered_as_if_all_who_are_left_to_place_were_placed() -> None:
    """One step places so many alone: a worker that is free until the next is not free for whoever comes between."""
    async with orchestrator(policy=Policy(placed_at_once=1)) as running:
        await running.post("/api/queue/concurrency", {"global_running": 0})
        for name in ("one", "two", "three"):
            await running.worker(name=name)
            await running.submit()
        await running.post("/api/queue/concurrency", {"global_running": None})
        assert (await running.get("/api/queue/stats"))["by_status"]["queued"] == 2
        assert (await running.submit(dry_run=True))["would_start_now"] is False
        assert (await running.get("/api/queue/stats"))["by_status"].get("queued", 0) == 0
        await running.worker(name="four")
        assert (await running.submit(no_wait=True))["status"] == "dispatched"


async def test_a_request_nobody_could_ever_satisfy_is_accepted_and_says_so() -> None:
    async with orchestrator() as running:
        await running.worker(gpus=2)
        answer = await running.submit(config=GPU_CONFIG, gpus=8)
        assert answer["success"] is True
        assert answer["explain"]["code"] == "GPU_COUNT_TOO_LARGE"
        assert answer["explain"]["params"]["largest"] == 2
        assert "num_processes" in answer["explain"]["fixes"][0]


async def test_a_worker_that_never_came_is_not_taken_for_one_without_gpus() -> None:
    async with orchestrator() as running:
        await running.create_worker()
        answer = await running.submit(config=GPU_CONFIG)
        assert answer["explain"]["code"] == "NO_WORKERS"
        assert (await running.get(f"/api/jobs/{answer['job_id']}/explain"))["code"] == "NO_WORKERS"


async def test_gpus_come_from_num_processes_with_or_without_dashes() -> None:
    async with orchestrator() as running:
        await running.worker(gpus=4)
        for settings in ({"num_processes": 2}, {"--num_processes": "2"}):
            job = await running.submit(config={**settings, "model": "sd"})
            assert (await running.job(job["job_id"]))["requires"]["gpus"] == 2
            await running.post(f"/api/queue/{job['job_id']}/cancel")


async def test_label_globs_choose_the_worker() -> None:
    async with orchestrator() as running:
        created = await running.create_worker("a", labels={"gpu_type": "A100-80GB", "team": "nlp"})
        wanted = Agent(running, created)
        await wanted.register()
        await wanted.open_stream()
        await running.worker("b")
        job = await running.submit(worker_labels={"gpu_type": "a100*", "team": "nlp"})
        assert job["allocated_worker_id"] == wanted.id
        none = await running.submit(worker_labels={"gpu_type": "h100*"})
        assert none["explain"]["code"] == "LABELS_MATCH_NONE"
        assert none["explain"]["params"]["unmatched"] == ["gpu_type"]


async def test_the_queue_is_in_scheduling_order_and_comes_in_pages() -> None:
    async with orchestrator() as running:
        ids = [(await running.submit(priority=priority))["job_id"] for priority in (0, 0, 5, "low")]
        expected = [ids[2], ids[0], ids[1], ids[3]]
        seen: list[str] = []
        positions: list[int] = []
        cursor: str | None = None
        while True:
            page = await running.get("/api/queue", limit=2, **({"cursor": cursor} if cursor else {}))
            seen += [job["id"] for job in page["jobs"]]
            positions += [job["queue_position"] for job in page["jobs"]]
            assert all(job["explain"]["code"] == "NO_WORKERS" for job in page["jobs"])
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == expected
        assert positions == [1, 2, 3, 4]
        where = await running.get(f"/api/queue/position/{ids[1]}")
        assert where == {
            "job_id": ids[1],
            "status": "queued",
            "queue_position": 3,
            "position": 3,
            "priority": 0,
            "queued_at": (await running.get(f"/api/jobs/{ids[1]}"))["created_at"],
            "estimated_wait_seconds": None,
        }
        assert (await running.http.get("/api/queue?cursor=pwned")).status_code == 422
        assert (await running.http.get("/api/queue?limit=0")).status_code == 422


async def test_a_priority_moves_a_job_and_places_it_when_it_can_run() -> None:
    async with orchestrator() as running:
        first, second = await running.submit(), await running.submit()
        moved = await running.post(f"/api/queue/{second['job_id']}/priority", {"priority": "high"})
        assert (moved["priority"], moved["queue_position"]) == (10, 1)
        agent = await running.worker()
        assert (await agent.offer())["job_id"] == second["job_id"]
        assert (await running.job(first["job_id"]))["status"] == "queued"
        await running.post(f"/api/queue/{second['job_id']}/cancel")
        gone = await running.http.post(f"/api/queue/{second['job_id']}/priority", json={"priority": 1})
        assert gone.status_code == 409


async def test_stats_count_by_state_and_by_reason() -> None:
    async with orchestrator() as running:
        await running.submit()
        await running.submit(config=GPU_CONFIG)
        stats = await running.get("/api/queue/stats")
        assert stats["by_state"]["queued"] == 2
        assert stats["by_state"]["running"] == 0
        assert stats["by_reason"] == {"NO_WORKERS": 2}
        assert stats["total"] == 2


async def test_me_shows_the_callers_own_jobs_alone() -> None:
    async with orchestrator() as running:
        await running.submit()
        token = await running.token("queue.submit", "queue.submit.command", "queue.read")
        async with running.as_user(token) as user:
            mine = (await user.post("/api/queue/submit", json={"config": CPU_CONFIG})).json()
            page = (await user.get("/api/queue/me")).json()
            assert [job["id"] for job in page["jobs"]] == [mine["job_id"]]
            assert (await user.get("/api/queue/me?status=running")).json()["jobs"] == []


async def test_ones_own_queue_is_counted_and_the_wait_of_those_that_began_is_told() -> None:
    async with orchestrator() as running:
        assert (await running.get("/api/queue/stats"))["avg_wait_seconds"] is None
        await running.submit()
        token = await running.token("queue.submit", "queue.submit.command", "queue.read")
        async with running.as_user(token) as user:
            for _ in range(2):
                await user.post("/api/queue/submit", json={"config": CPU_CONFIG})
            own = (await user.get("/api/queue/me")).json()
            assert (own["pending_count"], own["running_count"], own["best_position"]) == (2, 0, 2)
            assert own["counts"] == {**{str(state): 0 for state in JobState}, "queued": 2}
            running.clock.at += 30
            await running.worker(max_jobs=2)
            own = (await user.get("/api/queue/me?status=queued")).json()
            assert (own["pending_count"], own["running_count"], own["best_position"]) == (1, 1, 1)
            assert len(own["jobs"]) == 1
        assert (await running.get("/api/queue/stats"))["avg_wait_seconds"] == 30.0


async def test_a_cancel_ends_a_waiting_job_and_is_refused_for_an_ended_one() -> None:
    async with orchestrator() as running:
        job = await running.submit()
        assert (await running.post(f"/api/queue/{job['job_id']}/cancel"))["status"] == "cancelled"
        again = await running.http.post(f"/api/queue/{job['job_id']}/cancel")
        assert again.status_code == 409
        assert (await running.http.post("/api/queue/j_none/cancel")).status_code == 404


async def test_an_approval_lets_a_job_run_and_a_rejection_ends_it() -> None:
    async with orchestrator(policy=Policy(require_approval=True)) as running:
        agent = await running.worker()
        token = await running.token("queue.submit", "queue.submit.command", "queue.read", "jobs.read")
        async with running.as_user(token) as user:
            jobs = [
                (await user.post("/api/queue/submit", json={"config": CPU_CONFIG})).json() for _ in range(2)
            ]
            assert [job["status"] for job in jobs] == ["blocked", "blocked"]
            assert jobs[0]["explain"]["code"] == "APPROVAL_REQUIRED"
            refused = await user.post(f"/api/queue/{jobs[0]['job_id']}/approve")
            assert refused.status_code == 403
            assert refused.json()["permission"] == "queue.approve"
        await running.post(f"/api/queue/{jobs[0]['job_id']}/approve")
        assert (await agent.offer())["job_id"] == jobs[0]["job_id"]
        rejected = await running.post(f"/api/queue/{jobs[1]['job_id']}/reject", {"reason": "too dear"})
        assert (rejected["status"], rejected["reason"], rejected["error"]) == (
            "cancelled",
            "rejected",
            "rejected by admin: too dear",
        )
        again = await running.http.post(f"/api/queue/{jobs[0]['job_id']}/approve")
        assert again.status_code == 409


async def test_a_job_waits_for_those_it_depends_on() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        first = await running.submit()
        offer = await agent.take()
        second = await running.submit(depends_on=[first["job_id"]])
        assert second["status"] == "blocked"
        assert second["explain"]["code"] == "DEPENDENCY"
        await agent.report(offer, "completed")
        assert (await agent.offer())["job_id"] == second["job_id"]


async def test_limits_hold_jobs_back_and_raising_them_lets_them_go() -> None:
    async with orchestrator() as running:
        one, two = await running.worker("one"), await running.worker("two")
        unset = await running.get("/api/queue/concurrency")
        share = {"enable_fair_share": False, "fair_share_half_life_s": 604_800.0}
        limits = ("global_running", "user_running", "team_running")
        documented = ("max_concurrent", "user_max_concurrent", "team_max_concurrent")
        assert unset == {**dict.fromkeys((*limits, *documented)), **share, "success": True}
        set_to = await running.post("/api/queue/concurrency", {"global_running": 1})
        assert set_to == {**unset, "global_running": 1, "max_concurrent": 1}
        await running.submit()
        waiting = await running.submit()
        assert waiting["explain"]["code"] == "QUOTA_GLOBAL"
        await running.post("/api/queue/concurrency", {"user_running": 5, "global_running": None})
        await asyncio.gather(one.offer(), two.offer())
        refused = await running.http.post("/api/queue/concurrency", json={"global_running": -1})
        assert refused.status_code == 422
        token = await running.token("queue.read")
        async with running.as_user(token) as user:
            assert (await user.post("/api/queue/concurrency", json={})).status_code == 403


async def test_target_local_needs_a_permission_and_a_server_that_runs_jobs() -> None:
    async with orchestrator() as running:
        off = await running.http.post("/api/queue/submit", json={"config": CPU_CONFIG, "target": "local"})
        assert off.status_code == 422
        assert "--local" in off.json()["next"]
    async with orchestrator(local_enabled=True) as running:
        on = await running.submit(target="local")
        assert on["explain"]["code"] == "LOCAL_NO_GPU"
        token = await running.token("queue.submit", "queue.submit.command")
        async with running.as_user(token) as user:
            refused = await user.post("/api/queue/submit", json={"config": CPU_CONFIG, "target": "local"})
            assert refused.status_code == 403
            assert refused.json()["permission"] == "queue.submit.local"


async def test_curl_without_a_content_type_is_understood() -> None:
    async with orchestrator() as running:
        await running.save_config("my-config")
        answer = await running.http.post(
            "/api/queue/submit",
            content=b'{"config_name": "my-config", "worker_labels": {"team": "nlp"}}',
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert answer.status_code == 200


async def test_limits_that_are_changed_at_once_are_all_changed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store) as running:
        changes: list[dict[str, Any]] = [
            {"global_running": 7},
            {"user_running": 3},
            {"enable_fair_share": True},
            {"fair_share_half_life_s": 600.0},
        ]
        await asyncio.gather(*(running.post("/api/queue/concurrency", change) for change in changes))
        stored = await running.get("/api/queue/concurrency")
        assert [stored[name] for change in changes for name in change] == [7, 3, True, 600.0]
        refused = await running.http.post(
            "/api/queue/concurrency", json={"global_running": 1, "fair_share_half_life_s": 1.0}
        )
        assert refused.status_code == 422
        assert await running.get("/api/queue/concurrency") == stored, "all of it or nothing"
    await store.close()


async def test_a_position_counts_jobs_that_the_caller_does_not_see() -> None:
    async with orchestrator() as running:
        may = ("queue.submit", "queue.read", "jobs.read", "queue.submit.command")
        ann, tom = await running.token(*may, name="ann"), await running.token(*may, name="tom")
        async with running.as_user(ann) as hidden, running.as_user(tom) as user:

            async def submit(who: Any, times: int, **options: Any) -> list[str]:
                made = []
                for _ in range(times):
                    running.clock.at += 1
                    answer = await who.post("/api/queue/submit", json={"config": CPU_CONFIG, **options})
                    made.append(str(answer.json()["job_id"]))
                return made

            async def positions(path: str, who: Any = user) -> dict[str, int]:
                return {job["id"]: job["queue_position"] for job in (await who.get(path)).json()["jobs"]}

            await submit(hidden, 2, visibility="private")
            first = await submit(user, 1)
            await submit(hidden, 2, visibility="private")
            own = first + await submit(user, 2)
            urgent = await submit(hidden, 1, visibility="private")
            await running.post(f"/api/queue/{urgent[0]}/priority", {"priority": 100})
            true = dict(zip(own, (4, 7, 8), strict=True))
            for job, position in true.items():
                assert (await user.get(f"/api/jobs/{job}")).json()["queue_position"] == position
            for path in ("/api/queue", "/api/jobs?sort=queue&status=queued"):
                assert await positions(path) == true
                page = (await user.get(f"{path}{'&' if '?' in path else '?'}limit=1")).json()
                at = f"{path}{'&' if '?' in path else '?'}cursor={page['next']}"
                assert await positions(at) == {job: true[job] for job in own[1:]}
            assert (await user.get("/api/queue/me")).json()["best_position"] == 4
            seen = await positions("/api/queue", running.http)
            assert list(seen.values()) == list(range(1, 9))


async def test_the_best_position_is_that_of_the_first_in_line_however_many_wait() -> None:
    async with orchestrator() as running:
        first = await running.submit()
        made = await running.fleet.read(lambda view: view.job(first["job_id"]))
        assert made is not None

        def many(transaction: Transaction) -> None:
            for number in range(1, 1_051):
                later = replace(made, id=f"j_{number}", seq=made.seq + number, rank=made.rank + number)
                transaction.tx.add_job(later, b"{}")

        await running.fleet.act(many)
        mine = await running.get("/api/queue/me", limit=1)
        assert (mine["pending_count"], mine["best_position"]) == (1_051, 1)
