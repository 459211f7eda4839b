"""Who may what, and what is written down about it."""

import csv
import io

import msgspec

from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.store import MemoryStore
from tests.http.api_kit import ADMIN, CPU_CONFIG, orchestrator


async def test_whoami_tells_a_token_what_it_may_do() -> None:
    async with orchestrator() as running:
        assert await running.get("/api/whoami") == {
            "id": "t_admin",
            "name": "admin",
            "kind": "token",
            "permissions": ["*"],
        }
        async with running.as_user(await running.token(name="empty")) as user:
            assert (await user.get("/api/whoami")).json()["permissions"] == []
            refused = await user.get("/api/jobs")
            assert refused.status_code == 403
            assert refused.json()["permission"] == "jobs.read"


async def test_a_token_is_shown_once_and_listed_without_its_secret() -> None:
    async with orchestrator() as running:
        made = await running.http.post(
            "/api/admin/tokens", json={"name": "ci", "permissions": ["queue.submit"], "expires_in_s": 60}
        )
        assert made.status_code == 201
        assert made.json()["token"].startswith("st_")
        listed = await running.http.get("/api/admin/tokens")
        assert made.json()["token"] not in listed.text
        assert {"ci", "admin"} == {token["name"] for token in listed.json()["tokens"]}
        async with running.as_user(made.json()["token"]) as user:
            assert (await user.get("/api/whoami")).status_code == 200
            running.clock.at += 61
            assert (await user.get("/api/whoami")).status_code == 401


async def test_a_revoked_token_is_refused_at_once() -> None:
    async with orchestrator() as running:
        made = await running.post("/api/admin/tokens", {"name": "ci", "permissions": ["jobs.read"]})
        async with running.as_user(made["token"]) as user:
            assert (await user.get("/api/jobs")).status_code == 200
            gone = await running.http.delete(f"/api/admin/tokens/{made['id']}")
            assert gone.json()["revoked_at"] is not None
            assert (await user.get("/api/jobs")).status_code == 401
        assert (await running.http.delete("/api/admin/tokens/t_none")).status_code == 404
        assert (await running.http.delete("/api/admin/tokens/t_admin")).status_code == 409


async def test_nobody_gives_away_what_they_do_not_hold() -> None:
    async with orchestrator() as running:
        token = await running.token("admin.tokens", "jobs.read")
        async with running.as_user(token) as user:
            for asked in ("*", "admin.workers"):
                answer = await user.post("/api/admin/tokens", json={"name": "x", "permissions": [asked]})
                assert answer.status_code == 403, asked
            answer = await user.post("/api/admin/tokens", json={"name": "x", "permissions": ["jobs.read"]})
            assert answer.status_code == 201
        for bad in ({"name": "x", "permissions": ["fly"]}, {"name": "", "permissions": []}):
            assert (await running.http.post("/api/admin/tokens", json=bad)).status_code == 422


async def test_every_act_leaves_an_entry_with_its_actor() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.post(f"/api/admin/workers/{agent.id}/token")
        await agent.register(expect=401)
        job = await running.submit()
        await running.post(f"/api/queue/{job['job_id']}/cancel")
        page = await running.get("/api/audit", limit=1000)
        kinds = [entry["event_type"] for entry in page["entries"]]
        for kind in (
            "worker.created",
            "worker.registered",
            "worker.registration_failed",
            "worker.connected",
            "worker.status_changed",
            "worker.token_rotated",
            "job.submitted",
            "job.cancel_requested",
            "job.cancelled",
        ):
            assert kind in kinds, kind
        assert page["total"] == len(page["entries"])
        ids = [entry["id"] for entry in page["entries"]]
        assert ids == sorted(ids, reverse=True)
        created = next(entry for entry in page["entries"] if entry["event_type"] == "worker.created")
        assert (created["actor"], created["actor_id"], created["ip"]) == ("admin", "t_admin", "127.0.0.1")
        assert created["target_id"] == agent.id
        assert len(created["hash"]) == 64


async def test_the_audit_log_is_filtered_and_paged() -> None:
    async with orchestrator() as running:
        first = await running.create_worker("one")
        running.clock.at += 100
        await running.create_worker("two")

        async def total(**query: object) -> int:
            return int((await running.get("/api/audit", **query))["total"])

        assert await total(event_type="worker.created") == 2
        assert await total(event_type="worker.created", since=running.clock.at - 50) == 1
        assert await total(event_type="worker.created", until=running.clock.at - 50) == 1
        assert await total(target_id=first["worker_id"]) == 1
        assert await total(actor_id="t_admin", target_type="worker") == 2
        assert await total(actor_id="t_none") == 0
        saved = await running.http.put("/api/configs/c", json={"trainer": "demo", "settings": {}})
        assert saved.status_code < 300, saved.text
        security = await running.get("/api/audit", event_type="security")
        assert {entry["event_type"] for entry in security["entries"]} >= {"worker.created"}
        assert security["total"] == len(security["entries"]) < await total()
        assert await total(event_type="security", since=running.clock.at - 50) == 1
        page = await running.get("/api/audit", event_type="worker.created", limit=1, offset=1)
        assert page["entries"][0]["target_id"] == first["worker_id"]
        assert page["total"] == 2
        stats = await running.get("/api/audit/stats")
        assert stats["by_type"]["worker.created"] == 2
        assert stats["total"] == sum(stats["by_type"].values())
        assert "job.dispatched" in (await running.get("/api/audit/types"))["types"]
        assert (await running.http.get("/api/audit?limit=0")).status_code == 422
        assert (await running.http.get("/api/audit?since=never")).status_code == 422


async def test_the_audit_log_is_exported_whole_or_filtered_oldest_first() -> None:
    async with orchestrator() as running:
        for number in range(3):
            await running.token("jobs.read", name=f"ci-{number}")
        answer = await running.http.get("/api/audit/export")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
        lines = [msgspec.json.decode(line) for line in answer.content.splitlines()]
        listed = (await running.get("/api/audit"))["entries"]
        assert lines == listed[::-1]
        answer = await running.http.get("/api/audit/export?event_type=token.created&format=csv")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [msgspec.json.decode(row["details"])["name"] for row in rows] == ["ci-0", "ci-1", "ci-2"]
        assert (await running.http.get("/api/audit/export?format=xml")).status_code == 422


async def test_a_name_is_no_formula_in_an_exported_table() -> None:
    async with orchestrator() as running:
        token = await running.token("*", name="=HYPERLINK(1)")
        async with running.as_user(token) as user:
            await user.post("/api/admin/tokens", json={"name": "x", "permissions": []})
        answer = await running.http.get("/api/audit/export?format=csv")
        actors = {row["actor"] for row in csv.DictReader(io.StringIO(answer.text))}
        assert "'=HYPERLINK(1)" in actors
        assert "=HYPERLINK(1)" not in actors


async def test_the_last_use_of_a_token_is_listed() -> None:
    async with orchestrator() as running:
        async with running.as_user(await running.token("jobs.read", name="used")) as user:
            assert (await user.get("/api/whoami")).status_code == 200
        await running.token("jobs.read", name="unused")
        used = {
            token["name"]: token["last_used_at"] is not None
            for token in (await running.get("/api/admin/tokens"))["tokens"]
        }
        assert used == {"admin": True, "used": True, "unused": False}


async def test_verify_finds_nothing_wrong_with_an_honest_log() -> None:
    async with orchestrator() as running:
        for at in range(3):
            await running.create_worker(f"w{at}")
        verified = await running.get("/api/audit/verify")
        assert verified["valid"] is True
        assert verified["checked"] >= 4
        assert verified["problems"] == []


async def test_verify_holds_the_log_against_what_workers_remember() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        head = (await agent.heartbeat())["audit_head"]
        await agent.heartbeat(audit_head=head)
        assert (await running.get("/api/audit/verify"))["valid"] is True
        await agent.heartbeat(audit_head={"seq": 10_000, "hash": "f" * 64})
        cut = await running.get("/api/audit/verify")
        assert cut["valid"] is False
        assert agent.id in cut["problems"][0]["what"]
        running.fleet.witnesses.clear()
        running.fleet.witnesses["w"] = Witness("w", 1, "0" * 64)
        changed = await running.get("/api/audit/verify")
        assert changed["problems"][0]["seq"] == 1


async def test_probes_are_open_and_everything_else_is_not() -> None:
    async with orchestrator() as running, running.as_user(None) as nobody:
        assert (await nobody.get("/health/live")).json()["status"] == "live"
        assert (await nobody.get("/health/ready")).json()["status"] == "ready"
        assert (await nobody.get("/openapi.json")).status_code == 200
        assert (await nobody.get("/api/jobs")).status_code == 401
        assert (await nobody.get("/api/nothing")).status_code == 404


async def test_a_store_that_cannot_write_is_not_ready() -> None:
    async with orchestrator(MemoryStore()) as running:
        store = running.fleet.store
        assert isinstance(store, MemoryStore)
        store.fail_next_commits(2)
        async with running.as_user(None) as nobody:
            answer = await nobody.get("/health/ready")
            assert answer.status_code == 503
            assert answer.json()["code"] == "store_unavailable"
            assert (await nobody.get("/health/live")).status_code == 200
            assert (await nobody.get("/health/ready")).status_code == 503
            assert (await nobody.get("/health/ready")).status_code == 200


async def test_metrics_are_for_this_machine_for_tokens_or_for_all_if_told_so() -> None:
    async with orchestrator() as running:
        await running.worker()
        await running.submit()
        page = (await running.http.get("/metrics")).text
        assert 'simpletuner_workers{status="busy"} 1.0' in page
        assert 'simpletuner_jobs{state="dispatched"} 1.0' in page
        assert "simpletuner_dispatch_seconds_count 1.0" in page
        assert "simpletuner_worker_streams 1.0" in page
        assert "process_resident_memory_bytes" in page
        async with running.as_user(None) as nobody:
            assert (await nobody.get("/metrics")).status_code == 200
            through_a_proxy = await nobody.get("/metrics", headers={"X-Forwarded-For": "10.0.0.1"})
            assert through_a_proxy.status_code == 401
            by_token = await nobody.get(
                "/metrics", headers={"X-Forwarded-For": "10.0.0.1", "Authorization": f"Bearer {ADMIN}"}
            )
            assert by_token.status_code == 200
    async with orchestrator(metrics_public=True) as running, running.as_user(None) as nobody:
        assert (await nobody.get("/metrics", headers={"X-Forwarded-For": "10.0.0.1"})).status_code == 200


async def test_loopback_is_trusted_only_when_told_and_never_a_browser() -> None:
    async with orchestrator() as running, running.as_user(None) as nobody:
        assert (await nobody.get("/api/jobs")).status_code == 401
    async with (
        orchestrator(settings=EdgeSettings(trust_loopback=True)) as running,
        running.as_user(None) as nobody,
    ):
        assert (await nobody.get("/api/whoami")).json()["kind"] == "loopback"
        browser = await nobody.post(
            "/api/queue/submit", json={"config": CPU_CONFIG}, headers={"Origin": "http://evil.example"}
        )
        assert browser.status_code in (401, 403)


async def test_refused_registrations_are_noted_a_few_times_and_not_for_ever() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        for _ in range(20):
            await agent.register(max_jobs=0, expect=422)
        failed = await running.get("/api/audit", event_type="worker.registration_failed")
        assert 1 <= failed["total"] <= 6
