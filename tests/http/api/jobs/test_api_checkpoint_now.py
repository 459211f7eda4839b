"""A checkpoint or a validation asked for by the API: told to the worker until it is done, refused where nobody can ask."""

from typing import Any

from simpletuner_fleet.web import routes
from tests.http.api_kit import Agent, Running, orchestrator


async def trains(running: Running, **facts: Any) -> tuple[Agent, dict[str, Any]]:
    worker = await running.worker(**facts)
    await running.submit()
    offer = await worker.take()
    await worker.report(offer, "running", progress={"step": 30})
    return worker, offer


async def test_the_worker_is_told_at_once_with_its_heartbeats_and_when_it_comes_back() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        worker, offer = await trains(running, saves_on_request=["command"])
        job_id = offer["job_id"]
        page = await running.http.get(f"/jobs/{job_id}")
        assert f"POST /api/jobs/{job_id}/checkpoint" in page.text
        job = await running.post(f"/api/jobs/{job_id}/checkpoint")
        assert job["status"] == "running"
        assert job["checkpoint_requested_at"] is not None
        order = await worker.events.next("checkpoint_now")
        assert (order["job_id"], order["epoch"], order["attempt"]) == (job_id, offer["epoch"], 1)
        (again,) = (await worker.heartbeat(offer))["save"]
        assert again == order
        await running.post(f"/api/jobs/{job_id}/checkpoint")
        (same,) = (await worker.heartbeat(offer))["save"]
        assert same == order, "asking twice is one wish"
        held = [{"job_id": job_id, "epoch": offer["epoch"]}]
        back = await worker.register(saves_on_request=["command"], attempts=held)
        assert back["save"] == [order]
        events = (await running.get(f"/api/jobs/{job_id}/events"))["events"]
        assert [one["event_type"] for one in events].count("job.checkpoint_requested") == 1
        page = await running.http.get(f"/jobs/{job_id}")
        assert f"POST /api/jobs/{job_id}/checkpoint" not in page.text
        assert "Checkpoint requested" in page.text


async def test_who_cannot_be_asked_is_told_so() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        _, offer = await trains(running)
        path = f"/api/jobs/{offer['job_id']}/checkpoint"
        refused = await running.http.post(path)
        assert refused.status_code == 409
        assert refused.json()["code"] == "cannot_save_now"
        assert "too old" in refused.json()["detail"]
        assert (await running.job(offer["job_id"]))["checkpoint_requested_at"] is None
        page = await running.http.get(f"/jobs/{offer['job_id']}")
        assert page.status_code == 200
        assert path not in page.text
        waiting = (await running.submit(worker_labels={"nobody": "has"}))["job_id"]
        refused = await running.http.post(f"/api/jobs/{waiting}/checkpoint")
        assert (refused.status_code, refused.json()["code"]) == (409, "wrong_job_state")


async def test_a_validation_is_told_until_the_worker_says_that_its_trainer_was_asked() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        worker, offer = await trains(running, validates_on_request=["command"])
        path = f"/api/jobs/{offer['job_id']}/validate"
        assert f"POST {path}" in (await running.http.get(f"/jobs/{offer['job_id']}")).text
        assert (await running.post(path))["validation_requested_at"] is not None
        order = await worker.events.next("validate_now")
        assert (order["job_id"], order["epoch"], order["attempt"]) == (offer["job_id"], offer["epoch"], 1)
        assert (await worker.heartbeat(offer))["validate"] == [order]
        await running.post(path)
        assert (await worker.heartbeat(offer))["validate"] == [order], "asking twice is one wish"
        assert "Validation requested" in (await running.http.get(f"/jobs/{offer['job_id']}")).text
        await worker.report(offer, "running", validation_asked_at=order["asked_at"] - 1)
        assert (await worker.heartbeat(offer))["validate"] == [order], "that was another one"
        for _ in range(2):
            await worker.report(offer, "running", validation_asked_at=order["asked_at"])
            assert (await worker.heartbeat(offer))["validate"] == []
        job = await running.job(offer["job_id"])
        assert (job["status"], job["validation_requested_at"], job["progress"]["step"]) == (
            "running",
            None,
            30,
        )
        events = (await running.get(f"/api/jobs/{offer['job_id']}/events"))["events"]
        assert [one["event_type"] for one in events].count("job.validation_requested") == 1


async def test_who_cannot_be_asked_to_validate_is_told_so_and_is_never_sent_it() -> None:
    async with orchestrator(pages=routes.ROUTES) as running:
        worker, offer = await trains(running, validates_on_request=["command"])
        job_id = offer["job_id"]
        await running.post(f"/api/jobs/{job_id}/validate")
        held = [{"job_id": job_id, "epoch": offer["epoch"]}]
        older = await worker.register(attempts=held)
        assert older["validate"] == [], "an older agent has taken its place"
        assert (await worker.heartbeat(offer))["validate"] == []
        refused = await running.http.post(f"/api/jobs/{job_id}/validate")
        assert (refused.status_code, refused.json()["code"]) == (409, "cannot_validate_now")
        assert "too old" in refused.json()["detail"]
        await worker.register(attempts=held, validates_on_request=[])
        refused = await running.http.post(f"/api/jobs/{job_id}/validate")
        assert "cannot be asked to validate" in refused.json()["detail"]
        page = (await running.http.get(f"/jobs/{job_id}")).text
        assert "cannot be asked to validate" in page
        assert f"POST /api/jobs/{job_id}/validate" not in page
