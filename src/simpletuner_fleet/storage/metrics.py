"""The numbers of trainings: packed records outside the database, one blob for each key of an attempt.

`step` holds a record for every point and is written last: its length says how many points there are. What a crash left
half-written in the others is sent again and stands there twice; reading takes each step once, the last of its kind.

The worker's own points of the attempt's GPUs lie apart, counted by themselves: they are no steps, take no trainer's key, and
are read by their time.
"""

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid, NotFound, TooLarge
from simpletuner_fleet.core.free_space import Use
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.training.metrics import (
    GPU_KEY,
    KEY,
    MAX_GPU_KEYS,
    MAX_KEYS,
    Bucket,
    Sample,
    downsample,
)
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import Blobs, View
from simpletuner_fleet.protocol.metrics import MAX_BATCH, MetricPoint, from_wire
from simpletuner_fleet.storage.fenced import Appends, fenced_appends, newest_attempt
from simpletuner_fleet.storage.storage import Storage

RECORD = struct.Struct("<Qdd")
"""Step, seconds since 1970, value."""
INDEX = "step"
MAX_POINTS = 5_000_000
READ_BYTES = 65_536 * RECORD.size


class CurvePart(NamedTuple):
    """What one attempt gives to a job's curve."""

    attempt: Attempt
    end_step: int | None
    """From here on a later attempt counts."""


class Curves(Struct, kw_only=True):
    """Curves of a job by key, and how many steps they were made of."""

    keys: list[str]
    series: dict[str, list[Bucket]]
    total: int


def metrics_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}"


def gpu_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}.gpus"


def metrics_key(attempt_id: str, key: str) -> str:
    return f"{metrics_folder(attempt_id)}/{key}"


async def store_points(storage: Storage, claim: Claim, first: int, points: Sequence[MetricPoint]) -> int:
    """Returns how many points of the attempt are stored then. Beyond a gap nothing is."""
    _check(points, _is_key, "A key is up to 64 letters, digits, '.', '_' and '-', and is not 'step'.")
    return await _store_fenced(storage, claim, metrics_folder, first, points, MAX_KEYS)


async def store_gpu_points(storage: Storage, claim: Claim, first: int, points: Sequence[MetricPoint]) -> int:
    """Does the same for what the worker tells of the attempt's GPUs."""
    _check(points, lambda key: GPU_KEY.fullmatch(key) is not None, "A key is like 'gpu.0.utilization'.")
    return await _store_fenced(storage, claim, gpu_folder, first, points, MAX_GPU_KEYS)


async def _store_fenced(
    storage: Storage,
    claim: Claim,
    folder_of: Callable[[str], str],
    first: int,
    points: Sequence[MetricPoint],
    most_keys: int,
) -> int:
    attempt = await storage.fleet.read_now(lambda view: newest_attempt(view, claim))
    folder = folder_of(attempt.id)
    async with storage.locks.holding(folder):
        stored = await storage.blobs.size(f"{folder}/{INDEX}") // RECORD.size
        if first > stored or first + len(points) <= stored:
            return stored
        if first + len(points) > MAX_POINTS:
            raise TooLarge(f"One attempt may have at most {MAX_POINTS} points.")
        storage.space.check(Use.LOGS, 0)
        fresh = points[stored - first :]
        async with fenced_appends(storage.fleet, storage.blobs, newest_attempt, claim) as appends:
            await _append_values(storage.blobs, appends, folder, fresh, most_keys)
            index = b"".join(RECORD.pack(point.step, point.at, point.step) for point in fresh)
            size = await appends.append(f"{folder}/{INDEX}", stored * RECORD.size, index)
            return size // RECORD.size


async def _append_values(
    blobs: Blobs, appends: Appends, folder: str, points: Sequence[MetricPoint], most_keys: int
) -> None:
    records: dict[str, list[bytes]] = {}
    for point in points:
        for key, value in point.values.items():
            records.setdefault(key, []).append(RECORD.pack(point.step, point.at, from_wire(value)))
    old_keys = set(await blobs.names(folder)) - {INDEX}
    new_keys = [key for key in records if key not in old_keys][: most_keys - len(old_keys)]
    for key in [*(key for key in records if key in old_keys), *new_keys]:
        place = f"{folder}/{key}"
        size = await blobs.size(place)
        await appends.append(place, size - size % RECORD.size, b"".join(records[key]))


def _is_key(key: str) -> bool:
    return key != INDEX and KEY.fullmatch(key) is not None and key.strip(".") != ""


def _check(points: Sequence[MetricPoint], fits: Callable[[str], bool], otherwise: str) -> None:
    if len(points) > MAX_BATCH:
        raise TooLarge(f"At most {MAX_BATCH} points can be sent at once.")
    for at, point in enumerate(points):
        if len(point.values) > MAX_KEYS:
            raise Invalid(f"A point has at most {MAX_KEYS} values.", path=f"$.points[{at}].values")
        if not all(map(fits, point.values)):
            raise Invalid(otherwise, path=f"$.points[{at}].values")


async def curves(
    fleet: Fleet, blobs: Blobs, job_id: str, keys: Collection[str], points: int, attempt: int | None
) -> Curves:
    """Returns the curves of one attempt, or of all as one: where a later one went on, earlier ones' steps do not count.

    GPUs are shown over time, all that was.
    """
    attempts = await fleet.read(lambda view: _attempts_of(view, job_id))
    if attempt is not None:
        attempts = [one for one in attempts if one.number == attempt]
        if not attempts:
            raise NotFound(f"Job {job_id} has no attempt {attempt}.")
    parts = await _parts(blobs, attempts)
    own = {key for one, _ in parts for key in await blobs.names(metrics_folder(one.id))} - {INDEX}
    of_gpus = {key for one in attempts for key in await blobs.names(gpu_folder(one.id))} - {INDEX}
    all_keys = sorted(own | of_gpus)
    series = {
        key: await (
            _gpu_curve(blobs, attempts, key, points) if key in of_gpus else _curve(blobs, parts, key, points)
        )
        for key in all_keys
        if not keys or key in keys
    }
    return Curves(keys=all_keys, series=series, total=len(await _joined(blobs, parts, INDEX)))


def _attempts_of(view: View, job_id: str) -> list[Attempt]:
    if view.job(job_id) is None:
        raise NotFound(f"There is no job {job_id}.")
    return view.attempts_of_job(job_id)


async def _parts(blobs: Blobs, attempts: Sequence[Attempt]) -> list[CurvePart]:
    parts: list[CurvePart] = []
    end: int | None = None
    for attempt in sorted(attempts, key=lambda one: one.epoch, reverse=True):
        record = await blobs.read(metrics_key(attempt.id, INDEX), 0, RECORD.size)
        if len(record) == RECORD.size:
            parts.append(CurvePart(attempt, end))
            begin = int(RECORD.unpack(record)[0])
            end = begin if end is None else min(begin, end)
    return parts[::-1]


async def _curve(blobs: Blobs, parts: Sequence[CurvePart], key: str, points: int) -> list[Bucket]:
    by_step = await _joined(blobs, parts, key)
    return await asyncio.to_thread(lambda: downsample([by_step[step] for step in sorted(by_step)], points))


async def _gpu_curve(blobs: Blobs, attempts: Sequence[Attempt], key: str, points: int) -> list[Bucket]:
    """Takes each time once: what a crash left there twice has the same time."""
    by_time: dict[float, Sample] = {}
    for attempt in attempts:
        async for chunk in _chunks(blobs, f"{gpu_folder(attempt.id)}/{key}"):
            await asyncio.to_thread(_add_by_time, by_time, chunk)
    return await asyncio.to_thread(lambda: downsample([by_time[at] for at in sorted(by_time)], points))


async def _joined(blobs: Blobs, parts: Sequence[CurvePart], key: str) -> dict[int, Sample]:
    by_step: dict[int, Sample] = {}
    for attempt, end in parts:
        async for chunk in _chunks(blobs, metrics_key(attempt.id, key)):
            await asyncio.to_thread(_add_by_step, by_step, chunk, end)
    return by_step


def _add_by_step(by_step: dict[int, Sample], chunk: bytes, end: int | None) -> None:
    until = math.inf if end is None else end
    by_step.update((record[0], record) for record in RECORD.iter_unpack(chunk) if record[0] < until)


def _add_by_time(by_time: dict[float, Sample], chunk: bytes) -> None:
    by_time.update((record[1], record) for record in RECORD.iter_unpack(chunk))


async def _chunks(blobs: Blobs, key: str) -> AsyncIterator[bytes]:
    start = 0
    while chunk := await blobs.read(key, start, READ_BYTES):
        yield chunk[: len(chunk) - len(chunk) % RECORD.size]
        start += READ_BYTES
