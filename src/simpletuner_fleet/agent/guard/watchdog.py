"""Watches the trainings on this machine, stops those that their jobs want stopped, and reports what it found.

Findings are written down before they are reported, so that neither a restart nor an orchestrator that is away loses
one.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.data.resume import resumed_from
from simpletuner_fleet.agent.metrics.follower import MetricSources
from simpletuner_fleet.agent.metrics.metric_files import latest_bar
from simpletuner_fleet.agent.metrics.readings import Readings
from simpletuner_fleet.agent.ship.courier import Courier, RetryRule, SendersByAttempt, Sent, pause
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.core.training.metrics import Point
from simpletuner_fleet.core.training.watchdog import (
    Finding,
    Verdict,
    Watch,
    read_watchdog,
    rules_of,
    verdict_of,
)
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.uploads import Note

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
DISK_EVERY_S = 20.0
LAST_LOOK_WITHIN_S = 60.0
"""How long numbers are read after their trainer's end, whose report waits for that."""
MOST_LOOKS_BEFORE_STORED = 10
"""A checkpoint waits so many looks at most, a second each, for numbers that take longer to read."""
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and takes no notes."""
STOP_GRACE_S = 30.0
WRITTEN = "watchdog.json"
KINDS = {"nan": "watchdog_nan", "stall": "watchdog_stall", "disk": "watchdog_disk"}
FOLLOWS = {
    "fail": "the job fails",
    "restart-from-last-good": "it goes back to its last good checkpoint",
    "ignore": "it goes on",
}


class Usage(Protocol):
    """Describes the answer of shutil.disk_usage."""

    @property
    def free(self) -> int: ...
    @property
    def total(self) -> int: ...


class WatchedTrainer(Protocol):
    """Declares what a watchdog needs of the trainer that it watches."""

    @property
    def paused(self) -> bool: ...
    def stop(self, grace_s: float, *, outcome: Outcome = Outcome.LOST) -> None: ...


class WatchdogSettings(Struct, frozen=True, kw_only=True):
    """Sets how often a watchdog looks and how long it tries to report, and which clocks and disk it reads."""

    every_s: float = LOOK_EVERY_S
    disk_every_s: float = DISK_EVERY_S
    patience_s: float = PATIENCE_S
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    disk: Callable[[Path], Usage] = shutil.disk_usage


class _WatchdogRecord(Struct):
    notes: list[Note] = []
    sent: int = 0
    verdict: Verdict | None = None


class _Observation(NamedTuple):
    findings: list[Finding]
    step: int | None
    total: int | None


class TrainerWatchdog:
    """Watches one attempt. It is `over` once there is nothing more to report, or nobody to report it to."""

    def __init__(
        self,
        offer: JobSubmit,
        sources: MetricSources,
        client: OrchestratorClient,
        trainer: WatchedTrainer | None = None,
        settings: WatchdogSettings | None = None,
    ) -> None:
        """An attempt that has ended has no `trainer`."""
        self._job_id, self._epoch = offer.job_id, offer.epoch
        self._sources, self._client, self._trainer = sources, client, trainer
        self._settings = settings or WatchdogSettings()
        self._file = sources.sent.with_name(WRITTEN)
        since = resumed_from(offer)
        self.over = asyncio.Event()
        self._readings = Readings(
            sources.files,
            sources.events,
            since or 0,
            after_end_s=LAST_LOOK_WITHIN_S,
            stopped=self.over.is_set,
        )
        self._watch = Watch(rules_of(read_watchdog(offer.watchdog)), self._settings.monotonic(), since)
        self._written = _WatchdogRecord()
        self._loaded = False
        self._one_at_a_time = asyncio.Lock()
        self._disk_at: float | None = None
        self._courier = Courier(
            f"job {offer.job_id}: its notes",
            self._send_notes,
            RetryRule(patience_s=self._settings.patience_s),
            client.hearings,
            clock=self._settings.monotonic,
        )
        self.looked_last = asyncio.Event()
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None

    @property
    def verdict(self) -> Verdict | None:
        return self._written.verdict

    def trainer_ended(self) -> None:
        self._courier.trainer_ended()

    def stop(self) -> None:
        self.over.set()
        self._courier.stop()

    async def run(self) -> None:
        """Returns when the trainer has ended and all is told, or it is told to stop."""
        telling = asyncio.create_task(self._courier.run())
        try:
            while not self._courier.ended.is_set():
                await self.look_once()
                await pause(self._settings.every_s, self._courier.ended)
            await self._look_last()
            self.looked_last.set()
            self._courier.wake()
            await telling
        finally:
            telling.cancel()
            self.looked_last.set()
            self.over.set()

    async def look_through(self) -> None:
        """Looks until all is read that stands there now, or a checkpoint would wait too long."""
        for _ in range(MOST_LOOKS_BEFORE_STORED):
            await self.look_once()
            if self.verdict or not self._readings.behind:
                break

    async def _look_last(self) -> None:
        await self.look_once(last=True)
        while self._readings.behind and not self.verdict:
            await self.look_once(last=True)
        if self._readings.cut_short and not self.verdict:
            log.warning("job %s: there was no time to look at all of its numbers", self._job_id)

    async def look_once(self, *, last: bool = False) -> None:
        """Looks now, for a second or so. What is found is written down, and acted upon once."""
        async with self._one_at_a_time:
            if not self._loaded:
                self._written = await asyncio.to_thread(self._load)
                self._loaded = True
                self._courier.wake()
                if self.verdict:
                    self._act(self.verdict)
            if self.verdict is None:
                await self._take(await asyncio.to_thread(self._see, last))

    async def _take(self, observation: _Observation) -> None:
        findings = observation.findings
        paused = self._trainer is not None and self._trainer.paused
        # A training is not known to stand still where its numbers are read no further.
        if not self._courier.ended.is_set() and not self._readings.gave_up:
            findings += self._watch.saw_progress(
                self._settings.monotonic(), observation.step, observation.total, paused=paused
            )
        if not findings:
            return
        known = {note.id for note in self._written.notes}
        self._written.notes += [self._note(finding) for finding in findings if finding.id not in known]
        self._written.verdict = next(filter(None, map(verdict_of, findings)), None)
        await asyncio.to_thread(self._save)
        self._courier.wake()
        for finding in findings:
            log.warning("job %s: %s; %s", self._job_id, finding.text, FOLLOWS[finding.policy])
        if self.verdict:
            self._act(self.verdict)

    def _see(self, last: bool) -> _Observation:
        findings = self._watch.saw_points(self._readings.read(at_once=last))
        latest = self._readings.latest()
        bar = latest_bar(self._sources.output_log)
        if bar and not latest:
            findings += self._watch.saw_points([Point(step=bar.step, values=bar.values)])
        step = latest[-1].step if latest else bar.step if bar else None
        total = (latest[-1].total if latest else None) or (bar.total if bar else None)
        if not last:
            findings += self._see_disk()
        return _Observation(findings, step, total)

    def _see_disk(self) -> list[Finding]:
        now = self._settings.monotonic()
        if self._disk_at is not None and now - self._disk_at < self._settings.disk_every_s:
            return []
        self._disk_at = now
        try:
            usage = self._settings.disk(self._file.parent)
        except OSError as error:
            log.debug("job %s: its disk cannot be looked at: %s", self._job_id, error)
            return []
        return self._watch.saw_disk(usage.free, usage.total)

    def _note(self, finding: Finding) -> Note:
        return Note(
            id=finding.id,
            at=self._settings.now(),
            kind=KINDS[finding.trouble],
            text=f"{finding.text}; {FOLLOWS[finding.policy]}",
            data={**finding.data, "policy": finding.policy},
        )

    def _act(self, verdict: Verdict) -> None:
        self.on_verdict(verdict)
        if self._trainer is not None and not self._courier.ended.is_set():
            self._trainer.stop(STOP_GRACE_S, outcome=Outcome.LOST)

    async def send_once(self) -> bool:
        """Sends what is written down, or waits for it. Returns False when nothing is left to do, now and ever."""
        return await self._courier.send_once()

    async def _send_notes(self, ended: bool) -> Sent:
        """Sends the notes in their order, each until it is answered."""
        waiting = self._written.notes[self._written.sent :]
        if not waiting:
            return Sent.DONE if self.looked_last.is_set() else Sent.ALL
        await self._client.send_notes(self._job_id, self._epoch, waiting)
        self._written.sent += len(waiting)
        await asyncio.to_thread(self._save)
        return Sent.MORE

    def _load(self) -> _WatchdogRecord:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_WatchdogRecord)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return _WatchdogRecord()

    def _save(self) -> None:
        temporary = self._file.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(self._written))
            os.replace(temporary, self._file)
        except OSError as error:
            log.warning("job %s: what was found is kept in memory alone: %s", self._job_id, error)


class Watchdogs(SendersByAttempt[TrainerWatchdog]):
    """Runs the watchdogs of all attempts on this machine."""

    def __init__(
        self,
        client: OrchestratorClient,
        settings: WatchdogSettings | None = None,
        on_over: Callable[[], None] = lambda: None,
        on_verdict: Callable[[Turn, Verdict], None] = lambda turn, verdict: None,
    ) -> None:
        super().__init__("watching a training", on_over)
        self._client, self._settings, self._on_verdict = client, settings, on_verdict

    def watch(
        self,
        offer: JobSubmit,
        sources: MetricSources,
        trainer: WatchedTrainer | None,
        ending: Awaitable[object],
    ) -> None:
        turn = turn_of(offer)
        watchdog = TrainerWatchdog(offer, sources, self._client, trainer, self._settings)
        watchdog.on_verdict = lambda verdict: self._on_verdict(turn, verdict)
        self.begin(turn, watchdog, ending, lambda _: watchdog.trainer_ended())

    async def look_now(self, turn: Turn) -> None:
        watchdog = self.get(turn)
        if watchdog:
            await watchdog.look_through()

    async def last_word(self, turn: Turn, ending: AttemptEnding) -> AttemptEnding:
        """Returns how the attempt is to be reported: as it ended, unless the watchdog has ended it."""
        watchdog = self.get(turn)
        if watchdog is None:
            return ending
        await pause(LAST_LOOK_WITHIN_S, watchdog.looked_last)
        return judged(ending, watchdog.verdict)


def judged(ending: AttemptEnding, verdict: Verdict | None) -> AttemptEnding:
    """Returns the ending after the watchdog's verdict.

    A model that is spoiled has failed, however its trainer ended; a trainer that ended well has not stalled.
    """
    if verdict is None or ending.reason not in (EndReason.EXITED, EndReason.STOPPED):
        return ending
    if ending.reason is EndReason.EXITED and ending.exit_code == 0 and verdict.trouble != "nan":
        return ending
    return replace(
        ending,
        reason=EndReason.WATCHDOG,
        error=verdict.error,
        restart=verdict.restart,
        resume_below=verdict.resume_below,
    )
