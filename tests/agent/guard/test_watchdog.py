"""A watchdog over files that a trainer might write, with a real orchestrator to tell, and a trainer that can be stopped."""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.guard import watchdog as guard
from simpletuner_fleet.agent.guard.watchdog import (
    WRITTEN,
    TrainerWatchdog,
    Watchdogs,
    WatchdogSettings,
    judged,
)
from simpletuner_fleet.agent.metrics import metric_files, reading_time
from simpletuner_fleet.agent.metrics.follower import MetricSources
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.training.watchdog import Verdict
from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus
from tests.agent.metrics.test_follower import Attempt, attempt, write
from tests.agent.metrics.test_tensorboard import NAME, scalars
from tests.http.api_kit import until

SPOILED = Verdict(trouble="nan", error="watchdog: the loss was NaN at step 3", restart=True, resume_below=3)
NOBODY = "http://127.0.0.1:9"


class Usage(NamedTuple):
    free: int
    total: int


class Trainer:
    def __init__(self) -> None:
        self.paused = False
        self.stopped = asyncio.Event()

    def stop(self, grace_s: float, *, outcome: str = "lost") -> None:
        self.stopped.set()


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def sources(tmp_path: Path) -> MetricSources:
    return MetricSources(
        files=(tmp_path / "metrics.jsonl",),
        output_log=tmp_path / "output.log",
        sent=tmp_path / "sent.json",
        events=tmp_path,
    )


def looks(**more: Any) -> WatchdogSettings:
    given: dict[str, Any] = {
        "every_s": 0.02,
        "disk": lambda path: Usage(2**40, 2**41),
        "now": lambda: 1_700_000_000.0,
    }
    return WatchdogSettings(**{**given, **more})


def an_offer(**watchdog: Any) -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=1,
        config_name="c",
        config={},
        trainer="demo",
        upload_endpoint="",
        watchdog=watchdog,
    )


@pytest.fixture
async def nobody() -> AsyncIterator[OrchestratorClient]:
    """An orchestrator that is away."""
    client = OrchestratorClient(NOBODY, lambda: "token", None)
    yield client
    await client.close()


def guard_of(
    sources: MetricSources,
    trainer: Trainer,
    client: OrchestratorClient,
    clock: Clock | None = None,
    **watchdog: Any,
) -> TrainerWatchdog:
    return TrainerWatchdog(an_offer(**watchdog), sources, client, trainer, looks(monotonic=clock or Clock()))


async def notes_of(one: Attempt) -> list[dict[str, Any]]:
    return list((await one.running.get(f"/api/jobs/{one.offer.job_id}/events"))["notes"])


async def test_a_nan_stops_the_trainer_and_is_told(sources: MetricSources) -> None:
    trainer = Trainer()
    async with attempt() as one:
        watchdog = TrainerWatchdog(one.offer, sources, one.client, trainer, looks())
        running = asyncio.create_task(watchdog.run())
        write(sources.files[0], range(1, 3))
        await asyncio.sleep(0.05)
        assert not trainer.stopped.is_set()
        write(sources.files[0], range(3, 6), loss=math.nan)
        await asyncio.wait_for(trainer.stopped.wait(), 5)
        watchdog.trainer_ended()
        await asyncio.wait_for(running, 5)
        (note,) = await notes_of(one)
        assert (note["kind"], note["text"]) == ("watchdog_nan", "the loss was NaN at step 3; the job fails")
        assert note["data"] == {"step": 3, "key": "loss", "value": "NaN", "policy": "fail"}
    assert watchdog.verdict == Verdict(
        trouble="nan", error="watchdog: the loss was NaN at step 3", resume_below=3
    )


async def test_what_is_ignored_is_told_once_and_the_trainer_goes_on(sources: MetricSources) -> None:
    trainer = Trainer()
    async with attempt() as one:
        one.offer.watchdog = {"nan": "ignore"}
        for _ in range(2):
            watchdog = TrainerWatchdog(one.offer, sources, one.client, trainer, looks())
            (sources.sent.parent / NAME).write_bytes(scalars(7, loss=math.nan))
            watchdog.trainer_ended()
            await asyncio.wait_for(watchdog.run(), 5)
        assert [note["text"] for note in await notes_of(one)] == ["the loss was NaN at step 7; it goes on"]
    assert not trainer.stopped.is_set()


async def test_what_was_found_while_nobody_listened_is_told_by_the_next_agent(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    trainer = Trainer()
    alone = guard_of(sources, trainer, nobody, nan="restart-from-last-good")
    running = asyncio.create_task(alone.run())
    write(sources.files[0], [3], loss=math.nan)
    await asyncio.wait_for(trainer.stopped.wait(), 5)
    running.cancel()
    await asyncio.wait({running})
    sources.files[0].unlink()
    async with attempt() as one:
        again = Trainer()
        watchdog = TrainerWatchdog(one.offer, sources, one.client, again, looks())
        running = asyncio.create_task(watchdog.run())
        await asyncio.wait_for(again.stopped.wait(), 5)
        watchdog.trainer_ended()
        await asyncio.wait_for(running, 5)
        assert [note["kind"] for note in await notes_of(one)] == ["watchdog_nan"]
        assert watchdog.verdict is not None
        assert watchdog.verdict.restart


async def test_a_stall_is_found_by_the_clock_of_what_runs(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    trainer, clock = Trainer(), Clock()
    watchdog = guard_of(sources, trainer, nobody, clock, stall="fail", stall_s=100, stall_first_s=1000)
    write(sources.files[0], [1])
    await watchdog.look_once()
    trainer.paused = True
    clock.at = 5000.0
    await watchdog.look_once()
    trainer.paused = False
    clock.at = 5099.0
    await watchdog.look_once()
    assert not trainer.stopped.is_set()
    clock.at = 5100.0
    await watchdog.look_once()
    assert watchdog.verdict == Verdict(trouble="stall", error="watchdog: no step for 100 s after step 1")
    assert trainer.stopped.is_set()


async def test_a_progress_bar_is_a_step_too(sources: MetricSources, nobody: OrchestratorClient) -> None:
    trainer, clock = Trainer(), Clock()
    watchdog = guard_of(sources, trainer, nobody, clock, stall="fail", stall_s=100)
    for step in range(1, 9):
        sources.output_log.write_text(f"Steps: {step}%|#  | {step}/100 [00:01<00:09, 10.0it/s]\n")
        await watchdog.look_once()
        clock.at += 90.0
    assert watchdog.verdict is None


async def test_a_loss_that_only_a_progress_bar_tells_is_seen(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    trainer = Trainer()
    watchdog = guard_of(sources, trainer, nobody)
    sources.output_log.write_text("Steps:  2%|#  | 2/100 [00:01<00:09, 10.0it/s, loss=nan]\n")
    await watchdog.look_once()
    assert watchdog.verdict is not None
    assert watchdog.verdict.resume_below == 2
    assert trainer.stopped.is_set()


async def test_a_disk_is_warned_of_and_then_acted_upon(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    trainer, clock, left = Trainer(), Clock(), [30e9, 3e9, 0.5e9]
    watchdog = TrainerWatchdog(
        an_offer(disk="fail"),
        sources,
        nobody,
        trainer,
        looks(monotonic=clock, disk=lambda path: Usage(int(left[0]), 10**11)),
    )
    stopped = []
    while left:
        await watchdog.look_once()
        stopped.append(trainer.stopped.is_set())
        left.pop(0)
        clock.at += 30.0
    assert stopped == [False, False, True]
    written = (sources.sent.parent / WRITTEN).read_text()
    assert "getting full" in written
    assert "nearly full" in written


async def test_numbers_are_looked_at_before_a_checkpoint_is_stored(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    calls = []
    watchdogs = Watchdogs(
        nobody,
        looks(every_s=600.0),
        on_verdict=lambda turn, verdict: calls.append((turn, verdict.resume_below)),
    )
    offer = an_offer()
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watchdogs.watch(offer, sources, Trainer(), ending)
    await watchdogs.look_now(turn_of(offer))
    write(sources.files[0], [3], loss=math.inf)
    await watchdogs.look_now(turn_of(offer))
    assert calls == [(turn_of(offer), 3)]
    ending.set_result(None)
    judged_so = await watchdogs.last_word(turn_of(offer), AttemptEnding(reason=EndReason.EXITED, exit_code=0))
    assert judged_so.error == "watchdog: the loss was infinite at step 3"
    assert not watchdogs.are_over(turn_of(offer))
    watchdogs.hurry()
    await until(_holds(lambda: watchdogs.are_over(turn_of(offer))))
    watchdogs.forget(turn_of(offer))


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look has time for a hundred lines."""
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(metric_files, "PIECE_LINES", 100)


@pytest.mark.usefixtures("short_looks")
async def test_a_loss_at_the_end_of_many_numbers_is_seen_before_a_checkpoint_is_stored_and_at_the_end(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    write(sources.files[0], range(1, 951))
    write(sources.files[0], [951], loss=math.nan)
    before_stored, ended = (guard_of(sources, Trainer(), nobody) for _ in range(2))
    await before_stored.look_once()
    assert before_stored.verdict is None
    await before_stored.look_through()
    ended.trainer_ended()
    running = asyncio.create_task(ended.run())
    await asyncio.wait_for(ended.looked_last.wait(), 5)
    for watchdog in (before_stored, ended):
        assert watchdog.verdict is not None
        assert watchdog.verdict.resume_below == 951
    ended.stop()
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.usefixtures("short_looks")
async def test_a_checkpoint_waits_for_no_file_without_end(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    sources.files[0].write_bytes(b"no numbers\n" * 1_000_000)
    watchdog = guard_of(sources, Trainer(), nobody)
    await asyncio.wait_for(watchdog.look_through(), 5)
    write(sources.sent.parent / "metrics.jsonl", [1], mode="w", loss=math.nan)
    await watchdog.look_through()
    assert watchdog.verdict is not None


@pytest.mark.usefixtures("short_looks")
async def test_after_the_end_it_looks_for_so_long_and_no_longer_and_says_so(
    sources: MetricSources,
    nobody: OrchestratorClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(guard, "LAST_LOOK_WITHIN_S", 0.05)
    sources.files[0].write_bytes(b"no numbers\n" * 1_000_000)
    watchdog = guard_of(sources, Trainer(), nobody)
    watchdog.trainer_ended()
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(watchdog.run(), 5)
    assert caplog.messages == ["job j_1: there was no time to look at all of its numbers"]


async def test_files_of_holes_keep_no_attempt_from_its_end(
    sources: MetricSources, nobody: OrchestratorClient
) -> None:
    for path in (*sources.files, sources.sent.parent / NAME):
        path.touch()
        os.truncate(path, 2**40)
    watchdog = guard_of(sources, Trainer(), nobody)
    watchdog.trainer_ended()
    await asyncio.wait_for(watchdog.run(), 5)
    assert watchdog.over.is_set()


async def test_a_training_whose_numbers_are_read_no_further_does_not_stand_still(
    sources: MetricSources, nobody: OrchestratorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_files, "MOST_LINES", 5)
    trainer, clock = Trainer(), Clock()
    watchdog = guard_of(sources, trainer, nobody, clock, stall="fail", stall_s=100)
    for step in range(1, 21):
        write(sources.files[0], [step])
        await watchdog.look_once()
        clock.at += 90.0
    assert watchdog.verdict is None


def _holds(true: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return true()

    return look


@pytest.mark.parametrize(
    ("ending", "verdict", "reason"),
    [
        (AttemptEnding(reason=EndReason.STOPPED), SPOILED, "watchdog"),
        (AttemptEnding(reason=EndReason.EXITED, exit_code=1), SPOILED, "watchdog"),
        (AttemptEnding(reason=EndReason.EXITED, exit_code=0), SPOILED, "watchdog"),
        (AttemptEnding(reason=EndReason.EXITED, exit_code=0), Verdict(trouble="stall", error="no"), "exited"),
        (AttemptEnding(reason=EndReason.FENCED), SPOILED, "fenced"),
        (AttemptEnding(reason=EndReason.EXITED, exit_code=1), None, "exited"),
    ],
)
def test_who_ended_it_is_told(ending: AttemptEnding, verdict: Verdict | None, reason: str) -> None:
    assert judged(ending, verdict).reason == reason


def test_the_report_asks_for_the_restart() -> None:
    report = final_report(None, judged(AttemptEnding(reason=EndReason.EXITED, exit_code=0), SPOILED))
    assert (report.status, report.restart, report.resume_below) == (ReportStatus.FAILED, True, 3)
    assert report.error == SPOILED.error
