"""What each release of the trainer can do, and what the plug-in makes of it."""

import sys
from pathlib import Path

import pytest

from simpletuner_fleet.core.training.completion import CleanExit
from simpletuner_fleet.core.training.trainer_release import release_of
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Surroundings
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer


@pytest.mark.parametrize(
    ("version", "exit_codes", "signal_file", "guard"),
    [
        ("3.1.6", False, False, False),
        ("3.2.0", False, False, False),
        ("3.2.1", False, True, False),
        ("4.0.0", True, True, False),
        ("4.3.1", True, True, False),
        ("4.3.2", True, True, True),
        ("4.10.1", True, True, True),
        ("4.10.1.dev4+gabc", True, True, True),
        ("", False, True, False),
        ("main", False, True, False),
    ],
)
def test_the_table_of_releases(version: str, exit_codes: bool, signal_file: bool, guard: bool) -> None:
    release = release_of(version)
    assert (release.exit_codes, release.signal_file, release.guard) == (exit_codes, signal_file, guard)


def test_it_is_said_what_an_old_release_lacks() -> None:
    assert len(release_of("3.1.6").missing) == 3
    assert release_of("4.10.1").missing == []
    assert release_of("").missing == []


def installed(tmp_path: Path, version: str) -> SimpleTunerTrainer:
    """A Python that has the trainer's distribution of this version, and nothing of its code."""
    folder = tmp_path / f"simpletuner-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: simpletuner\nVersion: {version}\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    return SimpleTunerTrainer(Surroundings(environment=environment, trainer_python=sys.executable))


def order(**settings: object) -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=1,
        config_name="c",
        config=settings,
        trainer="simpletuner",
        upload_endpoint="",
    )


def test_the_installed_version_is_asked_of_its_own_python(tmp_path: Path) -> None:
    assert installed(tmp_path, "3.1.6").release().version == "3.1.6"


def test_an_unknown_version_is_said_to_be_unknown() -> None:
    trainer = SimpleTunerTrainer(Surroundings(environment={}, trainer_python="/no/such/python"))
    assert trainer.release().version == ""


OOM = """\
CUDA out of memory. Tried to allocate 2.00 GiB.
Traceback (most recent call last):
  File "/x/simpletuner/train.py", line 81, in <module>
    trainer.train()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.

"""


@pytest.mark.parametrize("version", ["3.1.6", "4.10.1"])
def test_a_training_that_ended_early_or_with_an_error_has_not_completed(tmp_path: Path, version: str) -> None:
    trainer = installed(tmp_path, version)
    config = order(**{"--max_train_steps": 60})
    reported = trainer.shortfall(config, CleanExit(step=4, total=60, last_lines=OOM))
    assert reported is not None
    assert reported.startswith(
        "the trainer ended at step 4 of 60 with exit code 0: torch.OutOfMemoryError: CUDA"
    )
    assert trainer.shortfall(config, CleanExit(step=60, total=60)) is None
    assert trainer.shortfall(config, CleanExit(step=59)) is not None


def test_one_that_never_began_has_not_completed_and_one_with_nothing_left_to_do_has(tmp_path: Path) -> None:
    trainer = installed(tmp_path, "3.1.6")
    by_epochs = order(num_train_epochs=2, max_train_steps=0)
    assert trainer.shortfall(by_epochs, CleanExit(step=0)) == (
        "the trainer ended with exit code 0 before its first step"
    )
    assert trainer.shortfall(by_epochs, CleanExit(step=500)) is None
    assert trainer.shortfall(order(max_train_steps=60), CleanExit(step=60)) is None
