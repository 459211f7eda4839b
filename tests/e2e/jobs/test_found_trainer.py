"""A real worker with a wall, whose trainer is where people are told to install it and nobody has named it."""

import pytest

from tests.attacks.jobs.test_job_isolation import what_is_missing
from tests.e2e.jobs.test_shown_pictures import trainer_python
from tests.e2e.kit import World

TRAIN = 'print("Epoch 1/1, Steps: 100%|##| 1/1 [00:01<00:00,  1.00it/s, lr=0.1, step_loss=0.5]", flush=True)'


@pytest.mark.e2e
@pytest.mark.skipif(bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall")
def test_a_trainer_that_the_worker_finds_by_itself_is_seen_by_its_jobs(world: World) -> None:
    trainer_python(world.folder / "SimpleTuner" / ".venv", TRAIN)  # in the home of the worker
    world.start_worker("gpu-1", "--isolation", "required")
    job_id = world.submit(
        {
            "trainer": "simpletuner",
            "settings": {"model_family": "sdxl", "max_train_steps": 1},
            "resources": {"gpus": 1},
        }
    )
    world.becomes(job_id, "completed")
