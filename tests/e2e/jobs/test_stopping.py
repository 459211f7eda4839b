"""Trainers that are asked to stop save first, and whoever goes on does so from there."""

import signal
import sys
import time
from pathlib import Path

from tests.e2e.jobs.test_metrics import losses_written
from tests.e2e.kit import Json, World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import (
    LONG,
    STEPS,
    assert_joined,
    attempt_folder,
    demo,
    kill_machine,
    steps_of,
    stored_step,
)

LINES = 300
WRITES_ALL_THE_TIME = f"""
import json, os, pathlib, time
output = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"])
numbers = open(output / "metrics.jsonl", "a", buffering=1)
for step in range(1, {LINES} + 1):
    print("line", step, flush=True)
    numbers.write(json.dumps({{"step": step, "loss": 1 / step}}) + "\\n")
    if step % 50 == 0:
        folder = output / f"checkpoint-{{step}}"
        folder.mkdir()
        (folder / "weights").write_text(str(step))
        (folder / ".guard").touch()
    time.sleep(0.03)
"""


def trains(world: World, job_id: str, past: int = 30) -> None:
    """Waits until it has done so many steps, none of which is stored anywhere."""
    wait_until(
        lambda: ((world.job(job_id)["progress"] or {}).get("step") or 0) > past, f"{job_id} trains", LONG
    )


def test_a_cancelled_job_saves_a_checkpoint_first_when_asked_to(world: World) -> None:
    worker = world.start_worker("steady")
    job_id = world.submit(demo(checkpointing_steps=0, max_train_steps=5000))
    trains(world, job_id)
    result = world.cli("jobs", "cancel", job_id, "--checkpoint-first")
    assert result.returncode == 0, result.stderr
    assert "cancelling: saving a checkpoint first" in result.stdout + result.stderr
    job = world.becomes(job_id, "cancelled", LONG)
    (attempt,) = world.attempts(job_id)
    done = steps_of(worker, attempt)[-1]
    assert 30 < job["checkpoint_step"] <= done
    assert (attempt["outcome"], attempt["stopping"]) == ("cancelled", None)
    stored = [one["step"] for one in manifests(world, job_id) if one["kind"] == "checkpoint"]
    assert max(stored) == job["checkpoint_step"]


def test_a_job_that_is_asked_to_save_and_to_validate_does_both_and_trains_on_to_the_end(world: World) -> None:
    worker = world.start_worker("steady")
    job_id = world.submit(demo(checkpointing_steps=0, max_train_steps=300, demo_step_delay_s=0.05))
    trains(world, job_id)
    result = world.cli("jobs", "checkpoint", job_id)
    assert result.returncode == 0, result.stderr
    assert "is asked for a checkpoint and trains on" in result.stdout + result.stderr
    asked = world.cli("jobs", "validate", job_id)
    assert asked.returncode == 0, asked.stderr
    assert "is asked to validate and trains on" in asked.stdout + asked.stderr
    step = stored_step(world, job_id, 30)
    assert world.job(job_id)["checkpoint_requested_at"] is None
    world.becomes(job_id, "completed", LONG)
    (attempt,) = world.attempts(job_id)
    assert (attempt["outcome"], attempt["stopping"]) == ("completed", None)
    assert steps_of(worker, attempt) == list(range(1, 301))
    assert 30 < step < 300
    assert world.events(job_id).count("job.checkpoint_requested") == 1
    assert world.events(job_id).count("job.validation_requested") == 1
    assert world.job(job_id)["validation_requested_at"] is None
    pictures = attempt_folder(worker, attempt) / "job" / "output" / "validation_images"
    assert len(list(pictures.iterdir())) == 1, "once, however often its worker heard of it"
    late = world.cli("jobs", "checkpoint", job_id)
    assert late.returncode != 0
    assert "only a running one can be asked" in late.stdout + late.stderr


def manifests(world: World, job_id: str) -> list[Json]:
    return list(world.get(f"/api/jobs/{job_id}/artifacts")["manifests"])


def test_a_drain_stops_what_runs_at_its_deadline_though_the_server_died_and_it_goes_on_elsewhere(
    world: World,
) -> None:
    first = world.start_worker("first")
    job_id = world.submit(demo(checkpointing_steps=0, max_train_steps=STEPS, demo_step_delay_s=0.1))
    trains(world, job_id)
    result = world.cli("workers", "drain", "first", "--timeout", "2s", "--note", "new driver")
    assert result.returncode == 0, result.stderr
    assert first.seen["drain_deadline"] is not None
    world.kill_server()
    world.restart_server()
    second = world.start_worker("second")
    waited = world.cli("workers", "drain", "first", "--timeout", "2s", "--note", "new driver", "--wait")
    assert "is no longer running anything" in waited.stdout + waited.stderr
    job = world.becomes(job_id, "completed", LONG)
    assert assert_joined(world, job_id, first, second) > 30
    before, after = world.attempts(job_id)
    assert (before["outcome"], before["reason"]) == ("released", "drained")
    assert (job["losses"], job["failures"], job["attempt"]) == (0, 0, 2)
    assert job["resumed"].endswith("on second")
    assert job["resumed_from_step"] == after["resumed_from_step"]
    assert "job.stop_requested" in world.events(job_id)
    assert first.seen["status"] == "draining"
    world.post(f"/api/admin/workers/{first.id}/resume")
    assert (first.seen["status"], first.seen["drain_deadline"]) == ("idle", None)


def test_a_job_that_outlives_its_time_limit_goes_on_in_slices(world: World) -> None:
    world.start_worker("steady")
    job_id = world.submit(
        demo(checkpointing_steps=0, demo_step_delay_s=0.06), time_limit_s=4, on_time_limit="requeue"
    )
    job = world.becomes(job_id, "completed", 2 * LONG)
    attempts = world.attempts(job_id)
    assert len(attempts) > 1
    assert {(one["outcome"], one["reason"]) for one in attempts[:-1]} == {("released", "time_limit")}
    assert (job["failures"], job["losses"]) == (0, 0)
    curve = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")["series"]["loss"]
    assert [bucket["step"] for bucket in curve] == list(range(1, STEPS + 1))


def test_a_training_goes_on_while_the_orchestrator_is_away_and_everything_arrives_without_a_gap(
    world: World,
) -> None:
    """An hour in life: longer than the heartbeat timeout here, so that its worker counts as silent."""
    worker = world.start_worker("steady")
    job_id = world.submit(
        world.command(sys.executable, "-c", WRITES_ALL_THE_TIME), on_partition="continue", max_retries=0
    )
    trains(world, job_id, past=20)
    attempt = world.attempts(job_id)[0]
    world.kill_server()
    timeout_s = float(world.settings["SIMPLETUNER_HEARTBEAT_TIMEOUT"])
    made = folder_of(worker.work_dir, attempt) / "job" / "output" / "checkpoint-150" / ".guard"
    away_since = time.monotonic()
    wait_until(
        lambda: made.exists() and time.monotonic() - away_since > 1.5 * timeout_s, "it goes on alone", LONG
    )
    world.restart_server()
    job = world.becomes(job_id, "completed", LONG)
    assert (job["attempt"], job["losses"], job["checkpoint_step"]) == (1, 0, LINES)
    curve = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")["series"]["loss"]
    assert [bucket["step"] for bucket in curve] == list(range(1, LINES + 1))
    assert [bucket["last"] for bucket in curve] == losses_written(worker.work_dir, attempt)
    log = world.call("GET", f"/api/jobs/{job_id}/logs").content
    assert log == (folder_of(worker.work_dir, attempt) / "output.log").read_bytes()
    stored = {one["name"] for one in manifests(world, job_id) if one["kind"] == "checkpoint"}
    assert f"checkpoint-{LINES}" in stored


def folder_of(work_dir: Path, attempt: Json) -> Path:
    return work_dir / "attempts" / str(attempt["id"])


def test_a_worker_with_five_seconds_to_live_gives_its_job_back_at_once(world: World) -> None:
    """As spot machines are ended: no time to save, so what is stored already is what counts."""
    first = world.start_worker("first", "--shutdown-grace", "5s")
    job_id = world.submit(demo(demo_step_delay_s=0.1))
    safe = stored_step(world, job_id, at_least=20)
    first.running.signal(signal.SIGTERM)
    assert first.running.wait(5.0) == 0
    before = world.attempts(job_id)[0]
    assert (before["outcome"], before["reason"]) == ("released", "preempted")
    assert not (folder_of(first.work_dir, before) / "job" / "signals.json").exists(), (
        "nothing was asked of it any more"
    )
    second = world.start_worker("second")
    job = world.becomes(job_id, "completed", LONG)
    assert assert_joined(world, job_id, first, second) >= safe
    assert (job["losses"], job["failures"]) == (0, 0)


SAVES_TWICE = """
import os, pathlib, sys, time
found = os.environ.get("SIMPLETUNER_RESUME_FROM")
if found:
    print("resumed from", pathlib.Path(found).name, flush=True)
    raise SystemExit(0)
for name in ("checkpoint-50", "checkpoint-100"):
    folder = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]) / name
    folder.mkdir()
    (folder / "weights").write_text(name)
    (folder / ".guard").touch()
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.02)
time.sleep(600)
"""


def test_a_checkpoint_that_was_spoilt_in_its_store_is_passed_over_for_an_older_one(world: World) -> None:
    first, gate = world.start_worker("first"), world.gate()
    job_id = world.submit(world.command(sys.executable, "-c", SAVES_TWICE, str(gate)))
    stored_step(world, job_id, at_least=50)
    gate.touch()
    stored_step(world, job_id, at_least=100)
    newest = max(manifests(world, job_id), key=lambda one: one["step"] or 0)
    digest = next(file["sha256"] for file in newest["files"] if file["path"] == "weights")
    (spoilt,) = (path for path in world.home.rglob(digest) if path.is_file())
    spoilt.chmod(0o600)
    spoilt.write_bytes(b"x" * spoilt.stat().st_size)
    kill_machine(first, world.attempts(job_id)[0])
    world.start_worker("second")
    job = world.becomes(job_id, "completed", LONG)
    tried = [(one["resumed_from_step"], one["outcome"], one["reason"]) for one in world.attempts(job_id)[1:]]
    assert tried == [(100, "released", "resume_failed")] * 3 + [(50, "completed", None)]
    assert (job["losses"], job["failures"]) == (1, 0)
    assert world.call("GET", f"/api/jobs/{job_id}/logs").text == "resumed from checkpoint-50\n"
