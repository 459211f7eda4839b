"""Tells the orchestrator how trainings go: each point of their numbers once, and how far they are.

Points are counted; the files they stand in are the memory, so an orchestrator that is away costs nothing but time.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.backoff import Backoff
from simpletuner_fleet.agent.client import OrchestratorClient, Refused, TokenRejected, Unreachable
from simpletuner_fleet.agent.inbox import Turn, turn_of
from simpletuner_fleet.agent.metric_files import MetricFile, Piece, furthest, latest_bar, newest
from simpletuner_fleet.agent.readings import Readings
from simpletuner_fleet.agent.resume import resumed_from
from simpletuner_fleet.agent.tensorboard import EventFile, EventFolder
from simpletuner_fleet.core.metrics import Bar, Point, eta_s, learning_rate_of, loss_of, rate_of
from simpletuner_fleet.protocol.messages import JobSubmit, StatusReport
from simpletuner_fleet.protocol.metrics import MAX_BATCH, MetricPoint, to_wire

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and takes nothing."""
FLUSH_WITHIN_S = 5.0
Progress = dict[str, Any]


class _Place(Struct):
    offset: int
    tail: str


class _Sent(Struct):
    """What a process after this one needs to go on."""

    next: int
    files: dict[str, _Place]


class Sources(Struct, frozen=True, kw_only=True):
    """Where an attempt's numbers are found, and where is kept how many were sent."""

    files: tuple[Path, ...]
    output_log: Path
    sent: Path
    events: Path | None = None
    """The folder beneath which TensorBoard's files appear."""


class Follower:
    """One attempt's; `over` once nothing more will be sent."""

    def __init__(
        self,
        offer: JobSubmit,
        sources: Sources,
        client: OrchestratorClient,
        *,
        look_every_s: float = LOOK_EVERY_S,
        patience_s: float = PATIENCE_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job_id, self._epoch = offer.job_id, offer.epoch
        self._sources, self._client, self._clock = sources, client, clock
        self._look_every_s, self._patience_s = look_every_s, patience_s
        self._backoff = backoff or Backoff(0.25, 10.0)
        self._files: list[MetricFile | EventFile] = [MetricFile(path) for path in sources.files]
        self._events = EventFolder(sources.events, since=resumed_from(offer) or 0)
        self._readings = Readings((), sources.events, since=resumed_from(offer) or 0)
        self._places: dict[str, _Place] = {}
        self._next = 0
        self._takes_points = True
        self._ended = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._troubled_since: float | None = None
        self._told: Progress | None = None
        self.over = asyncio.Event()
        self.on_progress: Callable[[Progress], StatusReport | None] = lambda progress: None
        """Answers with the report to send, if there is one to send."""

    def trainer_ended(self) -> None:
        self._ended.set()

    def stop(self) -> None:
        self.over.set()
        self._ended.set()

    async def run(self) -> None:
        """Until the trainer has ended and all is told, the attempt is stale, or it is told to stop."""
        try:
            async with self._one_at_a_time:
                await asyncio.to_thread(self._load)
            while not self.over.is_set():
                last = self._ended.is_set()
                try:
                    await self._look()
                except (Unreachable, TokenRejected) as error:
                    log.debug("job %s: its numbers wait: %s", self._job_id, error)
                    await self._pause(self._backoff.next_s(), self.over)
                except Refused as problem:
                    if not self._goes_on_after(problem):
                        return
                    await self._pause(self._backoff.next_s(), self.over)
                else:
                    if last:
                        return
                    await self._pause(self._look_every_s, self._ended)
        finally:
            self.over.set()

    async def _look(self) -> None:
        """The step is noted before anything is sent: heartbeats tell it even if nothing else gets through."""
        progress = await asyncio.to_thread(self._progress)
        report = self.on_progress(progress) if progress and progress != self._told else None
        await self._send_all()
        if report:
            await self._client.report(self._job_id, report)
            self._told = progress
        self._troubled_since = None
        self._backoff.reset()

    async def flush(self) -> None:
        """What stands in the files is sent now, if that can be done at once."""
        with contextlib.suppress(Unreachable, Refused, TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await self._send_all()

    async def _send_all(self) -> None:
        async with self._one_at_a_time:
            while self._takes_points and await self._send_points():
                pass

    async def _send_points(self) -> bool:
        """Whether there may be more at once."""
        pieces = await asyncio.to_thread(self._gather)
        points = [point for _, piece in pieces for point in piece.points]
        if points:
            stored = await self._send(points)
            if stored is None:
                return False
            if stored < self._next:
                self._start_over(stored)
                return True
            if stored < self._next + len(points):
                raise Unreachable(ValueError(f"only {stored} points were kept"), refused=False)
        for file, piece in pieces:
            file.take(piece)
        self._next += len(points)
        if points:
            await asyncio.to_thread(self._save)
        return any(piece.fresh for _, piece in pieces)

    async def _send(self, points: Sequence[Point]) -> int | None:
        """How many the orchestrator has then; None where it wants no more."""
        try:
            return await self._client.send_metrics(
                self._job_id, self._epoch, self._next, [self._on_wire(point) for point in points]
            )
        except Refused as problem:
            if isinstance(problem, TokenRejected) or problem.passing or problem.code == "stale_attempt":
                raise
            log.warning(
                "job %s: the orchestrator takes no more of its numbers: %s", self._job_id, problem.detail
            )
            self._takes_points = False
            return None

    def _start_over(self, stored: int) -> None:
        """What the orchestrator has is counted again and passed over by it."""
        log.warning("job %s: the orchestrator has only %d points: sent again", self._job_id, stored)
        self._next = 0
        for file in self._files:
            file.rewind()

    def _on_wire(self, point: Point) -> MetricPoint:
        values = {key: to_wire(value) for key, value in point.values.items()}
        return MetricPoint(step=point.step, at=self._clock() if point.at is None else point.at, values=values)

    def _gather(self) -> list[tuple[MetricFile | EventFile, Piece]]:
        pieces: list[tuple[MetricFile | EventFile, Piece]] = []
        self._find_events()
        room = MAX_BATCH
        for file in self._files:
            piece = file.peek(room)
            if piece:
                room -= len(piece.points)
                pieces.append((file, piece))
        return pieces

    def _find_events(self) -> None:
        for file in self._events.look(at_once=self._ended.is_set()):
            place = self._places.get(file.name)
            if place:
                file.restore(place.offset, bytes.fromhex(place.tail))
            self._files.append(file)

    def _progress(self) -> Progress | None:
        self._readings.read()
        points = furthest([newest(self._sources.files), self._readings.latest()])
        return progress_of(points, latest_bar(self._sources.output_log))

    def _goes_on_after(self, problem: Refused) -> bool:
        if not problem.passing:
            return False
        now = self._clock()
        self._troubled_since = now if self._troubled_since is None else self._troubled_since
        return not self._ended.is_set() or now - self._troubled_since <= self._patience_s

    async def _pause(self, seconds: float, unless: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await unless.wait()

    def _load(self) -> None:
        try:
            sent = msgspec.json.decode(self._sources.sent.read_bytes(), type=_Sent)
            for file in self._files:
                place = sent.files.get(file.name)
                if place:
                    file.restore(place.offset, bytes.fromhex(place.tail))
        except (OSError, ValueError, msgspec.MsgspecError):
            return
        self._next, self._places = sent.next, sent.files

    def _save(self) -> None:
        files = {file.name: _Place(file.offset, file.tail.hex()) for file in self._files}
        temporary = self._sources.sent.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(_Sent(self._next, files)))
            os.replace(temporary, self._sources.sent)
        except OSError as error:
            log.debug("job %s: how many points were sent is not written down: %s", self._job_id, error)


class Metrics:
    """The followers of all attempts on this machine."""

    def __init__(self, client: OrchestratorClient) -> None:
        self._client = client
        self._followers: dict[Turn, tuple[Follower, asyncio.Task[None]]] = {}
        self.on_progress: Callable[[Turn, Progress], StatusReport | None] = lambda turn, progress: None
        self.on_over: Callable[[], None] = lambda: None

    def begin(self, offer: JobSubmit, sources: Sources, ending: Awaitable[object]) -> None:
        turn = turn_of(offer)
        follower = Follower(offer, sources, self._client)
        follower.on_progress = lambda progress: self.on_progress(turn, progress)
        task = asyncio.create_task(_run(follower, ending))
        task.add_done_callback(self._is_over)
        self._followers[turn] = (follower, task)

    def are_over(self, turn: Turn) -> bool:
        """Whether its report may go: whatever was to arrive before it has, or will not."""
        found = self._followers.get(turn)
        return found is None or found[0].over.is_set()

    async def flush(self, turn: Turn) -> None:
        found = self._followers.get(turn)
        if found:
            await found[0].flush()

    def hurry(self) -> None:
        for follower, _ in self._followers.values():
            follower.stop()
        self.on_over()

    def forget(self, turn: Turn) -> None:
        found = self._followers.pop(turn, None)
        if found:
            found[0].stop()
            found[1].cancel()

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            log.error("following a training's numbers failed", exc_info=task.exception())
        self.on_over()


async def _run(follower: Follower, ending: Awaitable[object]) -> None:
    async with asyncio.TaskGroup() as both:
        following = both.create_task(follower.run())
        await ending
        follower.trainer_ended()
        await following


def progress_of(points: Sequence[Point], bar: Bar | None) -> Progress | None:
    """From the last points where there are any; a progress bar fills in what they do not say."""
    if not points and bar is None:
        return None
    values = {**(bar.values if bar else {}), **(points[-1].values if points else {})}
    step = points[-1].step if points else bar.step if bar else 0
    total = (points[-1].total if points else None) or (bar.total if bar and step <= bar.total else None)
    rate = rate_of([(point.step, point.at) for point in points if point.at is not None])
    rate = rate or (bar.rate if bar else None)
    loss, learning_rate, left_s = loss_of(values), learning_rate_of(values), eta_s(step, total, rate)
    told: Progress = {
        "step": step,
        "total": total,
        "loss": None if loss is None else to_wire(loss),
        "lr": None if learning_rate is None else to_wire(learning_rate),
        "rate": None if rate is None else round(rate, 4),
        "eta_s": None if left_s is None else round(left_s, 1),
    }
    return {name: value for name, value in told.items() if value is not None}
