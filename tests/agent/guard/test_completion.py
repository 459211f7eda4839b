"""Failed is failed, whatever the exit code says."""

from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.guard import completion
from simpletuner_fleet.agent.guard.completion import checked
from simpletuner_fleet.agent.metrics import reading_time
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.training.completion import NOT_CHECKED
from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths, Surroundings
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer
from tests.agent.metrics.test_tensorboard import NAME, record, scalars

BAR = (
    "Epoch 1/1, Steps: {percent}%|##   | {step}/20 [00:13<00:00,  2.11it/s, lr=0.001, step_loss=1.24]\x1b[0m"
)
VALIDATION = "Processing validation prompts: 100%|#####| 2/2 [00:01<00:00,  1.06it/s]"
ERROR = """Traceback (most recent call last):
  File "train.py", line 1, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
SIMPLETUNER = SimpleTunerTrainer(Surroundings(environment={}, trainer_python="/no/such/python"))
ZERO = AttemptEnding(reason=EndReason.EXITED, exit_code=0)


def offer(**changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 1,
        "attempt_id": "a_1",
        "epoch": 1,
        "config_name": "c",
        "config": {},
        "trainer": "command",
        "upload_endpoint": "",
    }
    return JobSubmit(**{**facts, **changes})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "config.json").write_text("{}")
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")


def bars(*steps: int) -> str:
    return "\r".join(BAR.format(percent=5 * step, step=step) for step in steps)


async def ending_of(
    paths: Paths,
    printed: str,
    habits: CheckpointHabits,
    order: JobSubmit | None = None,
    ending: AttemptEnding = ZERO,
) -> AttemptEnding:
    log = paths.attempt_dir / "output.log"
    log.write_text(printed)
    lines = printed.replace("\r", "\n")
    seen = AttemptEnding(reason=ending.reason, exit_code=ending.exit_code, last_lines=lines)
    return await checked(seen, order or offer(), habits, paths, log)


async def test_simpletuner_that_stopped_in_the_middle_has_failed_with_the_error_as_its_class(
    paths: Paths,
) -> None:
    ending = await ending_of(paths, bars(0, 1, 2, 3, 4) + "\n" + ERROR, SIMPLETUNER)
    report = final_report(None, ending)
    assert report.status is ReportStatus.FAILED
    assert report.error is not None
    assert report.error.startswith(
        "the trainer ended at step 4 of 20 with exit code 0: torch.OutOfMemoryError"
    )
    failure = classify(report.exit_code, None, report.last_lines, report.error, started=True)
    assert failure.code == "gpu_out_of_memory"
    assert "Tried to allocate 2.00 GiB" in failure.evidence


async def test_one_that_stopped_without_a_word_is_incomplete(paths: Paths) -> None:
    report = final_report(None, await ending_of(paths, bars(0, 7) + "\nbye\n", SIMPLETUNER))
    failure = classify(report.exit_code, None, report.last_lines, report.error, started=True)
    assert (report.status, failure.code) == (ReportStatus.FAILED, "incomplete")
    assert failure.evidence == "the trainer ended at step 7 of 20 with exit code 0"


async def test_a_bar_without_a_name_of_the_pictures_it_drew_last_is_not_taken_for_its_end(
    paths: Paths,
) -> None:
    """A pipeline that draws a picture counts its own steps, and says neither whose they are nor a loss."""
    drawn = "100%|#####| 4/4 [00:01<00:00,  1.06it/s]"
    ending = await ending_of(paths, bars(0, 7) + f"\n{drawn}\n" * 400 + "bye\n", SIMPLETUNER)
    assert ending.shortfall == "the trainer ended at step 7 of 20 with exit code 0"
    (paths.output_dir / "metrics.jsonl").write_text('{"step": 7, "loss": 0.5}\n')
    ending = await ending_of(paths, bars(0, 7) + f"\n{drawn}\n", SIMPLETUNER)
    assert ending.shortfall == "the trainer ended at step 7 of 20 with exit code 0"


async def test_one_that_did_its_last_step_has_completed_though_it_draws_pictures_after_it(
    paths: Paths,
) -> None:
    printed = bars(18, 19, 20) + f"\n{VALIDATION}\n" * 400 + "Model weights saved\n"
    assert final_report(None, await ending_of(paths, printed, SIMPLETUNER)).status is ReportStatus.COMPLETED


async def test_one_that_goes_on_from_its_last_checkpoint_has_nothing_left_to_do(paths: Paths) -> None:
    resumed = offer(
        trainer="simpletuner",
        config={"max_train_steps": 20},
        resume={
            "manifest_id": "m_1",
            "name": "checkpoint-20",
            "step": 20,
            "attempt": 1,
            "worker_name": "w",
            "files": [],
        },
    )
    assert (await ending_of(paths, "nothing to do\n", SIMPLETUNER, resumed)).shortfall is None


async def test_one_that_was_being_cancelled_is_cancelled_and_not_failed(paths: Paths) -> None:
    ending = await ending_of(paths, bars(3), SIMPLETUNER)
    assert final_report(EndReason.CANCELLED, ending).status is ReportStatus.CANCELLED
    assert final_report(EndReason.PREEMPTED, ending).status is ReportStatus.RELEASED


async def test_any_program_that_ends_with_a_traceback_has_failed(paths: Paths) -> None:
    report = final_report(None, await ending_of(paths, "loading\n" + ERROR, CheckpointHabits()))
    assert report.status is ReportStatus.FAILED
    handled = await ending_of(paths, ERROR + "tried again, all is well\n", CheckpointHabits())
    assert final_report(None, handled).status is ReportStatus.COMPLETED


async def test_any_other_program_may_end_early_unless_its_config_names_its_steps(paths: Paths) -> None:
    assert (await ending_of(paths, bars(7), CheckpointHabits())).shortfall is None
    named = offer(config={"expected_steps": 20})
    assert (await ending_of(paths, bars(20), CheckpointHabits(), named)).shortfall is None
    short = await ending_of(paths, bars(7), CheckpointHabits(), named)
    assert short.shortfall == "the trainer ended at step 7 of 20 with exit code 0"


async def test_steps_are_read_from_the_trainers_numbers_as_well(paths: Paths) -> None:
    (paths.output_dir / "metrics.jsonl").write_text('{"step": 20, "loss": 0.5}\n')
    named = offer(config={"expected_steps": 20})
    assert (await ending_of(paths, "quiet\n", CheckpointHabits(), named)).shortfall is None


async def test_an_exit_code_that_tells_is_left_as_it_is(paths: Paths) -> None:
    failed = AttemptEnding(reason=EndReason.EXITED, exit_code=3)
    assert (await ending_of(paths, bars(3), SIMPLETUNER, ending=failed)).shortfall is None


async def test_steps_that_only_event_files_tell_are_read_however_many_there_are(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    (paths.output_dir / NAME).write_bytes(b"".join(scalars(step, loss=0.5) for step in range(1, 3_001)))
    for steps, complete in ((3_000, True), (3_001, False)):
        named = offer(config={"expected_steps": steps})
        shortfall = (await ending_of(paths, "quiet\n", CheckpointHabits(), named)).shortfall
        assert (shortfall is None) == complete


async def test_a_bar_that_no_clock_could_show_ends_no_attempt(paths: Paths) -> None:
    bar = "Steps:   1%|#| 1/2 [00:00<" + ":".join(["1"] * 230) + ", 1.00it/s]\n"
    assert (await ending_of(paths, bar, CheckpointHabits())).shortfall is None


async def test_numbers_that_there_was_no_time_for_are_not_said_to_be_missing(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(completion, "EVENTS_WITHIN_S", 0.05)
    named = offer(config={"expected_steps": 20})
    (paths.output_dir / NAME).write_bytes(record(b"\x0a\x00" * 30_000) * 30)
    assert (await ending_of(paths, "quiet\n", CheckpointHabits(), named)).shortfall == NOT_CHECKED
    assert (await ending_of(paths, bars(20), CheckpointHabits(), named)).shortfall is None


async def test_a_training_with_more_numbers_than_there_is_time_for_is_checked_by_the_last(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(completion, "EVENTS_WITHIN_S", 0.0)
    many = b"".join(scalars(step, loss=0.5) for step in range(1, 2_001))
    (paths.output_dir / NAME).write_bytes(many)
    complete = offer(config={"expected_steps": 2_000})
    assert (await ending_of(paths, "quiet\n", CheckpointHabits(), complete)).shortfall is None
    short = offer(config={"expected_steps": 2_001})
    assert (await ending_of(paths, "quiet\n", CheckpointHabits(), short)).shortfall == NOT_CHECKED
