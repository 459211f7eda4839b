"""Administration of workers, with every edge case of the documents."""

import re

from simpletuner_fleet.core.policy import Policy
from tests.http.api_kit import Agent, orchestrator


async def test_creating_a_worker_answers_what_the_documents_print() -> None:
    async with orchestrator() as running:
        answer = await running.http.post(
            "/api/admin/workers",
            json={
                "name": "gpu-worker-1",
                "worker_type": "persistent",
                "labels": {"location": "datacenter-a", "gpu_type": "a100"},
            },
        )
        assert answer.status_code == 201
        created = answer.json()
        assert re.fullmatch(r"w_[0-9A-Za-z]+", created["worker_id"])
        assert re.fullmatch(r"wt_[0-9A-Za-z]{49}", created["token"])
        assert created["name"] == "gpu-worker-1"
        assert created["connection_command"] == (
            f"simpletuner-fleet worker --orchestrator-url {running.listening.url}"
            f" --worker-token {created['token']} --name gpu-worker-1 --persistent"
        )


async def test_the_connection_command_repeats_every_choice_made() -> None:
    async with orchestrator(public_url="https://fleet.example", fingerprint="sha256:ab") as running:
        created = await running.create_worker("spot-1", worker_type="ephemeral")
        assert created["connection_command"] == (
            f"simpletuner-fleet worker --orchestrator-url https://fleet.example"
            f" --worker-token {created['token']} --name spot-1 --ssl-fingerprint sha256:ab"
        )


async def test_the_token_never_appears_again() -> None:
    async with orchestrator() as running:
        created = await running.create_worker()
        for path in ("/api/admin/workers", f"/api/admin/workers/{created['worker_id']}", "/api/audit"):
            answer = await running.http.get(path)
            assert created["token"] not in answer.text
            assert "token_hash" not in answer.text


async def test_names_are_unique_among_living_workers() -> None:
    async with orchestrator() as running:
        created = await running.create_worker("gpu-1")
        for name in ("gpu-1", "GPU-1"):
            taken = await running.http.post("/api/admin/workers", json={"name": name})
            assert taken.status_code == 409
            assert taken.json()["code"] == "name_taken"
        await running.http.delete(f"/api/admin/workers/{created['worker_id']}")
        await running.create_worker("gpu-1")


async def test_a_name_that_could_be_a_path_and_a_misspelt_field_are_refused() -> None:
    async with orchestrator() as running:
        for name in ("../etc", "a/b", "", "x" * 129, "a\nb"):
            assert (await running.http.post("/api/admin/workers", json={"name": name})).status_code == 422
        misspelt = await running.http.post("/api/admin/workers", json={"name": "a", "label": {}})
        assert misspelt.status_code == 422
        assert "did you mean 'labels'?" in misspelt.json()["detail"]
        assert (await running.get("/api/admin/workers")) == {"workers": []}


async def test_the_list_has_every_field_of_the_documents() -> None:
    async with orchestrator() as running:
        await running.worker(gpus=2)
        (row,) = (await running.get("/api/admin/workers"))["workers"]
        assert {
            "id",
            "name",
            "status",
            "worker_type",
            "gpu_count",
            "gpu_name",
            "labels",
            "last_heartbeat",
        } <= set(row)
        assert {
            "drain_note",
            "reported_labels",
            "token_created_at",
            "token_age_days",
            "token_warning",
        } <= set(row)
        assert {"attempts", "version", "connection"} <= set(row)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["last_heartbeat"])


async def test_the_list_is_filtered_by_status_and_by_label_globs() -> None:
    async with orchestrator() as running:
        await running.worker("one", gpus=1)
        await running.create_worker("two", labels={"gpu_type": "h100", "team": "nlp"})

        async def names(**query: str) -> list[str]:
            listed = await running.get("/api/admin/workers", **query)
            return sorted(row["name"] for row in listed["workers"])

        assert await names(status="idle") == ["one"]
        assert await names(status="connecting") == ["two"]
        assert await names(label="gpu_type=A1*") == ["one"]
        assert await names(label="gpu_type=*100") == ["one", "two"]
        assert await names(label="team=nlp", status="idle") == []
        for bad in ({"status": "pwned"}, {"label": "team"}):
            assert (await running.http.get("/api/admin/workers", params=bad)).status_code == 422


async def test_drain_is_idempotent_and_resume_undoes_it() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        path = f"/api/admin/workers/{agent.id}"
        for _ in range(2):
            assert (await running.post(f"{path}/drain"))["status"] == "draining"
        job = await running.submit()
        assert job["status"] == "queued"
        assert job["explain"]["code"] == "ALL_MATCHING_DRAINING"
        assert (await running.post(f"{path}/resume"))["status"] in ("idle", "busy")
        assert (await agent.offer())["job_id"] == job["job_id"]
        drained = [
            entry
            for entry in (await running.get("/api/audit", event_type="worker.drained"))["entries"]
            if entry["target_id"] == agent.id
        ]
        assert len(drained) == 1


async def test_a_draining_worker_finishes_its_job_and_stays() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        assert (await running.post(f"/api/admin/workers/{agent.id}/drain"))["status"] == "draining"
        await agent.report(offer, "completed")
        assert (await running.job(job["job_id"]))["status"] == "completed"
        assert (await running.get(f"/api/admin/workers/{agent.id}"))["status"] == "draining"


async def test_a_drain_takes_an_unaccepted_offer_back() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.offer()
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        assert (await running.job(job["job_id"]))["status"] == "queued"
        await agent.accept(offer, expect=409)


async def test_only_an_offline_worker_can_be_deleted() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        path = f"/api/admin/workers/{agent.id}"
        refused = await running.http.delete(path)
        assert refused.status_code == 409
        assert refused.json()["code"] == "worker_not_offline"
        assert "idle" in refused.json()["detail"]
        await agent.call("disconnect", {})
        assert (await running.http.delete(path)).json() == {"success": True, "id": agent.id}
        assert (await running.http.delete(path)).status_code == 404


async def test_a_worker_that_never_came_can_be_deleted() -> None:
    async with orchestrator() as running:
        created = await running.create_worker()
        assert (await running.http.delete(f"/api/admin/workers/{created['worker_id']}")).status_code == 200


async def test_labels_are_replaced_and_the_queue_follows() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit(worker_labels={"team": "nlp"})
        assert job["explain"]["code"] == "LABELS_MATCH_NONE"
        changed = await running.http.patch(f"/api/admin/workers/{agent.id}", json={"labels": {"team": "NLP"}})
        assert changed.json()["labels"] == {"team": "NLP"}
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_an_old_token_is_warned_about() -> None:
    async with orchestrator(policy=Policy(token_warn_age_s=10 * 86_400)) as running:
        created = await running.create_worker()
        path = f"/api/admin/workers/{created['worker_id']}"
        assert (await running.get(path))["token_warning"] is None
        running.clock.at += 11 * 86_400
        old = await running.get(path)
        assert old["token_age_days"] == 11
        assert "rotate-token" in old["token_warning"]
        await running.post(f"{path}/token")
        assert (await running.get(path))["token_warning"] is None


async def test_an_ephemeral_worker_is_cleaned_up_an_hour_after_it_went_and_its_token_dies_with_it() -> None:
    async with orchestrator(policy=Policy(ephemeral_ttl_s=60)) as running:
        agent = Agent(running, await running.create_worker("spot", worker_type="ephemeral"))
        await agent.register(persistent=False)
        await agent.heartbeat()
        await agent.call("disconnect", {})
        stays = await running.worker("stays")
        await stays.call("disconnect", {})
        await running.pass_time(64)
        assert [row["name"] for row in (await running.get("/api/admin/workers"))["workers"]] == ["stays"]
        await agent.heartbeat(expect=401)
        await agent.register(expect=401)


async def test_unknown_workers_are_not_found() -> None:
    async with orchestrator() as running:
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/drain"),
            ("POST", "/resume"),
            ("POST", "/token"),
        ):
            answer = await running.http.request(method, f"/api/admin/workers/w_none{path}")
            assert answer.status_code == 404, path
