"""A waiting job is edited in place, a checkpoint is pinned, a view is saved, and the palette finds what is named."""

from msgspec.structs import replace

from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.storage.sweeping.retention import empty_old_jobs_once
from tests.http.api_kit import orchestrator


async def test_a_waiting_job_is_edited_and_starts_where_it_fits_now() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=1)
        job = (await running.submit(gpus=4, name="big"))["job_id"]
        assert (await running.job(job))["explain"]["code"] == "GPU_COUNT_TOO_LARGE"
        assert await running.get("/api/jobs", reason="GPU_COUNT_TOO_LARGE")
        edited = await running.http.patch(f"/api/jobs/{job}", json={"gpus": 1, "name": None})
        assert edited.status_code == 200, edited.text
        assert (edited.json()["requires"]["gpus"], edited.json()["name"]) == (1, None)
        offer = await agent.take()
        assert offer["job_id"] == job
        late = await running.http.patch(f"/api/jobs/{job}", json={"gpus": 2})
        assert (late.status_code, late.json()["code"]) == (409, "wrong_job_state")
        events = (await running.get(f"/api/jobs/{job}/events"))["events"]
        changed = next(one["details"]["changed"] for one in events if one["event_type"] == "job.edited")
        assert changed == {"gpus": 1, "name": None}


async def test_a_job_runs_on_no_machine_that_costs_more_than_it_allows() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=2, name="dear")
        rule = await running.post("/api/prices", {"price_micros": 2_000_000, "gpu": "*"})
        job, other = [(await running.submit(max_price_micros=3_000_000))["job_id"] for _ in range(2)]
        explained = (await running.job(job))["explain"]
        assert explained["code"] == "TOO_DEAR"
        assert explained["sentence"] == (
            "every worker that fits costs more than the job allows: dear costs 4.00 USD an hour, and the job allows 3.00 USD"
        )
        dry = await running.submit(max_price_micros=3_000_000, dry_run=True)
        assert dry["would_start_now"] is False
        edited = await running.http.patch(f"/api/jobs/{job}", json={"max_price_micros": 4_000_000})
        assert edited.json()["requires"]["max_price_micros"] == 4_000_000
        first = await agent.take()
        assert first["job_id"] == job
        await agent.report(first, "completed")
        assert (await running.job(other))["status"] == "queued"
        await running.http.delete(f"/api/prices/{rule['id']}")
        assert (await agent.take())["job_id"] == other, "nobody says any more that it costs that much"


async def test_an_edit_obeys_the_rules_of_a_submission() -> None:
    async with orchestrator() as running:
        job = (await running.submit(worker_labels={"rack": "r1"}))["job_id"]
        for wrong in (
            {"gpus": -1},
            {"max_retries": 10**6},
            {"name": ""},
            {"priority": 10**6},
            {"colour": "red"},
        ):
            answer = await running.http.patch(f"/api/jobs/{job}", json=wrong)
            assert answer.status_code == 422, wrong
        same = await running.http.patch(f"/api/jobs/{job}", json={"worker_labels": {"rack": "r1"}})
        assert same.status_code == 200
        kinds = [one["event_type"] for one in (await running.get(f"/api/jobs/{job}/events"))["events"]]
        assert "job.edited" not in kinds
        freed = await running.http.patch(f"/api/jobs/{job}", json={"worker_labels": {}})
        assert freed.json()["requires"]["worker_labels"] == {}


async def test_a_pinned_checkpoint_outlives_its_job() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = (await running.submit())["job_id"]
        offer = await agent.take()
        attempt = (await running.get(f"/api/jobs/{job}/attempts"))["attempts"][0]
        await agent.report(offer, "completed")
        plain = StoredManifest(
            id="m_1",
            job_id=job,
            attempt_id=attempt["id"],
            attempt_number=1,
            epoch=attempt["epoch"],
            kind="checkpoint",
            name="checkpoint-1",
            step=1,
            files=(),
            total_bytes=0,
            created_at=1.0,
            worker_name="gpu-1",
        )

        def both(tx: object) -> None:
            tx.add_manifest(plain)  # type: ignore[attr-defined]
            tx.add_manifest(replace(plain, id="m_2", name="checkpoint-2", step=2))  # type: ignore[attr-defined]

        await running.fleet.store.write(both)
        path = f"/api/jobs/{job}/artifacts/m_1/pin"
        assert (await running.http.put(path)).json()["pinned_by"]
        assert (await running.http.put(f"/api/jobs/{job}/artifacts/m_none/pin")).status_code == 404
        running.fleet.policy = replace(running.fleet.policy, jobs_keep_days=1.0)
        running.clock.at += 3 * 86_400
        assert await empty_old_jobs_once(running.deps.storage) == 1
        kept = (await running.get(f"/api/jobs/{job}/artifacts"))["manifests"]
        assert [one["id"] for one in kept] == ["m_1"]
        assert (await running.http.delete(path)).status_code == 200
        assert (await running.get(f"/api/jobs/{job}/artifacts"))["manifests"] == []


async def test_views_are_kept_by_name_for_whoever_saved_them() -> None:
    async with orchestrator() as running:
        saved = await running.http.put(
            "/api/me/views/My%20failures", json={"query": "show=failed&tag=a&cursor=x"}
        )
        assert saved.status_code == 200, saved.text
        views = (await running.get("/api/me/views"))["views"]
        assert [(one["name"], one["query"]) for one in views] == [("My failures", "show=failed&tag=a")]
        assert (await running.http.put("/api/me/views/x", json={"query": "no query"})).status_code == 422
        assert (await running.http.delete("/api/me/views/My%20failures")).status_code == 200
        assert (await running.http.delete("/api/me/views/My%20failures")).status_code == 404
        assert (await running.get("/api/me/views"))["views"] == []


async def test_the_palette_finds_jobs_and_workers_by_a_part_of_their_name() -> None:
    async with orchestrator() as running:
        agent = await running.worker("gpu-nine")
        job = (await running.submit(name="nine lives"))["job_id"]
        items = (await running.get("/api/palette", q="NINE"))["items"]
        assert [(one["kind"], one["id"]) for one in items] == [("job", job), ("worker", agent.id)]
        assert (await running.get("/api/palette"))["items"] == []
