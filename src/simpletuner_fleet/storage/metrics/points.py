"""Stores metrics as they come: each point once, and only from the attempt that holds the job."""

from collections.abc import Callable, Sequence

from simpletuner_fleet.core.errors import Invalid, TooLarge
from simpletuner_fleet.core.free_space import Use
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.training.metrics import GPU_KEY, KEY, MAX_GPU_KEYS, MAX_KEYS
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.protocol.metrics import MAX_BATCH, MetricPoint, from_wire
from simpletuner_fleet.storage.fenced import Appends, fenced_appends, newest_attempt
from simpletuner_fleet.storage.metrics.metric_files import INDEX, RECORD, gpu_folder, metrics_folder
from simpletuner_fleet.storage.storage import Storage

MAX_POINTS = 5_000_000


async def store_points(storage: Storage, claim: Claim, first: int, points: Sequence[MetricPoint]) -> int:
    """Stores points, and returns how many points of the attempt are stored then. After a gap none is stored."""
    _check(points, _is_key, "A key is up to 64 letters, digits, '.', '_' and '-', and is not 'step'.")
    return await _store_fenced(storage, claim, metrics_folder, first, points, MAX_KEYS)


async def store_gpu_points(storage: Storage, claim: Claim, first: int, points: Sequence[MetricPoint]) -> int:
    """Does the same for the worker's points of the attempt's GPUs."""
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
