"""A hostile job: it keeps what it found, outlives its end, and writes where it has no turn any more."""

import contextlib
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.free_space import GIB, MIB
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import LEFT_BEHIND_S
from simpletuner_fleet.http.access.auth import LAST_REPORT_S
from simpletuner_fleet.storage.space import SpaceWatch
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.http.api_kit import Running, orchestrator
from tests.http.server_process import command, environment
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
        entries = (await running.get("/api/audit", event_type="job.stored"))["entries"]
        assert [(one["details"]["name"], one["details"]["after_the_end"]) for one in entries] == [
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
    async with orchestrator(policy=Policy(checkpoints_keep=3)) as running:
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
    worker = world.start_worker("gpu-1", "--keep-attempts", "0")
    spy = "import os; print('token', os.environ['SIMPLETUNER_UPLOAD_TOKEN'])"
    job_id = world.submit(world.command(sys.executable, "-c", spy, resources={"gpus": 0}))
    world.becomes(job_id, "completed")
    folders = worker.work_dir / "attempts"

    def retired() -> list[Path]:
        return list(folders.glob("*/delivered"))

    wait_until(retired, "the attempt is retired")
    held = [path for path in worker.work_dir.rglob("*") if path.is_file() and b"ut_" in path.read_bytes()]
    assert not [path for path in held if path.name == "order.json"], held
    worker.running.signal(15)
    worker.running.wait()
    worker.start()
    wait_until(lambda: not list(folders.iterdir()), "the folder is removed")


async def test_a_full_disk_lets_uploads_wait_and_everything_else_go_on() -> None:
    disk = {"free": 20 * GIB}
    watch = SpaceWatch(
        Path(), measure=lambda folder: (disk["free"], 1000 * GIB), monotonic=lambda: time.monotonic() * 1e6
    )
    async with orchestrator(space=watch) as running:
        worker = await uploading(running)
        await worker.put(WEIGHTS, 0, 100)
        disk["free"] = 5 * GIB
        for refused in (
            await worker.ask(WEIGHTS, expect=503),
            await worker.put(WEIGHTS, 100, 200, expect=503),
        ):
            assert refused["code"] == "storage_low"
            assert "uploads are paused" in refused["detail"]
        job_id = worker.offer["job_id"]
        log = await worker.agent.http.put(
            f"{worker.base}/logs",
            params={"epoch": worker.offer["epoch"], "offset": 0},
            content=b"still here\n",
            headers={"Content-Type": "application/octet-stream"},
        )
        assert log.status_code == 200, log.text
        assert (await running.get("/health/ready"))["storage"] == "low"
        await worker.agent.heartbeat(worker.offer)
        await running.post(f"/api/jobs/{job_id}/cancel")
        await worker.agent.report(worker.offer, "cancelled")
        assert (await running.job(job_id))["status"] == "cancelled"
        disk["free"] = 500 * GIB
        assert (await running.get("/health/ready"))["storage"] == "ok"


async def test_the_jobs_of_one_person_share_a_quota() -> None:
    policy = Policy(user_storage_bytes=len(WEIGHTS) + 10)
    async with orchestrator(policy=policy) as running:
        first = await uploading(running, "gpu-1")
        await first.send(WEIGHTS)
        second = await uploading(running, "gpu-2")
        refused = await second.ask(WEIGHTS, expect=413)
        assert refused["code"] == "quota_exceeded"
        assert "One user" in refused["detail"]
        assert (await second.put(WEIGHTS, 0, len(WEIGHTS), expect=413))["code"] == "quota_exceeded"
        await second.send(b"x" * 10)


@pytest.mark.e2e
def test_when_the_servers_disk_is_really_full_a_job_can_still_be_cancelled(tmp_path: Path) -> None:
    """A file system of 400 MiB that only the server sees; it is filled to the last byte from outside."""
    home = tmp_path / "home"
    home.mkdir()
    server = on_small_disk(home, 400)
    try:
        inside = Path(f"/proc/{server.pid}/root{home}")
        with client_of(inside) as client:
            bundle = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}
            submission = {"config": bundle, "target": "worker"}
            job_id = client.post("/api/queue/submit", json=submission).json()["job_id"]
            wait_until(lambda: (inside / "reserve").exists(), "the reserve is kept")
            fill(inside / "filler")
            wait_until(lambda: not (inside / "reserve").exists(), "the reserve is given up")
            # Between the last byte and the reserve that is given up a write may still find no room.
            wait_until(
                lambda: client.post(f"/api/jobs/{job_id}/cancel").status_code == 200, "it is cancelled", 5
            )
            assert client.get(f"/api/jobs/{job_id}").json()["status"] == "cancelled"
    finally:
        server.terminate()
        server.wait(20)


def on_small_disk(home: Path, mib: int) -> "subprocess.Popen[bytes]":
    """In namespaces of its own, where anybody may mount."""
    words = " ".join(shlex.quote(word) for word in command("--port", "0", "--no-local"))
    script = f"mount -t tmpfs -o size={mib}m tmpfs {shlex.quote(str(home))} && exec {words}"
    if subprocess.run(["unshare", "-r", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces")
    return subprocess.Popen(["unshare", "-r", "-m", "sh", "-c", script], env=environment(home))


def client_of(home: Path) -> httpx2.Client:
    wait_until(lambda: (home / "server.json").exists(), "the server is ready")
    url = json.loads((home / "server.json").read_text())["url"]
    token = (home / "admin_token").read_text().strip()
    return httpx2.Client(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=10
    )


def fill(file: Path) -> None:
    """Leaves nothing, however often the server lets go of some."""
    with open(file, "wb", buffering=0) as target, contextlib.suppress(OSError):
        while True:
            target.write(bytes(4 * MIB))
    with open(file, "ab", buffering=0) as target, contextlib.suppress(OSError):
        while True:
            target.write(bytes(512))
