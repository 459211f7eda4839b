"""A hostile job: it keeps what it found, outlives its end, and writes where it has no turn any more."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.training.checkpoint import LEFT_BEHIND_S
from simpletuner_fleet.http.access.auth import LAST_REPORT_S
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import STATE, WEIGHTS, Uploader, uploading

MODEL = {"model.safetensors": WEIGHTS}
FORGED = {"model.safetensors": b"not the model"}


async def finished(running: Running) -> tuple[Uploader, Uploader]:
    """A job that ended well with its model stored: as its worker sees it, and as whoever kept its token does."""
    worker = await uploading(running)
    thief = Uploader(worker.agent, worker.offer, {"X-Upload-Token": worker.offer["upload_token"]})
    thief.agent = Agentless(running, worker.offer["upload_token"])  # type: ignore[assignment]
    await worker.send(*MODEL.values())
    await worker.manifest(None, MODEL, kind="artifact", name="output")
    await worker.agent.report(worker.offer, "completed")
    assert (await running.job(worker.offer["job_id"]))["status"] == "completed"
    return worker, thief


class Agentless:
    """Shows the attempt's own token and nothing else."""

    def __init__(self, running: Running, token: str) -> None:
        self.http = running.as_user(None)
        self.http.headers["X-Upload-Token"] = token
        running.agents.append(self)  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.http.aclose()


async def model_of(running: Running, job_id: str) -> list[Any]:
    stored = (await running.get(f"/api/jobs/{job_id}/artifacts"))["manifests"]
    return [(one["name"], [file["sha256"] for file in one["files"]]) for one in stored]


async def test_the_token_of_an_attempt_that_ended_replaces_no_model() -> None:
    async with orchestrator() as running:
        worker, thief = await finished(running)
        job_id = worker.offer["job_id"]
        before = await model_of(running, job_id)
        forged = FORGED["model.safetensors"]
        assert (await thief.ask(forged, expect=409))["code"] == "attempt_over"
        assert (await thief.put(forged, 0, len(forged), expect=409))["code"] == "attempt_over"
        refused = await thief.manifest(None, FORGED, kind="artifact", name="output", expect=409)
        assert refused["code"] == "attempt_over"
        assert await model_of(running, job_id) == before


async def test_the_token_of_an_attempt_that_ended_adds_neither_log_nor_numbers_nor_notes() -> None:
    async with orchestrator() as running:
        worker, thief = await finished(running)
        epoch, base, http = worker.offer["epoch"], thief.base, thief.agent.http
        log = await http.put(
            f"{base}/logs",
            params={"epoch": epoch, "offset": 0},
            content=b"forged\n",
            headers={"Content-Type": "application/octet-stream"},
        )
        point = {"step": 1, "at": 1.0, "values": {"loss": 0.0}}
        numbers = await http.post(f"{base}/metrics", json={"epoch": epoch, "first": 0, "points": [point]})
        note = {"id": "n", "at": 1.0, "kind": "k", "text": "forged"}
        notes = await http.post(f"{base}/notes", json={"epoch": epoch, "notes": [note]})
        assert [one.status_code for one in (log, numbers, notes)] == [409, 409, 409]
        job_id = worker.offer["job_id"]
        assert (await running.get(f"/api/jobs/{job_id}/metrics"))["total"] == 0
        assert (await running.get(f"/api/jobs/{job_id}/events"))["notes"] == []


async def test_the_token_is_none_at_all_soon_after_the_end() -> None:
    async with orchestrator() as running:
        worker, thief = await finished(running)
        running.clock.at += LAST_REPORT_S + 1
        answer = await thief.agent.http.post(
            f"{thief.base}/status", json={"epoch": worker.offer["epoch"], "status": "completed"}
        )
        assert answer.status_code == 401, answer.text
        assert answer.json()["code"] == "invalid_token"


async def test_not_even_the_worker_replaces_what_an_ended_job_has_stored() -> None:
    async with orchestrator() as running:
        worker, _ = await finished(running)
        job_id = worker.offer["job_id"]
        before = await model_of(running, job_id)
        await worker.send(*FORGED.values())
        refused = await worker.manifest(None, FORGED, kind="artifact", name="output", expect=409)
        assert refused["code"] == "job_sealed"
        assert await model_of(running, job_id) == before
        await worker.manifest(None, MODEL, kind="artifact", name="output")
        assert await model_of(running, job_id) == before, "the same once more is no change"


async def test_what_an_attempt_left_behind_is_added_and_told_but_not_for_ever() -> None:
    async with orchestrator() as running:
        worker, _ = await finished(running)
        job_id = worker.offer["job_id"]
        await worker.send(STATE)
        await worker.manifest(None, {"samples.png": STATE}, kind="artifact", name="samples")
        assert {name for name, _ in await model_of(running, job_id)} == {"output", "samples"}
        told = (await running.get("/api/audit", event_type="job.stored"))["entries"]
        assert [(one["details"]["name"], one["details"]["after_the_end"]) for one in told] == [
            ("samples", True),
            ("output", False),
        ]
        running.clock.at += LEFT_BEHIND_S + 1
        late = await worker.manifest(None, {"late.png": STATE}, kind="artifact", name="late", expect=409)
        assert late["code"] == "job_sealed"


async def test_a_checkpoint_after_the_end_pushes_no_other_out() -> None:
    async with orchestrator() as running:
        worker = await uploading(running)
        for step in (10, 20, 30):
            await worker.checkpoint(step)
        await worker.agent.report(worker.offer, "completed")
        await worker.checkpoint(40)
        names = {name for name, _ in await model_of(running, worker.offer["job_id"])}
        assert names == {f"checkpoint-{step}" for step in (10, 20, 30, 40)}


async def test_every_checkpoint_that_comes_and_goes_is_in_the_audit_log() -> None:
    async with orchestrator() as running:
        worker = await uploading(running)
        for step in (10, 20, 30, 40):
            await worker.checkpoint(step)
        entries = (await running.get("/api/audit"))["entries"]
        said = [
            (one["event_type"], one["details"]["step"]) for one in entries if "manifest" in one["details"]
        ]
        assert said[::-1] == [
            ("job.stored", 10),
            ("job.stored", 20),
            ("job.stored", 30),
            ("job.stored", 40),
            ("job.dropped", 10),
        ]


@pytest.mark.e2e
def test_no_token_of_an_ended_attempt_is_on_the_workers_disk_and_its_folder_goes(world: World) -> None:
    worker = world.start_worker("gpu-1", "--keep-ended", "1s")
    spy = "import os; print('token', os.environ['SIMPLETUNER_UPLOAD_TOKEN'])"
    job_id = world.submit(world.command(sys.executable, "-c", spy, resources={"gpus": 0}))
    world.becomes(job_id, "completed")
    folders = worker.work_dir / "attempts"

    def retired() -> list[Path]:
        return list(folders.glob("*/delivered"))

    wait_until(retired, "the attempt is retired")
    held = [path for path in worker.work_dir.rglob("*") if path.is_file() and b"ut_" in path.read_bytes()]
    assert not [path for path in held if path.name == "order.json"], held
    time.sleep(1.2)
    worker.running.signal(15)
    worker.running.wait()
    worker.start()
    wait_until(lambda: not list(folders.iterdir()), "the folder is removed")
