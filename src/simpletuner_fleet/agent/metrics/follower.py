"""Sends the numbers of trainings to the orchestrator, each point once, and reports how far they are.

Points are counted, and stay in the files they were read from, so an orchestrator that is away costs nothing but time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.data.resume import resumed_from
from simpletuner_fleet.agent.metrics import bar_points, gpu_points
from simpletuner_fleet.agent.metrics.bar_points import BarJournal
from simpletuner_fleet.agent.metrics.gpu_points import GpuJournal
from simpletuner_fleet.agent.metrics.metric_files import furthest, latest_bar, newest
from simpletuner_fleet.agent.metrics.point_sender import PointSender
from simpletuner_fleet.agent.metrics.readings import Readings
from simpletuner_fleet.agent.metrics.tensorboard import EventFolder
from simpletuner_fleet.agent.ship.courier import Courier, RetryRule, SendersByAttempt, Sent
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.training.metrics import Bar, Point, eta_s, learning_rate_of, loss_of, rate_of
from simpletuner_fleet.protocol.messages import GpuSample, JobSubmit, StatusReport
from simpletuner_fleet.protocol.metrics import to_wire

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and takes nothing."""
FLUSH_WITHIN_S = 5.0
Progress = dict[str, Any]


class MetricSources(Struct, frozen=True, kw_only=True):
    """Names the files with an attempt's numbers, and the file that records how many of them were sent."""

    files: tuple[Path, ...]
    output_log: Path
    sent: Path
    events: Path | None = None
    """The folder beneath which TensorBoard's files appear."""
    bars_tell: bool = True
    """Whether progress bars are the numbers where nothing else has any."""

    @property
    def bars(self) -> Path:
        """Returns the file that the agent itself writes, from the bars in the output."""
        return self.sent.with_name(bar_points.NAME)

    @property
    def gpus(self) -> Path:
        """Returns the file that the agent itself writes.

        It lies in a folder of the attempt's own, where nobody else leaves numbers.
        """
        return self.sent.with_name(gpu_points.NAME)


class MetricsFollower:
    """Follows one attempt's numbers. It is `over` once nothing more will be sent."""

    def __init__(
        self,
        offer: JobSubmit,
        sources: MetricSources,
        client: OrchestratorClient,
        *,
        look_every_s: float = LOOK_EVERY_S,
        patience_s: float = PATIENCE_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job_id = offer.job_id
        self._sources, self._client, self._clock = sources, client, clock
        self._courier = Courier(
            f"job {offer.job_id}: its numbers",
            self._send_all,
            RetryRule(patience_s=patience_s),
            client.hearings,
            look_every_s=look_every_s,
            backoff=backoff,
        )
        self._step = resumed_from(offer) or 0
        self._readings = Readings((), sources.events, since=self._step, stopped=self.over.is_set)
        self._bars = BarJournal(sources.output_log, sources.bars, self._step, clock)
        self._bars_tell = sources.bars_tell
        self._training = PointSender(
            offer.job_id,
            [*sources.files, sources.bars],
            sources.sent,
            lambda first, points: client.send_metrics(offer.job_id, offer.epoch, first, points),
            events=EventFolder(sources.events, since=self._step),
            ended=self._courier.ended.is_set,
            stopped=self.over.is_set,
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
        self._reported: Progress | None = None
        self.on_progress: Callable[[Progress], StatusReport | None] = lambda progress: None
        """Answers with the report to send, if there is one to send."""

    @property
    def over(self) -> asyncio.Event:
        return self._courier.over

    def trainer_ended(self) -> None:
        self._courier.trainer_ended()

    def stop(self) -> None:
        self._courier.stop()

    async def run(self) -> None:
        """Returns when the trainer has ended and all is sent, the attempt is stale, or it is told to stop."""
        try:
            await self._training.load()
            await self._gpus.load()
            await self._courier.run()
        finally:
            self.over.set()

    async def send_once(self) -> bool:
        """Looks once and sends what it finds. Returns False when nothing is left to do, now and ever."""
        return await self._courier.send_once()

    async def _send_all(self, ended: bool) -> Sent:
        """Sends everything. The step is noted before that: heartbeats report it even if nothing else gets through."""
        progress = await asyncio.to_thread(self._progress, ended)
        if progress:
            self._step = progress["step"]
        report = self.on_progress(progress) if progress and progress != self._reported else None
        if self._bars_tell:
            await asyncio.to_thread(self._bars.note, ended)
        await self._training.send_all()
        if report:
            await self._client.report(self._job_id, report)
            self._reported = progress
        await self._gpus.send_all()
        if not ended:
            return Sent.ALL
        return Sent.MORE if self._readings.behind else Sent.DONE

    async def note_gpus(self, samples: Sequence[GpuSample]) -> None:
        """Keeps the samples of its own GPUs with the job, at the step it is at; a GPU's point is no step."""
        if not self._courier.ended.is_set():
            await asyncio.to_thread(self._journal.note, samples, self._step)

    async def flush(self) -> None:
        """Sends what stands in the trainer's files now, if that can be done at once."""
        with contextlib.suppress(Unreachable, Refused, TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN_S):
                await self._training.send_all()

    def _progress(self, ended: bool) -> Progress | None:
        self._readings.read(at_once=ended)
        points = furthest([newest(self._sources.files), self._readings.latest()])
        self._bars_tell = self._bars_tell and not any(loss_of(point.values) is not None for point in points)
        return progress_of(points, latest_bar(self._sources.output_log))


ReportProgress = Callable[[Turn, Progress], StatusReport | None]
"""Answers with the report to send, if there is one to send."""


class MetricsFollowers(SendersByAttempt[MetricsFollower]):
    """Runs the followers of all attempts on this machine."""

    def __init__(
        self,
        client: OrchestratorClient,
        on_over: Callable[[], None] = lambda: None,
        on_progress: ReportProgress = lambda turn, progress: None,
    ) -> None:
        super().__init__("following a training's numbers", on_over)
        self._client, self._on_progress = client, on_progress

    def follow(self, offer: JobSubmit, sources: MetricSources, ending: Awaitable[object]) -> None:
        turn = turn_of(offer)
        follower = MetricsFollower(offer, sources, self._client)
        follower.on_progress = lambda progress: self._on_progress(turn, progress)
        self.begin(turn, follower, ending, lambda _: follower.trainer_ended())

    async def note_gpus(self, samples: Sequence[GpuSample]) -> None:
        for follower in self.all():
            await follower.note_gpus(samples)

    async def flush(self, turn: Turn) -> None:
        follower = self.get(turn)
        if follower:
            await follower.flush()


def progress_of(points: Sequence[Point], bar: Bar | None) -> Progress | None:
    """Returns progress from the last points where there are any; a progress bar fills in what they do not say."""
    if not points and bar is None:
        return None
    values = {**(bar.values if bar else {}), **(points[-1].values if points else {})}
    step = points[-1].step if points else bar.step if bar else 0
    total = (points[-1].total if points else None) or (bar.total if bar and step <= bar.total else None)
    rate = rate_of([(point.step, point.at) for point in points if point.at is not None])
    rate = rate or (bar.rate if bar else None)
    loss, learning_rate, left_s = loss_of(values), learning_rate_of(values), eta_s(step, total, rate)
    progress: Progress = {
        "step": step,
        "total": total,
        "loss": None if loss is None else to_wire(loss),
        "lr": None if learning_rate is None else to_wire(learning_rate),
        "rate": None if rate is None else round(rate, 4),
        "eta_s": None if left_s is None else round(left_s, 1),
    }
    return {name: value for name, value in progress.items() if value is not None}
