"""Datasets as they arrive, as jobs name them, as workers fetch them, and as they are let go.

Content is proven by uploading it: knowing a SHA-256 makes nobody its owner. Bytes are shared below, in the storage.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from msgspec.structs import replace

from simpletuner_fleet.core import checkpoint, datasets
from simpletuner_fleet.core.bundle import Bundle
from simpletuner_fleet.core.checkpoint import FileEntry
from simpletuner_fleet.core.datasets import Dataset, told
from simpletuner_fleet.core.errors import (
    Conflict,
    DatasetInUse,
    DigestMismatch,
    Invalid,
    NotFound,
    ObjectsMissing,
    QuotaExceeded,
    TooLarge,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.orchestrator.desk import Desk
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.uploads import ObjectAsked, ObjectMissing, PartAnswer
from simpletuner_fleet.storage.artifacts import MISSING_TOLD, ROWS_PER_ROUND, write_pieces
from simpletuner_fleet.storage.fenced import job_run_by
from simpletuner_fleet.storage.storage import Storage

log = logging.getLogger(__name__)

PARTS = "data-uploads"
MAX_MANIFEST_BYTES = 48 * 1024 * 1024
COUNTED_FOR_S = 60.0
READ_BYTES = 1024 * 1024


def part_key(by: str, sha256: str) -> str:
    """Parts are kept per caller, so that nobody can spoil another's upload."""
    return f"{PARTS}/{by}/{sha256}"


async def missing(storage: Storage, by: str, asked: Sequence[ObjectAsked]) -> list[ObjectMissing]:
    fleet = storage.fleet
    for at, one in enumerate(asked):
        checkpoint.check_object(one.sha256, one.size, fleet.policy, f"$.objects[{at}]")
    wanted = {one.sha256: one.size for one in asked}
    for sha256 in await fleet.read(lambda view: view.dataset_objects(wanted)):
        del wanted[sha256]
    await _check_room(storage, sum(wanted.values()))
    begun = set(await storage.blobs.names(f"{PARTS}/{by}")) if wanted else set()
    return [
        ObjectMissing(
            sha256=sha256,
            offset=await storage.blobs.part_size(part_key(by, sha256)) if sha256 in begun else 0,
        )
        for sha256 in wanted
    ]


async def put_part(
    storage: Storage, by: str, sha256: str, size: int, offset: int, pieces: AsyncIterator[bytes]
) -> PartAnswer:
    checkpoint.check_object(sha256, size, storage.fleet.policy)
    if offset > size:
        raise Invalid("offset leads beyond the size.", path="$.offset")
    if offset == 0:
        if await _is_stored(storage.fleet, sha256):
            return PartAnswer(next_offset=size, complete=True)
        await _check_room(storage, size + await _under_way(storage, by, sha256))
    reached = await write_pieces(storage.blobs, part_key(by, sha256), size, offset, pieces)
    if reached < offset and await _was_finished(storage, sha256):
        return PartAnswer(next_offset=size, complete=True)
    if reached < size:
        return PartAnswer(next_offset=reached, complete=False)
    await _finish(storage, by, sha256, size)
    return PartAnswer(next_offset=size, complete=True)


async def _is_stored(fleet: Fleet, sha256: str) -> bool:
    return bool(await fleet.glance(lambda view: view.dataset_objects([sha256])))


async def _was_finished(storage: Storage, sha256: str) -> bool:
    """By another request that carried the same part: if it is at it right now, its end is waited for."""
    async with storage.holding(sha256):
        return await _is_stored(storage.fleet, sha256)


async def _finish(storage: Storage, by: str, sha256: str, size: int) -> None:
    """The lock spans the sealing and the row: in between, the sweep would take the object for nobody's."""
    async with storage.holding(sha256):
        if await _is_stored(storage.fleet, sha256):
            await storage.blobs.delete(part_key(by, sha256))
            return
        if not await storage.blobs.seal(part_key(by, sha256), sha256, size):
            raise DigestMismatch(sha256)
        await storage.fleet.act(lambda desk: desk.tx.own_dataset_object(sha256, size, desk.now))
        storage.dataset_usage.counted_bytes += size


async def _under_way(storage: Storage, by: str, but: str) -> int:
    others = [name for name in await storage.blobs.names(f"{PARTS}/{by}") if name != but]
    return sum([await storage.blobs.part_size(part_key(by, name)) for name in others])


async def _check_room(storage: Storage, more: int) -> None:
    room, now, allowed = (
        storage.dataset_usage,
        storage.fleet.clock.now(),
        storage.fleet.policy.data_storage_bytes,
    )
    if room.counted_at is None or not 0 <= now - room.counted_at < COUNTED_FOR_S:
        room.counted_bytes = await storage.fleet.read(lambda view: view.dataset_bytes())
        room.counted_at = now
    if room.counted_bytes + more > allowed:
        raise QuotaExceeded(
            f"All datasets together may take {allowed} bytes; {room.counted_bytes} are taken.",
            next_step="Delete datasets that nobody needs, or ask for a higher SIMPLETUNER_DATA_STORAGE_GB.",
            quota_bytes=allowed,
        )


async def accept(storage: Storage, dataset_id: str, name: str, actor: Actor) -> Dataset:
    """The last word of a push: every byte that the manifest names is stored. The same content again gets the new name."""
    fleet = storage.fleet
    if await fleet.read(lambda view: view.dataset(dataset_id)) is None:
        await _add(storage, dataset_id, name, actor)
    return await fleet.act(lambda desk: _name(desk, dataset_id, name, actor))


async def _add(storage: Storage, dataset_id: str, name: str, actor: Actor) -> None:
    """A few files at a time: everybody else waits while they are written."""
    fleet = storage.fleet
    held = await fleet.read(lambda view: view.dataset_objects([dataset_id]))
    if dataset_id not in held:
        raise ObjectsMissing("The manifest itself is not stored yet.", missing=[dataset_id], count=1)
    manifest_bytes = held[dataset_id]
    files = await read_files(storage, dataset_id, manifest_bytes)
    contents = {file.sha256: file.size for file in files} | {dataset_id: manifest_bytes}
    await _check_stored(fleet, contents)
    now = fleet.clock.now()
    dataset = datasets.dataset_of(dataset_id, name, files, manifest_bytes, by=actor.name, now=now)
    await fleet.act(lambda desk: desk.tx.begin_dataset(dataset))
    rows = iter(contents.items())
    while some := dict(islice(rows, ROWS_PER_ROUND)):
        await fleet.act(lambda desk, some=some: _add_some(desk, dataset_id, some))  # type: ignore[misc]

    def finish(desk: Desk) -> None:
        if not desk.tx.finish_dataset(dataset_id, name, len(contents)):
            raise Conflict("The dataset was deleted while it was pushed.", next_step="Push it again.")
        desk.record(_event(EventType.DATASET_ADDED, dataset, actor))

    await fleet.act(finish)


def _add_some(desk: Desk, dataset_id: str, some: dict[str, int]) -> None:
    """Looked at again: what was unused too long may have been let go since."""
    _refuse_absent(desk.tx.dataset_objects(some), some)
    desk.tx.add_dataset_files(dataset_id, some)


def _name(desk: Desk, dataset_id: str, name: str, actor: Actor) -> Dataset:
    known = _one(desk.tx, dataset_id)
    if known.name == name:
        return known
    renamed = replace(known, name=name)
    desk.tx.finish_dataset(dataset_id, name, known.files)
    desk.record(_event(EventType.DATASET_ADDED, renamed, actor))
    return renamed


async def read_files(storage: Storage, dataset_id: str, manifest_bytes: int) -> tuple[FileEntry, ...]:
    if manifest_bytes > MAX_MANIFEST_BYTES:
        raise TooLarge(f"A manifest may have at most {MAX_MANIFEST_BYTES} bytes.")
    data = bytearray()
    while len(data) < manifest_bytes:
        piece = await storage.blobs.read_object(dataset_id, len(data), READ_BYTES)
        if not piece:
            raise NotFound(f"The manifest of {told(dataset_id)} is not in the storage any more.")
        data += piece
    return await asyncio.to_thread(datasets.read_manifest, bytes(data), storage.fleet.policy)


async def _check_stored(fleet: Fleet, contents: dict[str, int]) -> None:
    _refuse_absent(await fleet.read(lambda view: view.dataset_objects(contents)), contents)


def _refuse_absent(held: dict[str, int], contents: dict[str, int]) -> None:
    absent = sorted(sha256 for sha256, size in contents.items() if held.get(sha256) != size)
    if absent:
        raise ObjectsMissing(
            f"{len(absent)} of the files are not stored yet.",
            missing=absent[:MISSING_TOLD],
            count=len(absent),
        )


async def every(fleet: Fleet) -> list[Dataset]:
    return await fleet.read(lambda view: view.datasets())


async def one(fleet: Fleet, dataset_id: str) -> Dataset:
    return await fleet.read(lambda view: _one(view, dataset_id))


def _one(view: View, dataset_id: str) -> Dataset:
    found = view.dataset(dataset_id)
    if found is None:
        raise NotFound(
            f"There is no dataset {told(dataset_id)}.", next_step="List them with 'simpletuner data list'."
        )
    return found


async def file_size(fleet: Fleet, dataset_id: str, sha256: str) -> int:
    size = await fleet.glance(lambda view: view.dataset_file_size([dataset_id], sha256))
    if size is None:
        raise NotFound(f"The dataset {told(dataset_id)} has no such file.")
    return size


async def delete(fleet: Fleet, dataset_id: str, actor: Actor) -> None:
    """Its files go at a later sweep, unless another dataset or a job has them, too."""

    def step(desk: Desk) -> None:
        dataset = _one(desk.tx, dataset_id)
        job_id = desk.tx.job_naming(dataset_id)
        if job_id:
            raise DatasetInUse(f"Job {job_id} has not ended and needs {dataset.name}.", job_id=job_id)
        desk.tx.hide_dataset(dataset_id)
        desk.record(_event(EventType.DATASET_DELETED, dataset, actor))

    await fleet.act(step)
    await _drop(fleet, dataset_id)


async def _drop(fleet: Fleet, dataset_id: str) -> None:
    def step(desk: Desk) -> int:
        if desk.tx.dataset(dataset_id) is not None:
            return 0
        return desk.tx.drop_dataset_files(dataset_id, desk.now, ROWS_PER_ROUND)

    while await fleet.act(step) == ROWS_PER_ROUND:
        pass


def check_datasets(view: View, bundle: Bundle) -> tuple[tuple[str, int], ...]:
    """Id and size of each that the job names. Raises what is wrong, naming the field."""
    unnamed = datasets.references([bundle.settings, bundle.dataloader, bundle.env]) - bundle.datasets.keys()
    if unnamed:
        name = min(unnamed)
        raise Invalid(
            f"The config refers to the dataset '{name}', and datasets does not say which that is.",
            path="$.datasets",
            next_step=f'Add "datasets": {{"{name}": "sha256:…"}}, as printed by \'simpletuner data push DIR\'.',
        )
    found: dict[str, int] = {}
    for name, text in bundle.datasets.items():
        dataset_id = datasets.read_id(text, f"$.datasets.{name}")
        dataset = view.dataset(dataset_id)
        if dataset is None:
            raise Invalid(
                f"There is no dataset {told(dataset_id)}.",
                path=f"$.datasets.{name}",
                next_step="Upload it with 'simpletuner data push DIR', or see 'simpletuner data list'.",
            )
        found[dataset_id] = dataset.total_bytes
    return tuple(sorted(found.items()))


async def size_for_worker(fleet: Fleet, worker_id: str, job_id: str, sha256: str) -> int:
    """Of a file of a dataset that the job names, for the worker that runs it now."""

    def look(view: View) -> int:
        job = job_run_by(view, worker_id, job_id)
        size = view.dataset_file_size([dataset_id for dataset_id, _ in job.requires.datasets], sha256)
        if size is None:
            raise NotFound("No dataset of this job has this file.")
        return size

    return await fleet.glance(look)


async def let_go(storage: Storage, before: float) -> None:
    """Uploads that no dataset has named since then, finished or not. The bytes go with the sweep of all objects."""
    for dataset_id in await storage.fleet.read(lambda view: view.unready_datasets(before)):
        await _drop(storage.fleet, dataset_id)

    def step(desk: Desk) -> int:
        shas = desk.tx.unused_dataset_objects(before, ROWS_PER_ROUND)
        desk.tx.disown_dataset_objects(shas)
        return len(shas)

    while await storage.fleet.act(step) == ROWS_PER_ROUND:
        pass
    storage.dataset_usage.counted_at = None
    await _drop_abandoned_parts(storage, before)


async def _drop_abandoned_parts(storage: Storage, before: float) -> None:
    """Those that have not grown since they were first seen at this size."""
    now, seen = storage.fleet.clock.now(), storage.dataset_usage.parts
    found: dict[str, tuple[int, float]] = {}
    for by in await storage.blobs.names(PARTS):
        for sha256 in await storage.blobs.names(f"{PARTS}/{by}"):
            key = part_key(by, sha256)
            size = await storage.blobs.part_size(key)
            known = seen.get(key)
            since = known[1] if known and known[0] == size else now
            if since < before:
                await storage.blobs.delete(key)
            else:
                found[key] = (size, since)
    storage.dataset_usage.parts = found


def _event(type_: EventType, dataset: Dataset, actor: Actor) -> Event:
    return Event(
        type=type_,
        actor=actor,
        target_type="dataset",
        target_id=told(dataset.id),
        details={"name": dataset.name, "files": dataset.files, "bytes": dataset.total_bytes},
    )
