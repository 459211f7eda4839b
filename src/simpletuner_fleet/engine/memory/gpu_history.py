"""Records each GPU's load, memory and temperature: the last hour closely, the last day in ten-minute means.

It is in memory alone: a restart forgets it, and what belongs to a job is kept with the job's own metrics.
"""

import math
from array import array
from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.protocol.messages import GpuSample

CLOSE_EVERY_S = 20.0
CLOSE_POINTS = 180
MEAN_OVER_S = 600.0
MEAN_POINTS = 144
KEPT_S = MEAN_OVER_S * MEAN_POINTS
FIGURES = ("utilization", "memory_used_gb", "temperature_c", "power_w")
MISSING = math.nan


def is_old(at: float, now: float, beats_every_s: float) -> bool:
    """Returns whether a reading is older than the newest one of a worker that is well may be."""
    return now - at > 2 * beats_every_s + CLOSE_EVERY_S


class GpuPoint(Struct, frozen=True, kw_only=True):
    """Holds the figures of one GPU at one moment; one that it did not report is None."""

    at: float
    utilization: float | None
    memory_used_gb: float | None
    temperature_c: float | None
    power_w: float | None


class GpuHistory:
    """Keeps the history of every worker's GPUs, by worker and UUID."""

    def __init__(self) -> None:
        self._workers: dict[str, dict[str, _GpuSeries]] = {}

    def note(self, worker_id: str, at: float, samples: Sequence[GpuSample]) -> None:
        """Notes what was told `at` a time, each sample as of when it was read."""
        if not samples:
            return
        series_by_uuid = self._workers.setdefault(worker_id, {})
        for sample in samples:
            series = series_by_uuid.get(sample.uuid)
            if series is None:
                series = series_by_uuid[sample.uuid] = _GpuSeries()
            series.note(at - max(0.0, sample.age_s or 0.0), sample)

    def forget_before(self, at: float) -> None:
        """Forgets GPUs of which nothing was reported since: they are gone, and their history is of no use."""
        for worker_id, series_by_uuid in list(self._workers.items()):
            for uuid in [uuid for uuid, series in series_by_uuid.items() if series.close.last_at < at]:
                del series_by_uuid[uuid]
            if not series_by_uuid:
                del self._workers[worker_id]

    def latest(self, worker_id: str) -> dict[str, GpuPoint]:
        return {uuid: series.close.points()[-1] for uuid, series in self._workers.get(worker_id, {}).items()}

    def of(self, worker_id: str, since: float) -> dict[str, list[GpuPoint]]:
        """Returns points by UUID: means first, then the close ones from where they begin."""
        return {uuid: series.points(since) for uuid, series in self._workers.get(worker_id, {}).items()}


class _Ring:
    """Buffers rows of a time and four figures; once it is full, the oldest is overwritten."""

    __slots__ = ("_cap", "_figures", "_next", "_times")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._next = 0
        self._times = array("d")
        self._figures = array("f")

    @property
    def last_at(self) -> float:
        return self._times[self._next - 1] if self._times else -math.inf

    def add(self, at: float, figures: Sequence[float]) -> None:
        if len(self._times) < self._cap:
            self._times.append(at)
            self._figures.extend(figures)
        else:
            self._times[self._next] = at
            self._figures[self._next * 4 : self._next * 4 + 4] = array("f", figures)
        self._next = (self._next + 1) % self._cap

    def points(self) -> list[GpuPoint]:
        full = len(self._times) == self._cap
        order = [*range(self._next, self._cap), *range(self._next)] if full else range(len(self._times))
        return [_point(self._times[at], self._figures[at * 4 : at * 4 + 4]) for at in order]


class _GpuSeries:
    """Keeps the history of one GPU: close points, means, and the mean that is being computed."""

    __slots__ = ("_began", "_counts", "_sums", "close", "means")

    def __init__(self) -> None:
        self.close = _Ring(CLOSE_POINTS)
        self.means = _Ring(MEAN_POINTS)
        self._begin_mean(-math.inf)

    def note(self, at: float, sample: GpuSample) -> None:
        figures = [_figure(getattr(sample, name)) for name in FIGURES]
        if at - self.close.last_at >= CLOSE_EVERY_S:
            self.close.add(at, figures)
        if at - self._began >= MEAN_OVER_S:
            self._end_mean()
            self._begin_mean(at)
        for place, figure in enumerate(figures):
            if not math.isnan(figure):
                self._sums[place] += figure
                self._counts[place] += 1

    def _begin_mean(self, at: float) -> None:
        self._began = at
        self._sums = [0.0] * len(FIGURES)
        self._counts = [0] * len(FIGURES)

    def _end_mean(self) -> None:
        if any(self._counts):
            means = [
                total / count if count else MISSING
                for total, count in zip(self._sums, self._counts, strict=True)
            ]
            self.means.add(self._began + MEAN_OVER_S / 2, means)

    def points(self, since: float) -> list[GpuPoint]:
        close = [point for point in self.close.points() if point.at >= since]
        first = close[0].at if close else math.inf
        return [*(point for point in self.means.points() if since <= point.at < first), *close]


def _figure(reading: float | None) -> float:
    return MISSING if reading is None or not math.isfinite(reading) else reading


def _point(at: float, figures: Sequence[float]) -> GpuPoint:
    readings = [None if math.isnan(figure) else round(figure, 2) for figure in figures]
    return GpuPoint(at=at, **dict(zip(FIGURES, readings, strict=True)))
