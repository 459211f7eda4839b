"""A real worker with a wall: a trainer that writes beside the pictures it is given may do so in a folder of its own."""

import venv
from pathlib import Path

import pytest

from tests.attacks.jobs.test_job_isolation import what_is_missing
from tests.e2e.kit import World

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall"
    ),
]

LAUNCH = "import runpy; runpy.run_module('simpletuner.train', run_name='__main__')"
TRAIN = """
import json, pathlib
(loader,) = pathlib.Path.cwd().rglob("multidatabackend.json")
folder = pathlib.Path(json.loads(loader.read_text())[0]["instance_data_dir"])
(folder / "index.json").write_text("{}")
print("shown", sorted(path.name for path in folder.iterdir()))
print("Epoch 1/1, Steps: 100%|##########| 1/1 [00:01<00:00,  1.00it/s, lr=0.1, step_loss=0.5]", flush=True)
"""


def trainer_python(folder: Path, train: str = TRAIN) -> str:
    """An environment in which stand-ins have the names of the trainer and its launcher."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, files in {
        "simpletuner": {"__init__.py": "", "train.py": train},
        "accelerate": {"__init__.py": "", "commands/__init__.py": "", "commands/launch.py": LAUNCH},
        "simpletuner-4.10.1.dist-info": {"METADATA": "Name: simpletuner\nVersion: 4.10.1\n"},
        "accelerate-1.0.dist-info": {"METADATA": "Name: accelerate\nVersion: 1.0\n"},
    }.items():
        for file, text in files.items():
            (site / name / file).parent.mkdir(parents=True, exist_ok=True)
            (site / name / file).write_text(text)
    return str(folder / "bin" / "python")


def test_what_a_trainer_keeps_beside_its_pictures_is_its_own_from_the_first_attempt_on(
    world: World, tmp_path: Path
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir(mode=0o755)
    (pictures / "cat.png").write_bytes(b"a cat")
    python = trainer_python(tmp_path / "trainer")
    world.start_worker(
        "walled", "--isolation", "required", "--trainer-python", python, "--job-path", f"{pictures}:ro"
    )
    job_id = world.submit(
        {
            "trainer": "simpletuner",
            "settings": {"model_family": "sdxl", "max_train_steps": 1},
            "dataloader": [{"id": "pictures", "type": "local", "instance_data_dir": str(pictures)}],
            "resources": {"gpus": 1},
        }
    )
    world.becomes(job_id, "completed")
    assert "shown ['cat.png', 'index.json']" in world.call("GET", f"/api/jobs/{job_id}/logs").text
