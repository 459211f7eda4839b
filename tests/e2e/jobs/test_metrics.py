"""The numbers of a real training on a real worker arrive: every step, each once, and how far it is."""

import json
from pathlib import Path
from typing import Any

from simpletuner_fleet.storage.metrics.metric_files import RECORD
from tests.e2e.kit import Json, World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import kill_machine

STEPS = 80
LONG = 90.0


def demo(**settings: Any) -> Json:
    quick = {
        "max_train_steps": STEPS,
        "train_batch_size": 8,
        "checkpointing_steps": 0,
        "validation_steps": 0,
        "num_eval_images": 4,
        "demo_device": "cpu",
        "demo_step_delay_s": 0.05,
    }
    return {"trainer": "demo", "settings": {**quick, **settings}}


def losses_written(work_dir: Path, attempt: Json) -> list[float]:
    path = work_dir / "attempts" / str(attempt["id"]) / "job" / "output" / "metrics.jsonl"
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def test_every_step_of_a_training_arrives_once_and_its_progress_is_seen_on_the_way(world: World) -> None:
    worker = world.start_worker("trainer")
    job_id = world.submit(demo())
    wait_until(lambda: (world.job(job_id)["progress"] or {}).get("step"), "progress is told", LONG)
    on_the_way = world.job(job_id)["progress"]
    assert 0 < on_the_way["step"] <= STEPS
    assert on_the_way["total"] == STEPS
    job = world.becomes(job_id, "completed", LONG)
    assert job["progress"]["step"] == STEPS
    metrics = world.get(f"/api/jobs/{job_id}/metrics?points=5000")
    assert metrics["total"] == STEPS
    assert {"loss", "lr", "grad_norm"} <= set(metrics["keys"])
    curve = metrics["series"]["loss"]
    assert [bucket["step"] for bucket in curve] == list(range(1, STEPS + 1))
    assert [bucket["last"] for bucket in curve] == losses_written(worker.work_dir, world.attempts(job_id)[0])
    printed = world.cli("jobs", "metrics", job_id, "--key", "loss", "-o", "csv").stdout.splitlines()
    assert (printed[0], len(printed)) == ("key,step,at,min,max,last", STEPS + 1)


def test_the_curve_has_no_gap_where_another_machine_went_on_from_a_checkpoint(world: World) -> None:
    first = world.start_worker("first")
    job_id = world.submit(demo(checkpointing_steps=20))
    wait_until(lambda: (world.job(job_id)["checkpoint_step"] or 0) >= 40, "step 40 is stored", LONG)
    kill_machine(first, world.attempts(job_id)[0])
    world.start_worker("second")
    world.becomes(job_id, "completed", LONG)
    assert world.attempts(job_id)[1]["resumed_from_step"] >= 40
    metrics = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")
    assert [bucket["step"] for bucket in metrics["series"]["loss"]] == list(range(1, STEPS + 1))


def test_points_made_while_the_orchestrator_and_the_agent_were_dead_arrive_without_a_gap(
    bare_world: World,
) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_INTERVAL="1", SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("steady", "--restarted-within", "25")
    job_id = world.submit(demo())
    wait_until(lambda: (world.job(job_id)["progress"] or {}).get("step"), "progress is told", LONG)
    attempt = world.attempts(job_id)[0]
    world.kill_server()
    worker.running.kill()
    worker.running.wait()
    worker.start()
    model = worker.work_dir / "attempts" / str(attempt["id"]) / "job" / "output" / "model.npz"
    wait_until(model.exists, "training goes on to its end while nobody listens", LONG)
    world.restart_server()
    world.becomes(job_id, "completed", LONG)
    curve = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")["series"]["loss"]
    assert [bucket["step"] for bucket in curve] == list(range(1, STEPS + 1))
    assert [bucket["last"] for bucket in curve] == losses_written(worker.work_dir, attempt)
    stored = list(world.folder.rglob(f"metrics/{attempt['id']}/loss"))
    assert [path.stat().st_size for path in stored] == [STEPS * RECORD.size]
