"""Combines everything that sends for the attempts on this machine: uploads, numbers, logs and watchdogs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.guard.runner import TrainerExit
from simpletuner_fleet.agent.guard.watchdog import Watchdogs
from simpletuner_fleet.agent.metrics.follower import MetricsFollowers, MetricSources, Progress
from simpletuner_fleet.agent.nodes.spanned import LOGS, AttemptProcess
from simpletuner_fleet.agent.ship.logs.log_shipper import LogShippers, LogSources
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits
from simpletuner_fleet.agent.ship.masking import Mask
from simpletuner_fleet.agent.ship.uploads import Uploads
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Results
from simpletuner_fleet.core.training.watchdog import Verdict
from simpletuner_fleet.protocol.messages import JobSubmit, StatusReport
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, rank_logs_beneath
from simpletuner_fleet.trainers.contract import Paths

METRICS_SENT = "metrics-sent.json"


class AttemptEvents(Protocol):
    """Listens to what attempts do by themselves."""

    def checkpoint_stored(self, turn: Turn, step: int) -> None:
        """Is called when a checkpoint is safely off this machine."""

    def progress_report(self, turn: Turn, progress: Progress) -> StatusReport | None:
        """Takes how far the trainer is, and returns the report to send, if there is one to send."""

    def out_of_time(self, turn: Turn) -> None:
        """Is called when the time limit is reached and the shim waits for a checkpoint to be saved."""

    def sending_ended(self) -> None:
        """Is called when a report may have nothing more to wait for."""


class NoEvents:
    """Ignores all events, for where nobody listens to attempts."""

    def checkpoint_stored(self, turn: Turn, step: int) -> None: ...
    def progress_report(self, turn: Turn, progress: Progress) -> StatusReport | None: ...
    def out_of_time(self, turn: Turn) -> None: ...
    def sending_ended(self) -> None: ...


class AttemptMaterial(Struct, frozen=True, kw_only=True):
    """Holds what the senders of an attempt need: where its output and results are, and what to mask."""

    folder: Path
    output_log: Path
    paths: Paths
    habits: CheckpointHabits
    mask: Mask | None
    """None: an attempt that ended while there was no agent took its secrets with it."""


class AttemptSenders:
    def __init__(
        self,
        client: OrchestratorClient,
        events: AttemptEvents,
        bandwidth: Bandwidth,
        log_limits: LogLimits | None,
    ) -> None:
        self.uploads = Uploads(
            client,
            bandwidth,
            on_over=events.sending_ended,
            on_stored=events.checkpoint_stored,
            before_stored=self._before_stored,
        )
        self.metrics = MetricsFollowers(client, events.sending_ended, events.progress_report)
        self.logs = LogShippers(client, log_limits, events.sending_ended)
        self.watchdogs = Watchdogs(client, on_over=events.sending_ended, on_verdict=self._condemned)

    def has_sent_all(self, turn: Turn) -> bool:
        """Returns whether its report may go: whatever was to arrive before it has, or will not."""
        senders = (self.logs, self.metrics, self.uploads, self.watchdogs)
        return all(sender.are_over(turn) for sender in senders)

    def left_something(self, turn: Turn) -> bool:
        """Returns whether something of it that was wanted could not be sent, and is nowhere but here."""
        return self.uploads.left_something(turn) or self.logs.left_something(turn)

    def was_cut_short(self, turn: Turn) -> bool:
        """Returns whether there was no time to send all of it: the next start goes on."""
        uploader = self.uploads.get(turn)
        return self.logs.was_cut_short(turn) or (uploader is not None and uploader.cut_short)

    def trouble(self, turn: Turn) -> str:
        """Tells what keeps something of it from being stored; empty where nothing does."""
        uploader = self.uploads.get(turn)
        return (uploader.trouble if uploader else "") or self.logs.trouble(turn)

    def results(self, turn: Turn) -> Results:
        """Tells whether what it made is safe, once nothing more is sent."""
        if self.left_something(turn):
            return Results.MISSING
        uploader = self.uploads.get(turn)
        stored = (uploader is not None and uploader.stored_something) or self.logs.sent_something(turn)
        return Results.STORED if stored else Results.NONE

    def hurry(self) -> None:
        """Stops all sending, because there is no more time: what was not sent stays here."""
        for sender in (self.uploads, self.metrics, self.watchdogs, self.logs):
            sender.hurry()

    def forget(self, turn: Turn) -> None:
        for sender in (self.uploads, self.metrics, self.watchdogs, self.logs):
            sender.forget(turn)

    def begin(
        self, offer: JobSubmit, material: AttemptMaterial, until: AttemptProcess | AttemptEnding
    ) -> asyncio.Task[None]:
        """Returns the task of the uploads."""
        paths, habits = material.paths, material.habits
        sources = MetricSources(
            files=tuple(habits.progress_files(paths)),
            output_log=material.output_log,
            sent=material.folder / METRICS_SENT,
            events=habits.output_folder(paths),
            bars_tell=habits.bars_tell(paths),
        )
        self.metrics.follow(offer, sources, _end(until))
        trainer = None if isinstance(until, AttemptEnding) else until
        self.watchdogs.watch(offer, sources, trainer, _end(until))
        self._ship_logs(offer, material, until)
        return self.uploads.upload(offer, paths, habits, _end(until))

    def send_leftovers(
        self, offer: JobSubmit, material: AttemptMaterial, reason: EndReason, over: Callable[[bool], None]
    ) -> None:
        """Sends the log, and the results if it ended well, of an attempt whose end was told while there was no agent.

        `over` is told, unless there was no time for all of it, whether something could not be sent.
        """
        turn = turn_of(offer)
        tasks: list[asyncio.Task[None]] = []
        if reason is EndReason.EXITED:
            tasks.append(self.begin(offer, material, AttemptEnding(exit_code=0)))
        else:
            self._ship_logs(offer, material, AttemptEnding(reason=reason))
        tasks.append(self.logs.task(turn))

        def close(_: asyncio.Task[None]) -> None:
            if all(task.done() for task in tasks):
                unstored = self.left_something(turn)
                self.uploads.forget(turn)
                self.logs.forget(turn)
                if not any(task.cancelled() for task in tasks):
                    over(unstored)

        for task in tasks:
            task.add_done_callback(close)

    def _ship_logs(
        self, offer: JobSubmit, material: AttemptMaterial, until: AttemptProcess | AttemptEnding
    ) -> None:
        sources = LogSources(
            output_log=material.output_log,
            folder=material.folder,
            rank_logs=lambda: {
                **material.habits.rank_logs(material.paths),
                **rank_logs_beneath(material.folder / LOGS),
            },
            mask=material.mask or mask_of(offer),
            unmaskable=material.mask is None and bool(offer.secrets),
        )
        self.logs.begin(offer, sources, _end(until))

    async def _before_stored(self, turn: Turn) -> None:
        """Runs the watchdog and sends the numbers before a checkpoint counts as stored.

        Whoever goes on from it has its numbers, and knows that it is not spoiled.
        """
        await self.watchdogs.look_now(turn)
        await self.metrics.flush(turn)

    def _condemned(self, turn: Turn, verdict: Verdict) -> None:
        if verdict.resume_below is not None:
            self.uploads.spoiled_from(turn, verdict.resume_below)
        if verdict.restart:
            self.uploads.goes_on_elsewhere(turn)


def mask_of(offer: JobSubmit) -> Mask:
    token = [offer.upload_token] if isinstance(offer.upload_token, str) else []
    return Mask.of([*(offer.secrets or {}).values(), *token])


async def _end(until: AttemptProcess | AttemptEnding) -> TrainerExit | AttemptEnding:
    return until if isinstance(until, AttemptEnding) else await until.wait()
