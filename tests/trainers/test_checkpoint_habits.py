"""What each trainer does about checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, habits_of
from simpletuner_fleet.trainers.contract import Launch, Paths
from simpletuner_fleet.trainers.demo.requests import SAVE, VALIDATE, Requests
from simpletuner_fleet.trainers.registry import Registry

SIGNAL = "SIMPLETUNER_ACCELERATE_SIGNAL_FILE"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")


def offer(trainer: str, config: dict[str, Any]) -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=2,
        attempt_id="a_9",
        epoch=5,
        config_name="c",
        config=config,
        trainer=trainer,
        upload_endpoint="",
    )


def prepared(
    trainer: str, paths: Paths, config: dict[str, Any]
) -> tuple[CheckpointHabits, JobSubmit, Launch]:
    plugin = Registry.load(environment={}).get(trainer)
    order = offer(trainer, config)
    return habits_of(plugin), order, plugin.launch(order, paths)


def folder(parent: Path, name: str, guard: bool = True) -> Path:
    made = parent / name
    made.mkdir(parents=True)
    (made / "weights").write_bytes(b"w")
    if guard:
        (made / ".guard").touch()
    return made


def test_a_checkpoint_counts_once_its_guard_is_inside(paths: Paths) -> None:
    for name, guard in {
        "checkpoint-9": True,
        "checkpoint-10": True,
        "checkpoint-11-rolling": True,
        "checkpoint-12": False,
        "checkpoint-13-tmp": True,
        "checkpoint-x": True,
    }.items():
        folder(paths.output_dir, name, guard)
    checkpoints = CheckpointHabits().checkpoints(paths)
    assert [(one.name, one.step) for one in checkpoints] == [
        ("checkpoint-9", 9),
        ("checkpoint-10", 10),
        ("checkpoint-11-rolling", 11),
    ]


def test_a_trainer_that_knows_nothing_of_checkpoints_has_the_usual_habits(paths: Paths) -> None:
    habits = habits_of(object())
    assert habits.checkpoints(paths) == []
    assert habits.artifacts(paths) == []
    assert habits.request_checkpoint(paths) is False
    assert not habits.saves_on_request()
    assert habits.request_validation(paths) is False
    assert not habits.validates_on_request()


def test_any_program_is_told_where_to_go_on(paths: Paths) -> None:
    habits, order, launch = prepared("command", paths, {"command": ["true"]})
    placed = habits.place_resume(order, paths, paths.output_dir / "checkpoint-5", launch)
    assert placed.env["SIMPLETUNER_RESUME_FROM"] == str(paths.output_dir / "checkpoint-5")
    assert (placed.argv, placed.cwd) == (launch.argv, launch.cwd)


@pytest.mark.parametrize("trainer", ["demo", "simpletuner"])
def test_a_checkpoint_is_asked_for_by_a_number_that_rises(paths: Paths, trainer: str) -> None:
    habits, _, launch = prepared(trainer, paths, {"--model_family": "x"})
    trainers_eye = Requests(launch.env[SIGNAL], SAVE)
    assert not trainers_eye.take()
    for _ in range(2):
        assert habits.saves_on_request()
        assert habits.request_checkpoint(paths)
        assert trainers_eye.take()
        assert not trainers_eye.take()


@pytest.mark.parametrize("trainer", ["demo", "simpletuner"])
def test_a_validation_is_asked_for_beside_the_checkpoints_and_neither_asks_for_the_other(
    paths: Paths, trainer: str
) -> None:
    habits, _, launch = prepared(trainer, paths, {"--model_family": "x"})
    saves, validations = (Requests(launch.env[SIGNAL], key) for key in (SAVE, VALIDATE))
    assert habits.validates_on_request()
    assert habits.request_validation(paths)
    assert (saves.take(), validations.take()) == (False, True)
    assert habits.request_checkpoint(paths)
    assert (saves.take(), validations.take()) == (True, False)
    assert habits.request_validation(paths)
    assert (saves.take(), validations.take()) == (False, True)


@pytest.mark.parametrize("trainer", ["demo", "simpletuner"])
@pytest.mark.parametrize("key", ["--resume_from_checkpoint", "resume_from_checkpoint", "other"])
def test_a_trainer_goes_on_from_the_latest_whatever_its_config_said(
    paths: Paths, trainer: str, key: str
) -> None:
    habits, order, launch = prepared(trainer, paths, {key: "checkpoint-1", "--model_family": "x"})
    assert habits.place_resume(order, paths, paths.output_dir / "checkpoint-5", launch) == launch
    config = json.loads(paths.config_file.read_text())
    spelt = [name for name in config if name.lstrip("-") == "resume_from_checkpoint"]
    assert len(spelt) == 1
    assert config[spelt[0]] == "latest"
    assert config["--model_family"] == "x"


def test_a_config_of_simpletuner_may_name_its_own_output(paths: Paths) -> None:
    habits, _, _ = prepared("simpletuner", paths, {"--output_dir": "models/mine", "--seed": 1})
    folder(paths.attempt_dir / "models" / "mine", "checkpoint-3")
    assert [one.step for one in habits.checkpoints(paths)] == [3]


def test_the_demo_leaves_a_model_and_samples_once_it_has_finished(paths: Paths) -> None:
    habits, _, _ = prepared("demo", paths, {})
    output = paths.output_dir
    (output / "validation_images").mkdir()
    (output / "validation_images" / "step_1.png").touch()
    assert habits.artifacts(paths) == []
    for name in ("model.npz", "model.json", "samples.png", "metrics.jsonl"):
        (output / name).touch()
    artifacts = {one.name: [file.name for file in one.files] for one in habits.artifacts(paths)}
    assert artifacts == {"model": ["model.npz", "model.json"], "samples": ["samples.png", "step_1.png"]}


def test_pictures_are_found_where_validation_leaves_them(paths: Paths) -> None:
    output = paths.output_dir
    for name in (
        "validation_images/step_1.png",
        "validation_images/deep/step_2.WEBP",
        "validation_images/notes.txt",
        "samples/a.jpeg",
        "sample_3.jpg",
        "samples.png",
        "cover.png",
        "dataset/b.png",
        "checkpoint-1/c.png",
    ):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(b"x")
    pictures = CheckpointHabits().samples(paths)
    assert [path.relative_to(output).as_posix() for path in pictures] == [
        "sample_3.jpg",
        "samples/a.jpeg",
        "samples.png",
        "validation_images/deep/step_2.WEBP",
        "validation_images/step_1.png",
    ]
