"""Returns a job's metrics as curves: all of a curve at the first call, and only what has changed at the next."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound, no_such_job
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.training.bands import Bucket
from simpletuner_fleet.ports import Blobs, View
from simpletuner_fleet.storage.metrics.kept_curves import EVERYTHING, CurvePart, KeptJob, StepSpan
from simpletuner_fleet.storage.metrics.metric_files import INDEX, RECORD, metrics_folder
from simpletuner_fleet.storage.storage import Storage


class SeenCurves(NamedTuple):
    """Names the state of a job's curves that a reader has: which reading it comes from, and how far that was."""

    reading: int
    edition: int


class Curves(Struct, kw_only=True):
    """Holds curves of a job by key, and how many steps they were made of."""

    keys: list[str]
    series: dict[str, list[Bucket]]
    begins: dict[str, int]
    """Where in its curve each series begins: what was told of it before stays true up to there."""
    total: int
    seen: SeenCurves


async def curves(
    storage: Storage,
    job_id: str,
    keys: Collection[str],
    points: int,
    attempt: int | None = None,
    span: StepSpan = EVERYTHING,
    seen: SeenCurves | None = None,
) -> Curves:
    """Returns the curves of one attempt, or of all attempts as one.

    Where a later attempt went on, earlier attempts' steps do not count. Metrics of GPUs are shown over time, and all
    of them count.
    """
    attempts = await storage.fleet.read_now(lambda view: _attempts_of(view, job_id))
    if attempt is not None:
        attempts = [one for one in attempts if one.number == attempt]
        if not attempts:
            raise NotFound(f"Job {job_id} has no attempt {attempt}.")
    async with storage.locks.holding(f"curves/{job_id}/{attempt}"):
        kept = await _kept(storage, (job_id, attempt), attempts, keys, span)
        series: dict[str, list[Bucket]] = {}
        begins: dict[str, int] = {}
        for key, band in kept.bands.items():
            if key != INDEX and (not keys or key in keys):
                known = kept.grain(seen.edition, key) if seen and seen.reading == kept.reading else None
                begins[key], series[key] = band.shown(points, known)
        return Curves(
            keys=sorted(kept.bands.keys() - {INDEX}),
            series={key: series[key] for key in sorted(series)},
            begins=begins,
            total=kept.bands[INDEX].count if INDEX in kept.bands else 0,
            seen=SeenCurves(kept.reading, kept.edition),
        )


async def _kept(
    storage: Storage,
    place: tuple[str, int | None],
    attempts: Sequence[Attempt],
    keys: Collection[str],
    span: StepSpan,
) -> KeptJob:
    """Returns the curves read so far. A range of steps is read for this caller only, and is not cached."""
    parts = await _parts(storage.blobs, attempts)
    made_of = [(one.id, one.outcome) for one in attempts], [part.end_step for part in parts]
    job = storage.curve_cache.get(place, made_of) if span is EVERYTHING else None
    job = job or KeptJob(storage.curve_cache.next_reading(), parts, attempts, span)
    await job.follow(storage.blobs, keys)
    if span is EVERYTHING:
        storage.curve_cache.put(place, made_of, job)
    return job


def _attempts_of(view: View, job_id: str) -> list[Attempt]:
    if view.job(job_id) is None:
        raise no_such_job(job_id)
    return view.attempts_of_job(job_id)


async def _parts(blobs: Blobs, attempts: Sequence[Attempt]) -> list[CurvePart]:
    parts: list[CurvePart] = []
    end = math.inf
    for attempt in sorted(attempts, key=lambda one: one.epoch, reverse=True):
        record = await blobs.read(f"{metrics_folder(attempt.id)}/{INDEX}", 0, RECORD.size)
        if len(record) == RECORD.size:
            parts.append(CurvePart(attempt, end))
            end = min(int(RECORD.unpack(record)[0]), end)
    return parts[::-1]
