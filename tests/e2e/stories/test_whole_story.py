"""A config goes in, a trained model comes back, whoever dies on the way: from the import to images one can recognise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import World
from tests.e2e.storage.test_checkpoints import kill_machine, stored_step

STEPS = 500
LONG = 180.0
SETTINGS = {
    "--max_train_steps": STEPS,
    "train_batch_size": 48,
    "checkpointing_steps": 50,
    "checkpoints_total_limit": 2,
    "validation_steps": 0,
    "num_eval_images": 16,
    "demo_device": "cpu",
    "demo_step_delay_s": 0.005,  # a fast machine would be done before somebody can die
}
JUDGE = [sys.executable, "-m", "simpletuner_fleet.trainers.demo", "judge"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dies", ["the worker's machine", "the orchestrator"])
def test_an_imported_config_becomes_a_model_that_draws_though_somebody_dies(
    bare_world: World, tmp_path: Path, dies: str
) -> None:
    world = bare_world
    patient = {"SIMPLETUNER_HEARTBEAT_TIMEOUT": "2" if dies == "the worker's machine" else "60"}
    world.start_server(**patient)
    job_id = submitted_from_a_file(world, tmp_path / "configs")
    first = world.start_worker("first", becomes=None)
    safe = stored_step(world, job_id, at_least=100)
    assert safe < STEPS
    if dies == "the orchestrator":
        world.kill_server()
        world.restart_server()
    else:
        kill_machine(first, world.attempts(job_id)[0])
        world.start_worker("second", becomes=None)
    job = world.becomes(job_id, "completed", LONG)

    attempts = world.attempts(job_id)
    assert [one["outcome"] for one in attempts] == (
        ["completed"] if dies == "the orchestrator" else ["lost", "completed"]
    )
    assert (attempts[-1]["resumed_from_step"] or STEPS) >= safe
    assert job["checkpoint_step"] == STEPS
    assert_curve_is_whole(world, job_id)
    assert_images_are_recognisable(world, job_id, tmp_path / "model")


def submitted_from_a_file(world: World, folder: Path) -> str:
    """As a researcher does it: a file, imported, and submitted by the name it got."""
    folder.mkdir()
    file = folder / "shapes.json"
    file.write_text(json.dumps({"trainer": "demo", "settings": SETTINGS, "resources": {"gpus": 0}}))
    imported = world.cli("configs", "import", str(file))
    assert imported.returncode == 0, imported.stderr
    submitted = world.cli("jobs", "submit", "shapes", "--target", "worker", "-o", "json")
    assert submitted.returncode == 0, submitted.stderr
    return str(json.loads(submitted.stdout)["job_id"])


def assert_curve_is_whole(world: World, job_id: str) -> None:
    curve = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")["series"]["loss"]
    assert [bucket["step"] for bucket in curve] == list(range(1, STEPS + 1)), "each step once, none left out"
    losses = [bucket["last"] for bucket in curve]
    assert sum(losses[-50:]) < 0.5 * sum(losses[:50])


def assert_images_are_recognisable(world: World, job_id: str, place: Path) -> None:
    """The model is fetched with the command line and judged by what it draws, in numbers."""
    fetched = world.cli("jobs", "download", job_id, "--to", str(place))
    assert fetched.returncode == 0, fetched.stderr
    [model] = place.rglob("model.npz")
    judged = subprocess.run([*JUDGE, str(model.parent)], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert json.loads(judged.stdout)["recognisable"]
