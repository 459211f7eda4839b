"""Machines that are taken away, with real programs: a notice becomes a checkpoint, an upload, and a job that goes on."""

import json
import signal
import time
from datetime import UTC, datetime

from tests.agent.interruptions.metadata_server import metadata_server
from tests.e2e.jobs.test_stopping import trains
from tests.e2e.kit import Worker, World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import LONG, STEPS, assert_joined, demo

SLOW = {"checkpointing_steps": 0, "max_train_steps": STEPS, "demo_step_delay_s": 0.1}


def start(world: World, *more: str, **environment: str) -> Worker:
    worker = world.worker_of(world.post("/api/admin/workers", {"name": "first"}))
    worker.environment |= environment
    words = ("--orchestrator-url", world.url, "--name", "first", "--work-dir", str(worker.work_dir))
    worker.start(*words, "--persistent", *more)
    return worker.becomes("idle")


def test_a_notice_of_the_cloud_saves_what_runs_and_a_second_worker_goes_on_from_there(world: World) -> None:
    with metadata_server() as cloud:
        first = start(world, "--interruption-notices", "aws", SIMPLETUNER_METADATA_URL=cloud.url)
        job_id = world.submit(demo(**SLOW))
        trains(world, job_id)
        at = datetime.fromtimestamp(time.time() + 60.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        cloud.instance_action = json.dumps({"action": "terminate", "time": at})
        wait_until(lambda: first.seen["interrupted_by"] == "aws", "it says so", LONG)
        wait_until(lambda: world.job(job_id)["status"] == "queued", "its job is given back", LONG)
        (before,) = world.attempts(job_id)
        assert (before["outcome"], before["reason"]) == ("released", "interrupted")
        second = world.start_worker("second")
        job = world.becomes(job_id, "completed", LONG)
        assert assert_joined(world, job_id, first, second) > 30, "a checkpoint was made for this"
        assert (job["losses"], job["failures"], job["interruptions"]) == (0, 0, 1)
        wait_until(lambda: first.status == "offline", "it has left", LONG)
        assert "worker.interrupted" in [
            one["event_type"] for one in world.get(f"/api/audit?target_id={first.id}")["entries"]
        ]
        first.running.signal(signal.SIGTERM)  # it waits whether its machine is taken away
        first.running.wait(30.0)


def test_a_pod_that_is_told_to_end_gives_its_job_back_with_a_checkpoint(world: World) -> None:
    first = start(world, "--shutdown-grace", "40s", KUBERNETES_SERVICE_HOST="10.0.0.1")
    job_id = world.submit(demo(**SLOW))
    trains(world, job_id)
    first.running.signal(signal.SIGTERM)
    assert first.running.wait(LONG) == 0
    (before,) = world.attempts(job_id)
    assert (before["outcome"], before["reason"]) == ("released", "interrupted")
    assert first.seen["interrupted_by"] == "kubernetes"
    job = world.job(job_id)
    assert (job["status"], job["interruptions"]) == ("queued", 1)
    assert job["checkpoint_step"] > 30
