"""Tells the orchestrator how trainings go: each point of their numbers once, and how far they are.

Points are counted; the files they stand in are the memory, so an orchestrator that is away costs nothing but time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from simpletuner_fleet.agent import gpu_points
from simpletuner_fleet.agent.backoff import Backoff
from simpletuner_fleet.agent.client import OrchestratorClient, Refused, TokenRejected, Unreachable
from simpletuner_fleet.agent.gpu_points import GpuJournal
from simpletuner_fleet.agent.inbox import Turn, turn_of
from simpletuner_fleet.agent.metric_files import furthest, latest_bar, newest
from simpletuner_fleet.agent.point_sending import PointSender
from simpletuner_fleet.agent.readings import Readings
from simpletuner_fleet.agent.resume import resumed_from
from simpletuner_fleet.agent.tensorboard import EventFolder
from simpletuner_fleet.core.metrics import Bar, Point, eta_s, learning_rate_of, loss_of, rate_of
from simpletuner_fleet.protocol.messages import GpuSample, JobSubmit, StatusReport
from simpletuner_fleet.protocol.metrics import to_wire

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and takes nothing."""
FLUSH_WITHIN_S = 5.0
Progress = dict[str, Any]


class Sources(Struct, frozen=True, kw_only=True):
    """Where an attempt's numbers are found, and where is kept how many were sent."""

    files: tuple[Path, ...]
    output_log: Path
    sent: Path
    events: Path | None = None
    """The folder beneath which TensorBoard's files appear."""

    @property
    def gpus(self) -> Path:
        """Written by the agent itself; a folder of the attempt's own, where nobody else leaves numbers."""
        return self.sent.with_name(gpu_points.NAME)


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
        self._job_id = offer.job_id
        self._sources, self._client, self._clock = sources, client, clock
        self._look_every_s, self._patience_s = look_every_s, patience_s
        self._backoff = backoff or Backoff(0.25, 10.0)
        self._step = resumed_from(offer) or 0
        self._readings = Readings((), sources.events, since=self._step)
        self._ended = asyncio.Event()
        self._training = PointSender(
            offer.job_id,
            sources.files,
            sources.sent,
            lambda first, points: client.send_metrics(offer.job_id, offer.epoch, first, points),
            events=EventFolder(sources.events, since=self._step),
            ended=self._ended.is_set,
            clock=clock,
        )
        self._gpus = PointSender(
            offer.job_id,
            [sources.gpus],
            sources.sent.with_name(gpu_points.SENT),
            lambda first, points: client.send_gpu_metrics(offer.job_id, offer.epoch, first, points),
            clock=clock,
        )
        self._journal = GpuJournal(offer, sources.gpus, clock)
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
            await self._training.load()
            await self._gpus.load()
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
        if progress:
            self._step = progress["step"]
        report = self.on_progress(progress) if progress and progress != self._told else None
        await self._training.send_all()
        if report:
            await self._client.report(self._job_id, report)
            self._told = progress
        await self._gpus.send_all()
        self._troubled_since = None
        self._backoff.reset()

    async def note_gpus(self, samples: Sequence[GpuSample]) -> None:
        """Those of its own GPUs are kept with the job, at the step it is at; a GPU's point is no step."""
        if not self._ended.is_set():
            await asyncio.to_thread(self._journal.note, samples, self._step)

    async def flush(self) -> None:
        """What stands in the trainer's files is sent now, if that can be done at once."""
        with contextlib.suppress(Unreachable, Refused, TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await self._training.send_all()

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

    async def note_gpus(self, samples: Sequence[GpuSample]) -> None:
        for follower, _ in list(self._followers.values()):
            await follower.note_gpus(samples)

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
