"""Checkpoints of releases that do not mark them, as 3.1.6 was seen to write them."""

import os
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings
from simpletuner_fleet.trainers.job_trees import remove_tree
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer
from simpletuner_fleet.trainers.simpletuner.unmarked_checkpoints import (
    SETTLED_S,
    has_unsettled,
    settled_checkpoints,
)
from tests.trainers.test_job_trees import dig

NOW = 1_000_000.0
IN_ITS_ORDER = (
    "training_state.json",
    "pytorch_lora_weights.safetensors",
    "scheduler.bin",
    "optimizer.bin",
    "random_states_0.pkl",
    "training_state-images.json",
)


def saved(
    folder: Path, step: int, *, at: float, files: int = len(IN_ITS_ORDER), rolling: bool = False
) -> Path:
    made = folder / f"checkpoint-{step}{'-rolling' if rolling else ''}"
    made.mkdir()
    for name in IN_ITS_ORDER[:files]:
        (made / name).write_bytes(b"x")
        os.utime(made / name, (at, at))
    return made


def whole(folder: Path, now: float = NOW) -> list[str]:
    return [one.name for one in settled_checkpoints(folder, lambda: now)]


def test_one_is_whole_when_nothing_was_written_to_it_for_a_while(tmp_path: Path) -> None:
    saved(tmp_path, 5, at=NOW - 1)
    assert whole(tmp_path) == []
    assert has_unsettled(tmp_path, lambda: NOW)
    assert whole(tmp_path, NOW + SETTLED_S) == ["checkpoint-5"]
    assert not has_unsettled(tmp_path, lambda: NOW + SETTLED_S)


def test_one_is_whole_as_soon_as_the_next_begins(tmp_path: Path) -> None:
    saved(tmp_path, 5, at=NOW - 1)
    (tmp_path / "checkpoint-10").mkdir()
    assert whole(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize("files", range(len(IN_ITS_ORDER) - 1))
def test_one_whose_trainer_was_killed_while_it_saved_never_counts(tmp_path: Path, files: int) -> None:
    saved(tmp_path, 5, at=NOW - 3600, files=files)
    assert whole(tmp_path) == []
    assert not has_unsettled(tmp_path, lambda: NOW)


def test_a_rolling_one_of_the_same_step_says_nothing_of_the_other(tmp_path: Path) -> None:
    saved(tmp_path, 5, at=NOW - 1)
    saved(tmp_path, 5, at=NOW - 60, rolling=True)
    assert whole(tmp_path) == ["checkpoint-5-rolling"]


def test_a_clock_far_ahead_keeps_nobody_waiting(tmp_path: Path) -> None:
    saved(tmp_path, 5, at=NOW + 3600)
    assert whole(tmp_path) == ["checkpoint-5"]


@pytest.mark.parametrize("lasting", ["a link to itself", "folders without end"])
def test_what_can_never_be_looked_at_keeps_nobody_waiting(tmp_path: Path, lasting: str) -> None:
    made = saved(tmp_path, 5, at=NOW - 60)
    if lasting == "a link to itself":
        (made / "loop").symlink_to("loop")
    else:
        dig(made / "deep")
    try:
        assert whole(tmp_path) == ["checkpoint-5"]
        assert not has_unsettled(tmp_path, lambda: NOW)
    finally:
        remove_tree(made)


def test_a_folder_that_is_still_being_renamed_into_place_is_none(tmp_path: Path) -> None:
    made = saved(tmp_path, 5, at=NOW - 60)
    made.rename(tmp_path / "checkpoint-5-tmp")
    assert whole(tmp_path) == []


def release(tmp_path: Path, version: str) -> SimpleTunerTrainer:
    packages = tmp_path / "packages" / f"simpletuner-{version}.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text(f"Metadata-Version: 2.1\nName: simpletuner\nVersion: {version}\n")
    environment = {"PYTHONPATH": str(packages.parent)}
    return SimpleTunerTrainer(Surroundings(environment=environment, trainer_python=sys.executable))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")


def test_an_old_release_is_not_asked_for_a_checkpoint_it_cannot_make(tmp_path: Path, paths: Paths) -> None:
    old = release(tmp_path, "3.1.6")
    assert old.request_checkpoint(paths) is False
    assert not old.saves_on_request()
    assert not (paths.attempt_dir / "signals.json").exists()
    saved(paths.output_dir, 5, at=0.0)
    assert [one.step for one in old.checkpoints(paths)] == [5]


def test_a_new_release_marks_its_checkpoints_and_only_the_mark_counts(tmp_path: Path, paths: Paths) -> None:
    new = release(tmp_path, "4.10.1")
    assert new.request_checkpoint(paths) is True
    assert new.saves_on_request()
    made = saved(paths.output_dir, 5, at=0.0)
    assert new.checkpoints(paths) == []
    assert not new.has_unfinished(paths)
    (made / ".guard").touch()
    assert [one.step for one in new.checkpoints(paths)] == [5]


def test_a_new_release_goes_on_from_an_old_ones_checkpoint(tmp_path: Path, paths: Paths) -> None:

    made = saved(paths.output_dir, 5, at=0.0)
    order = JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=1,
        config_name="c",
        config={},
        trainer="simpletuner",
        upload_endpoint="",
    )
    release(tmp_path, "4.10.1").place_resume(order, paths, made, Launch(argv=[], env={}, cwd=""))
    assert (made / ".guard").is_file()
