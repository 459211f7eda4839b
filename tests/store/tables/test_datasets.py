"""Datasets, what was uploaded for them, and which jobs need them."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.ports import ConcurrentChange, Store, Tx
from tests.store.samples import BUNDLE, job, worker

SHAS = [f"{number:064x}" for number in range(10)]


def dataset(number: int, **given: Any) -> Dataset:
    fields: dict[str, Any] = {
        "id": f"{number:064x}",
        "name": f"pets-{number}",
        "files": 3,
        "total_bytes": 2**40,
        "manifest_bytes": 300,
        "created_at": 100.25 + number,
        "created_by": "größe",
    }
    return Dataset(**{**fields, **given})


def put(tx: Tx, stored: Dataset, files: dict[str, int]) -> None:
    tx.begin_dataset(stored)
    tx.add_dataset_files(stored.id, files)
    assert tx.finish_dataset(stored.id, stored.name, len(files))


def drop(tx: Tx, dataset_id: str, at: float) -> None:
    tx.hide_dataset(dataset_id)
    tx.drop_dataset_files(dataset_id, at, 100)


async def upload(store: Store, *shas: str, at: float = 5.0) -> None:
    def step(tx: Tx) -> None:
        for sha256 in shas:
            tx.own_dataset_object(sha256, 7, at)

    await store.write(step)


async def unused(store: Store, before: float = 1000.0, limit: int = 10) -> list[str]:
    return await store.read(lambda view: view.unused_dataset_objects(before, limit))


async def test_a_dataset_comes_back_as_it_was_stored_and_the_newest_first(store: Store) -> None:
    await store.write(lambda tx: put(tx, dataset(1), {SHAS[1]: 2**40}))
    await store.write(lambda tx: put(tx, dataset(2), {SHAS[1]: 2**40}))
    assert await store.read(lambda view: view.dataset(dataset(1).id)) == dataset(1)
    assert await store.read(lambda view: view.dataset(SHAS[9])) is None
    assert await store.read(lambda view: view.datasets()) == [dataset(2), dataset(1)]


async def test_a_dataset_that_is_known_only_gets_the_new_name(store: Store) -> None:
    await store.write(lambda tx: put(tx, dataset(1), {SHAS[1]: 7}))
    again = dataset(1, name="cats", created_at=999.0, created_by="else")
    await store.write(lambda tx: put(tx, again, {SHAS[1]: 7}))
    assert await store.read(lambda view: view.datasets()) == [replace(dataset(1), name="cats")]


async def test_a_dataset_is_seen_only_when_all_of_its_files_are_there(store: Store) -> None:
    await upload(store, SHAS[1], SHAS[2])
    stored = dataset(1)

    def begin(tx: Tx) -> None:
        tx.begin_dataset(stored)
        tx.add_dataset_files(stored.id, {SHAS[1]: 7})

    await store.write(begin)
    assert await store.write(lambda tx: tx.finish_dataset(stored.id, "cats", 2)) is False
    assert await store.read(lambda view: view.dataset(stored.id)) is None
    assert await store.read(lambda view: view.datasets()) == []
    assert await store.read(lambda view: view.unready_datasets(stored.created_at)) == []
    assert await store.read(lambda view: view.unready_datasets(stored.created_at + 1)) == [stored.id]
    assert await unused(store) == [SHAS[2]]
    await store.write(lambda tx: tx.add_dataset_files(stored.id, {SHAS[2]: 7}))
    assert await store.write(lambda tx: tx.finish_dataset(stored.id, "cats", 2)) is True
    assert await store.read(lambda view: view.dataset(stored.id)) == replace(stored, name="cats")
    assert await store.write(lambda tx: tx.finish_dataset(SHAS[9], "none", 0)) is False
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_dataset_files(SHAS[9], {SHAS[2]: 7}))


async def test_a_dataset_goes_a_few_files_at_a_time(store: Store) -> None:
    await upload(store, *SHAS[1:4])
    stored = dataset(1)
    await store.write(lambda tx: put(tx, stored, dict.fromkeys(SHAS[1:4], 7)))

    async def dropped() -> int:
        return await store.write(lambda tx: tx.drop_dataset_files(stored.id, 50.0, 2))

    await store.write(lambda tx: tx.hide_dataset(stored.id))
    assert await dropped() == 2
    assert await unused(store) == SHAS[1:3]
    assert await store.read(lambda view: view.unready_datasets(1e9)) == [stored.id]
    assert await dropped() == 1
    assert await store.read(lambda view: view.unready_datasets(1e9)) == []
    assert await dropped() == 0


async def test_a_file_is_found_in_the_datasets_that_have_it(store: Store) -> None:
    def step(tx: Tx) -> None:
        put(tx, dataset(1), {SHAS[1]: 2**40})
        put(tx, dataset(2), {SHAS[2]: 9})

    async def size(sha256: str, *ids: str) -> int | None:
        return await store.read(lambda view: view.dataset_file_size(ids, sha256))

    await store.write(step)
    one, two = dataset(1).id, dataset(2).id
    assert await size(SHAS[1], two, one) == 2**40
    assert await size(SHAS[2], one) is None
    assert await size(SHAS[2]) is None


async def test_uploads_are_unused_until_a_dataset_names_them(store: Store) -> None:
    await upload(store, SHAS[1], at=9.0)
    await upload(store, SHAS[2], SHAS[3], at=8.0)
    assert await unused(store) == [SHAS[2], SHAS[3], SHAS[1]]
    assert await unused(store, limit=1) == [SHAS[2]]
    assert await unused(store, before=8.5) == [SHAS[2], SHAS[3]]
    await store.write(lambda tx: put(tx, dataset(1), {SHAS[1]: 7, SHAS[2]: 7}))
    assert await unused(store) == [SHAS[3]]
    await upload(store, SHAS[1], SHAS[3], at=20.0)
    assert await unused(store, before=20.0) == []
    assert await unused(store) == [SHAS[3]]


async def test_what_was_uploaded_has_an_owner_until_it_is_let_go(store: Store) -> None:
    await upload(store, SHAS[1], SHAS[2])
    assert await store.read(lambda view: view.dataset_objects(SHAS[:2])) == {SHAS[1]: 7}
    assert await store.read(lambda view: view.dataset_bytes()) == 14
    assert await store.read(lambda view: view.object_has_owner(SHAS[1])) is True
    await store.write(lambda tx: tx.disown_dataset_objects([SHAS[1], SHAS[5]]))
    assert await store.read(lambda view: view.object_has_owner(SHAS[1])) is False
    assert await store.read(lambda view: view.dataset_bytes()) == 7


async def test_a_deleted_dataset_frees_what_no_other_one_names(store: Store) -> None:
    await upload(store, SHAS[1], SHAS[2], SHAS[3])

    def step(tx: Tx) -> None:
        put(tx, dataset(1), {SHAS[1]: 7, SHAS[2]: 7})
        put(tx, dataset(2), {SHAS[2]: 7, SHAS[3]: 7})

    await store.write(step)
    await store.write(lambda tx: drop(tx, dataset(1).id, 50.0))
    assert await unused(store) == [SHAS[1]]
    assert await unused(store, before=50.0) == []
    assert await store.read(lambda view: view.dataset(dataset(1).id)) is None
    assert await store.read(lambda view: view.dataset_file_size([dataset(1).id], SHAS[1])) is None
    await store.write(lambda tx: drop(tx, dataset(1).id, 60.0))
    await store.write(lambda tx: drop(tx, dataset(2).id, 60.0))
    assert await unused(store) == [SHAS[1], SHAS[2], SHAS[3]]


async def test_a_job_names_its_datasets_until_it_has_ended(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.add_job(job(1), BUNDLE)
        tx.add_job(job(2), BUNDLE)
        tx.name_datasets("j_2", [SHAS[1]])
        tx.name_datasets("j_1", [SHAS[1], SHAS[2]])
        tx.name_datasets("j_1", [SHAS[1]])

    async def naming(sha256: str) -> str | None:
        return await store.read(lambda view: view.job_naming(sha256))

    await store.write(step)
    assert (await naming(SHAS[1]), await naming(SHAS[2]), await naming(SHAS[3])) == ("j_1", "j_1", None)
    await store.write(lambda tx: tx.save_job(replace(job(1), state=JobState.CANCELLED)))
    assert (await naming(SHAS[1]), await naming(SHAS[2])) == ("j_2", None)


async def test_a_failed_step_takes_datasets_back(store: Store) -> None:
    await upload(store, SHAS[1])
    await store.write(lambda tx: tx.add_job(job(1), BUNDLE))
    await store.write(lambda tx: put(tx, dataset(1), {SHAS[1]: 7}))

    def step(tx: Tx) -> None:
        drop(tx, dataset(1).id, 9.0)
        put(tx, dataset(2), {SHAS[2]: 7})
        tx.own_dataset_object(SHAS[3], 7, 1.0)
        tx.disown_dataset_objects([SHAS[1]])
        tx.name_datasets("j_1", [SHAS[1]])
        raise KeyError

    with pytest.raises(KeyError):
        await store.write(step)
    assert await store.read(lambda view: view.datasets()) == [dataset(1)]
    assert await store.read(lambda view: view.dataset_objects(SHAS)) == {SHAS[1]: 7}
    assert await store.read(lambda view: view.dataset_file_size([dataset(1).id], SHAS[1])) == 7
    assert await unused(store) == []
    assert await store.read(lambda view: view.job_naming(SHAS[1])) is None


async def test_a_worker_keeps_what_it_told_of_its_cache(store: Store) -> None:
    held = replace(worker(1), datasets=(SHAS[1], SHAS[2]), data_bytes=2**40, data_limit_bytes=2**41)
    await store.write(lambda tx: tx.add_worker(held))
    assert await store.read(lambda view: view.worker(held.id)) == held
