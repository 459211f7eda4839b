"""Predicts when a waiting job would start, and what it could ask for to start now.

It relies on what the running jobs report. Only a job that reports its rate, or has a time limit, has a known end; the
others are named.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Job, Requirements, Target
from simpletuner_fleet.core.placement.matching import Occupancy, Refusal, allocate, is_open, why_not_now
from simpletuner_fleet.core.workers.worker import Worker

Candidates = Callable[[], Iterable[tuple[Worker, Occupancy]]]
MOST_OTHER_WAYS = 4
MOST_BUSY_TOLD = 3


class RunningJob(Struct, frozen=True, kw_only=True):
    """Describes a job that holds GPUs of a worker, and when it ends; None where that is not known."""

    job_id: str
    """'' where whoever asks may not know of the job."""
    title: str
    gpus: frozenset[str]
    ends_at: float | None


class StartForecast(Struct, frozen=True, kw_only=True):
    """Predicts when a waiting job starts.

    This is right if the others end as they report and no other job comes between.
    """

    at: float
    worker: str
    job_id: str
    """The last of those that must end before."""
    job: str
    ahead: int
    """How many wait before it: with each of them it is less sure."""


class BusyWorker(Struct, frozen=True, kw_only=True):
    """Names a worker that would fit, and a job on it whose end is not known.

    The job is '' where it is somebody else's, of which whoever asks may not know.
    """

    worker: str
    job_id: str
    job: str


class OtherWay(Struct, frozen=True, kw_only=True):
    """Describes a changed request that a fitting worker has room for now; one field differs from the job's own."""

    gpus: int | None = None
    min_vram_gb: float | None = None
    without_label: str | None = None
    target: str | None = None


def ends_at(job: Job, started_at: float | None, now: float) -> float | None:
    """Returns when a running job ends by its own rate, or at its time limit if that comes before."""
    left_s = job.progress.eta_s if job.progress else None
    by_rate = now + left_s if left_s is not None else None
    by_limit = started_at + job.time_limit_s if job.time_limit_s and started_at is not None else None
    return min((at for at in (by_rate, by_limit) if at is not None), default=None)


def forecast(
    requires: Requirements, busy: Iterable[tuple[Worker, Sequence[RunningJob]]], ahead: int, now: float
) -> StartForecast | None:
    """Predicts the start, as if each job ahead took one of the same workers; None where they take them all."""
    freed = freed_in_order(requires, busy, now)
    if ahead >= len(freed):
        return None
    last, worker = freed[ahead]
    return StartForecast(
        at=max(now, last.ends_at or now), worker=worker.name, job_id=last.job_id, job=last.title, ahead=ahead
    )


def freed_in_order(
    requires: Requirements, busy: Iterable[tuple[Worker, Sequence[RunningJob]]], now: float
) -> list[tuple[RunningJob, Worker]]:
    """Returns the workers that will have room, the soonest first, each with the job with whose end it has."""
    free_again = [(until, worker) for worker, running in busy if (until := _until(worker, running, requires))]
    return sorted(free_again, key=lambda one: (one[0].ends_at or now, one[1].name))


def busy_without_end(
    requires: Requirements, busy: Iterable[tuple[Worker, Sequence[RunningJob]]]
) -> list[BusyWorker]:
    """Returns a few workers that have no room before a job ends whose end is not known."""
    workers = sorted(
        (pair for pair in busy if _until(*pair, requires) is None), key=lambda pair: pair[0].name
    )
    endless = (
        (worker, next((one for one in running if one.ends_at is None), None)) for worker, running in workers
    )
    held = (
        BusyWorker(worker=worker.name, job_id=one.job_id, job=one.title) for worker, one in endless if one
    )
    return list(islice(held, MOST_BUSY_TOLD))


def _until(worker: Worker, running: Sequence[RunningJob], requires: Requirements) -> RunningJob | None:
    """Returns the job with whose end a worker has room, if all that must end before have a known end."""
    held, live = frozenset[str]().union(*(one.gpus for one in running)), len(running)
    known = sorted((one for one in running if one.ends_at is not None), key=lambda one: one.ends_at or 0.0)
    for one in known:
        held, live = held - one.gpus, live - 1
        occupancy = Occupancy(live, held)
        if is_open(worker, occupancy) and allocate(worker, occupancy, requires) is not None:
            return one
    return None


def is_busy(worker: Worker, occupancy: Occupancy, requires: Requirements) -> bool:
    return why_not_now(worker, occupancy, requires) is Refusal.BUSY


def other_ways(requires: Requirements, candidates: Candidates) -> list[OtherWay]:
    """Returns what would start now, the least given up first; nothing where the request itself would."""
    if _has_room(requires, candidates):
        return []
    ways = (way for way, changed in _smaller(requires, candidates) if _has_room(changed, candidates))
    chosen: list[OtherWay] = []
    for way in ways:
        if not any(_same_kind(way, other) for other in chosen):
            chosen.append(way)
    return chosen[:MOST_OTHER_WAYS]


def _smaller(requires: Requirements, candidates: Candidates) -> Iterator[tuple[OtherWay, Requirements]]:
    sizes = {gpu.vram_gb for worker, _ in candidates() for gpu in worker.gpus}
    for size in sorted((size for size in sizes if 0 < size < requires.min_vram_gb), reverse=True):
        yield OtherWay(min_vram_gb=size), replace(requires, min_vram_gb=size)
    for gpus in range(requires.gpus - requires.nodes, 0, -requires.nodes):
        yield OtherWay(gpus=gpus), replace(requires, gpus=gpus)
    for label in requires.labels:
        yield (
            OtherWay(without_label=label[0]),
            replace(requires, labels=tuple(one for one in requires.labels if one != label)),
        )
    if requires.target is not Target.AUTO:
        yield OtherWay(target=Target.AUTO), replace(requires, target=Target.AUTO)


def _has_room(requires: Requirements, candidates: Candidates) -> bool:
    return any(why_not_now(worker, occupancy, requires) is None for worker, occupancy in candidates())


def _same_kind(one: OtherWay, other: OtherWay) -> bool:
    fields = ("gpus", "min_vram_gb", "target")
    return any(getattr(one, name) is not None and getattr(other, name) is not None for name in fields)
