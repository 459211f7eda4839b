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

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid, NotFound, TooLarge
from simpletuner_fleet.core.job import Attempt
from simpletuner_fleet.core.metrics import (
    GPU_KEY,
    KEY,
    MAX_GPU_KEYS,
    MAX_KEYS,
    Bucket,
    Sample,
    downsample,
)
from simpletuner_fleet.orchestrator import read_models
from simpletuner_fleet.orchestrator.artifacts import Shelf, fenced_attempt
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.protocol.metrics import MAX_BATCH, MetricPoint, from_wire

RECORD = struct.Struct("<Qdd")
"""Step, seconds since 1970, value."""
INDEX = "step"
Part = tuple[Attempt, int | None]
"""An attempt that has points, and the step from which on a later one counts."""
MAX_POINTS = 5_000_000
READ_BYTES = 65_536 * RECORD.size


class Curves(Struct, kw_only=True):
    keys: list[str]
    series: dict[str, list[Bucket]]
    total: int


def metrics_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}"


def gpu_folder(attempt_id: str) -> str:
    return f"metrics/{attempt_id}.gpus"


def metrics_key(attempt_id: str, key: str) -> str:
    return f"{metrics_folder(attempt_id)}/{key}"


async def store(
    shelf: Shelf, worker_id: str, job_id: str, epoch: int, first: int, points: Sequence[MetricPoint]
) -> int:
    """How many points of the attempt are stored then. Beyond a gap nothing is."""
    _check(points, _is_key, "A key is up to 64 letters, digits, '.', '_' and '-', and is not 'step'.")
    attempt = await shelf.fleet.glance(lambda view: fenced_attempt(view, worker_id, job_id, epoch))
    return await _store(shelf, metrics_folder(attempt.id), first, points, MAX_KEYS)


async def store_of_gpus(
    shelf: Shelf, worker_id: str, job_id: str, epoch: int, first: int, points: Sequence[MetricPoint]
) -> int:
    """The same for what the worker tells of the attempt's GPUs."""
    _check(points, lambda key: GPU_KEY.fullmatch(key) is not None, "A key is like 'gpu.0.utilization'.")
    attempt = await shelf.fleet.glance(lambda view: fenced_attempt(view, worker_id, job_id, epoch))
    return await _store(shelf, gpu_folder(attempt.id), first, points, MAX_GPU_KEYS)


async def _store(shelf: Shelf, folder: str, first: int, points: Sequence[MetricPoint], most_keys: int) -> int:
    async with shelf.holding(folder):
        stored = await shelf.blobs.size(f"{folder}/{INDEX}") // RECORD.size
        if first > stored or first + len(points) <= stored:
            return stored
        if first + len(points) > MAX_POINTS:
            raise TooLarge(f"One attempt may have at most {MAX_POINTS} points.")
        return await _append(shelf.blobs, folder, stored, points[stored - first :], most_keys)


async def _append(
    blobs: Blobs, folder: str, stored: int, points: Sequence[MetricPoint], most_keys: int
) -> int:
    records: dict[str, list[bytes]] = {}
    for point in points:
        for key, value in point.values.items():
            records.setdefault(key, []).append(RECORD.pack(point.step, point.at, from_wire(value)))
    known = set(await blobs.names(folder)) - {INDEX}
    room = most_keys - len(known)
    taken = [key for key in records if key in known] + [key for key in records if key not in known][:room]
    for key in taken:
        place = f"{folder}/{key}"
        held = await blobs.size(place)
        await blobs.append(place, held - held % RECORD.size, b"".join(records[key]))
    index = b"".join(RECORD.pack(point.step, point.at, point.step) for point in points)
    return await blobs.append(f"{folder}/{INDEX}", stored * RECORD.size, index) // RECORD.size


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
    """Of one attempt, or of all as one: where a later one went on, the earlier one's steps beyond do not count.

    GPUs are shown over time, all that was.
    """
    found = await read_models.attempts_of(fleet, job_id)
    if attempt is not None:
        found = [one for one in found if one.number == attempt]
        if not found:
            raise NotFound(f"Job {job_id} has no attempt {attempt}.")
    parts = await _parts(blobs, found)
    own = {key for one, _ in parts for key in await blobs.names(metrics_folder(one.id))} - {INDEX}
    of_gpus = {key for one in found for key in await blobs.names(gpu_folder(one.id))} - {INDEX}
    known = sorted(own | of_gpus)
    series = {
        key: await (
            _gpu_curve(blobs, found, key, points) if key in of_gpus else _curve(blobs, parts, key, points)
        )
        for key in known
        if not keys or key in keys
    }
    return Curves(keys=known, series=series, total=len(await _joined(blobs, parts, INDEX)))


async def _parts(blobs: Blobs, attempts: Sequence[Attempt]) -> list[Part]:
    parts: list[Part] = []
    end: int | None = None
    for attempt in sorted(attempts, key=lambda one: one.epoch, reverse=True):
        record = await blobs.read(metrics_key(attempt.id, INDEX), 0, RECORD.size)
        if len(record) == RECORD.size:
            parts.append((attempt, end))
            begin = int(RECORD.unpack(record)[0])
            end = begin if end is None else min(begin, end)
    return parts[::-1]


async def _curve(blobs: Blobs, parts: Sequence[Part], key: str, points: int) -> list[Bucket]:
    by_step = await _joined(blobs, parts, key)
    return await asyncio.to_thread(lambda: downsample([by_step[step] for step in sorted(by_step)], points))


async def _gpu_curve(blobs: Blobs, attempts: Sequence[Attempt], key: str, points: int) -> list[Bucket]:
    """What a crash left there twice has the same time."""
    by_time: dict[float, Sample] = {}
    for attempt in attempts:
        async for chunk in _chunks(blobs, f"{gpu_folder(attempt.id)}/{key}"):
            await asyncio.to_thread(_take_by_time, by_time, chunk)
    return await asyncio.to_thread(lambda: downsample([by_time[at] for at in sorted(by_time)], points))


async def _joined(blobs: Blobs, parts: Sequence[Part], key: str) -> dict[int, Sample]:
    by_step: dict[int, Sample] = {}
    for attempt, end in parts:
        async for chunk in _chunks(blobs, metrics_key(attempt.id, key)):
            await asyncio.to_thread(_take, by_step, chunk, end)
    return by_step


def _take(by_step: dict[int, Sample], chunk: bytes, end: int | None) -> None:
    until = math.inf if end is None else end
    by_step.update((record[0], record) for record in RECORD.iter_unpack(chunk) if record[0] < until)


def _take_by_time(by_time: dict[float, Sample], chunk: bytes) -> None:
    by_time.update((record[1], record) for record in RECORD.iter_unpack(chunk))


async def _chunks(blobs: Blobs, key: str) -> AsyncIterator[bytes]:
    start = 0
    while chunk := await blobs.read(key, start, READ_BYTES):
        yield chunk[: len(chunk) - len(chunk) % RECORD.size]
        start += READ_BYTES
