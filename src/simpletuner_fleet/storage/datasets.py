"""Accepts datasets once their files are stored, lets jobs name and workers fetch them, and deletes them."""

import asyncio
from itertools import islice

from msgspec.structs import replace

from simpletuner_fleet.core.configs import datasets
from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.datasets import Dataset, prefixed_id
from simpletuner_fleet.core.errors import (
    Conflict,
    DatasetInUse,
    Invalid,
    NotFound,
    ObjectsMissing,
    TooLarge,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.ownership import Writer, may_change
from simpletuner_fleet.core.people.visibility import Belonging, Visibility, may_see
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import refuse_others
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import restricted, unrestricted
from simpletuner_fleet.ports import View
from simpletuner_fleet.storage.fenced import job_run_by
from simpletuner_fleet.storage.storage import ROWS_PER_ROUND, Storage
from simpletuner_fleet.storage.uploads.content import check_all_stored

MAX_MANIFEST_BYTES = 48 * 1024 * 1024
READ_BYTES = 1024 * 1024


async def accept(
    storage: Storage,
    dataset_id: str,
    name: str,
    writer: Writer,
    team: str | None = None,
    visibility: Visibility | None = None,
) -> Dataset:
    """Ends a push, once every byte that the manifest names is stored.

    If the content is known already, its owner's push gives it the new name; anybody else's push leaves it as it is.
    """
    fleet = storage.fleet
    known = await fleet.read(lambda view: unrestricted(view).dataset(dataset_id))
    if known is None:
        default = fleet.policy.default_visibility
        its = fleet.organisation.belonging(writer, team, visibility, default)
        await _add(storage, dataset_id, name, writer, its)
    elif not may_see(writer.scope, known.belongs):
        raise Conflict(
            "The same content is stored already, and is not for you to see.",
            next_step="Ask an administrator to share it with you, or add a file and push it again.",
        )
    return await fleet.act(lambda transaction: _name(transaction, dataset_id, name, writer))


async def _add(storage: Storage, dataset_id: str, name: str, writer: Writer, its: Belonging) -> None:
    """Adds the dataset, a few files per transaction: everybody else waits while they are written."""
    fleet = storage.fleet
    stored = await fleet.read(lambda view: view.dataset_objects([dataset_id], writer.actor.id))
    if dataset_id not in stored:
        raise ObjectsMissing("The manifest itself is not stored yet.", missing=[dataset_id], count=1)
    manifest_bytes = stored[dataset_id]
    files = await read_files(storage, dataset_id, manifest_bytes)
    contents = {file.sha256: file.size for file in files} | {dataset_id: manifest_bytes}
    claimed = await fleet.read(lambda view: view.dataset_objects(contents, writer.actor.id))
    check_all_stored(claimed, contents.items())
    now = fleet.clock.now()
    described = datasets.dataset_of(dataset_id, name, files, manifest_bytes, by=writer.actor.name, now=now)
    dataset = replace(described, owner=its.owner, team=its.team, visibility=its.visibility)
    await fleet.act(lambda transaction: transaction.tx.begin_dataset(dataset))
    rows = iter(contents.items())
    while batch := dict(islice(rows, ROWS_PER_ROUND)):
        await fleet.act(lambda transaction, batch=batch: _add_files(transaction, dataset_id, batch))  # type: ignore[misc]

    def finish(transaction: Transaction) -> None:
        if not transaction.tx.finish_dataset(dataset_id, name, len(contents)):
            raise Conflict("The dataset was deleted while it was being pushed.", next_step="Push it again.")
        _note(transaction, EventType.DATASET_ADDED, dataset, writer.actor)

    await fleet.act(finish)


def _add_files(transaction: Transaction, dataset_id: str, contents: dict[str, int]) -> None:
    """Adds files after checking again that they are stored: the sweep may have deleted what was unused too long."""
    check_all_stored(transaction.tx.dataset_objects(contents), contents.items())
    transaction.tx.add_dataset_files(dataset_id, contents)


def _name(transaction: Transaction, dataset_id: str, name: str, writer: Writer) -> Dataset:
    dataset = _dataset(transaction.tx, dataset_id)
    if dataset.name == name or not may_change(writer, dataset.owner):
        return dataset
    renamed = replace(dataset, name=name)
    transaction.tx.finish_dataset(dataset_id, name, dataset.files)
    _note(transaction, EventType.DATASET_ADDED, renamed, writer.actor)
    return renamed


async def read_files(storage: Storage, dataset_id: str, manifest_bytes: int) -> tuple[FileEntry, ...]:
    if manifest_bytes > MAX_MANIFEST_BYTES:
        raise TooLarge(f"A manifest can have at most {MAX_MANIFEST_BYTES} bytes.")
    data = bytearray()
    while len(data) < manifest_bytes:
        piece = await storage.blobs.read_object(dataset_id, len(data), READ_BYTES)
        if not piece:
            raise NotFound(f"The manifest of {prefixed_id(dataset_id)} is no longer in storage.")
        data += piece
    return await asyncio.to_thread(datasets.read_manifest, bytes(data), storage.fleet.policy)


async def all_datasets(fleet: Fleet) -> list[Dataset]:
    return await fleet.read(lambda view: view.datasets())


async def dataset_of(fleet: Fleet, dataset_id: str) -> Dataset:
    return await fleet.read(lambda view: _dataset(view, dataset_id))


def _dataset(view: View, dataset_id: str) -> Dataset:
    dataset = view.dataset(dataset_id)
    if dataset is None:
        raise NotFound(
            f"There is no dataset {prefixed_id(dataset_id)}.",
            next_step="List them with 'simpletuner data list'.",
        )
    return dataset


async def file_size(fleet: Fleet, dataset_id: str, sha256: str) -> int:
    size = await fleet.read_now(lambda view: view.dataset_file_size([dataset_id], sha256))
    if size is None:
        raise NotFound(f"The dataset {prefixed_id(dataset_id)} has no such file.")
    return size


async def delete(fleet: Fleet, dataset_id: str, writer: Writer) -> None:
    """Deletes a dataset. A later sweep deletes its files, unless another dataset or a job has them, too."""

    def step(transaction: Transaction) -> None:
        dataset = _dataset(restricted(transaction.tx, writer.scope), dataset_id)
        refuse_others(transaction.tx, writer, dataset.owner, f"The dataset '{dataset.name}'")
        job_id = transaction.tx.job_naming(dataset_id)
        if job_id:
            raise DatasetInUse(f"Job {job_id} has not ended and uses {dataset.name}.", job_id=job_id)
        transaction.tx.hide_dataset(dataset_id)
        _note(transaction, EventType.DATASET_DELETED, dataset, writer.actor)

    await fleet.act(step)
    await _drop(fleet, dataset_id)


async def _drop(fleet: Fleet, dataset_id: str) -> None:
    def step(transaction: Transaction) -> int:
        if transaction.tx.dataset(dataset_id) is not None:
            return 0
        return transaction.tx.drop_dataset_files(dataset_id, transaction.now, ROWS_PER_ROUND)

    while await fleet.act(step) == ROWS_PER_ROUND:
        pass


def check_datasets(view: View, bundle: Bundle) -> tuple[tuple[str, int], ...]:
    """Returns id and size of each dataset that the job names. Raises Invalid, naming the field, for an unknown one."""
    sizes: dict[str, int] = {}
    for name, text in bundle.datasets.items():
        dataset_id = datasets.read_id(text, f"$.datasets.{name}")
        dataset = view.dataset(dataset_id)
        if dataset is None:
            raise Invalid(
                f"There is no dataset {prefixed_id(dataset_id)}.",
                path=f"$.datasets.{name}",
                next_step="Upload it with 'simpletuner data push DIR', or see 'simpletuner data list'.",
            )
        sizes[dataset_id] = dataset.total_bytes
    return tuple(sorted(sizes.items()))


async def size_for_worker(fleet: Fleet, worker_id: str, job_id: str, sha256: str) -> int:
    """Returns the size of a file of a dataset that the job names, for the worker that runs the job now."""

    def look(view: View) -> int:
        job = job_run_by(view, worker_id, job_id)
        size = view.dataset_file_size([dataset_id for dataset_id, _ in job.requires.datasets], sha256)
        if size is None:
            raise NotFound("No dataset of this job contains this file.")
        return size

    return await fleet.read_now(look)


async def let_go_of_unused(storage: Storage, before: float) -> None:
    """Disowns what no dataset has named since `before`. The sweep of all objects deletes the bytes."""
    for dataset_id in await storage.fleet.read(lambda view: view.unready_datasets(before)):
        await _drop(storage.fleet, dataset_id)

    def step(transaction: Transaction) -> int:
        shas = transaction.tx.unused_dataset_objects(before, ROWS_PER_ROUND)
        transaction.tx.disown_dataset_objects(shas)
        return len(shas)

    while await storage.fleet.act(step) == ROWS_PER_ROUND:
        pass
    storage.dataset_usage.counted_at = None


def _note(transaction: Transaction, type_: EventType, dataset: Dataset, actor: Actor) -> None:
    """Records the change in the audit log, and publishes it to watchers who may see the dataset."""
    transaction.record(
        Event(
            type=type_,
            actor=actor,
            target_type="dataset",
            target_id=prefixed_id(dataset.id),
            details={"name": dataset.name, "files": dataset.files, "bytes": dataset.total_bytes},
        )
    )
    transaction.publish("dataset", id=prefixed_id(dataset.id), belongs=dataset.belongs)
