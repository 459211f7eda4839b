"""Manifests, who has uploaded what, and notes."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.jobs.requests.deleting import deleted
from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest
from simpletuner_fleet.ports import ConcurrentChange, Ending, JobNote, Store, Tx, View
from tests.store.samples import BUNDLE, job

SHAS = [f"{number:064x}" for number in range(10)]
OWNERS = ("t_0", "t_1", "t_2")
ENDED_JOB = {"state": JobState.COMPLETED, "hold": Hold.NONE, "finished_at": 90.0}


def size_of(sha256: str) -> int:
    return 2**33 + int(sha256, 16)


def manifest(number: int, **given: Any) -> StoredManifest:
    fields: dict[str, Any] = {
        "id": f"m_{number}",
        "job_id": "j_1",
        "attempt_id": "a_1",
        "attempt_number": 1,
        "epoch": 7,
        "kind": "checkpoint",
        "name": f"checkpoint-{number}",
        "step": number,
        "files": (FileEntry(path="unet/größe.bin", size=2**40, sha256=SHAS[0]),),
        "total_bytes": 2**40,
        "created_at": 100.25 + number,
        "worker_name": "gpu-1",
    }
    return StoredManifest(**{**fields, **given})


def note(number: int, **given: Any) -> JobNote:
    fields: dict[str, Any] = {
        "id": f"n{number}",
        "job_id": "j_1",
        "attempt_number": 1,
        "at": 5.5,
        "kind": "nan_loss",
        "text": "the loss is NaN at step 7",
        "data": {"step": 7, "values": [1, None]},
    }
    return JobNote(**{**fields, **given})


@pytest.fixture(autouse=True)
async def _two_jobs(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.add_job(job(1), BUNDLE)
        tx.add_job(job(2), BUNDLE)

    await store.write(step)


async def add(store: Store, *manifests: StoredManifest) -> None:
    def step(tx: Tx) -> None:
        for each in manifests:
            tx.add_manifest(each)

    await store.write(step)


async def test_a_manifest_comes_back_as_it_was_stored(store: Store) -> None:
    artifact = manifest(2, kind="artifact", name="model", step=None)
    await add(store, manifest(1), artifact)
    assert await store.read(lambda view: view.manifest("m_1")) == manifest(1)
    assert await store.read(lambda view: view.manifest("m_2")) == artifact
    assert await store.read(lambda view: view.manifest("m_9")) is None


async def test_a_manifest_is_added_once_and_only_to_a_job_that_exists(store: Store) -> None:
    await add(store, manifest(1))
    for refused in (manifest(1, job_id="j_2"), manifest(2, job_id="j_none")):
        with pytest.raises(ConcurrentChange):
            await add(store, refused)


async def test_manifests_of_a_job_come_oldest_first_and_go_one_by_one(store: Store) -> None:
    await add(store, manifest(3), manifest(1), manifest(2), manifest(4, job_id="j_2"))
    manifests = await store.read(lambda view: view.manifests_of_job("j_1"))
    assert [each.id for each in manifests] == ["m_1", "m_2", "m_3"]
    await store.write(lambda tx: tx.delete_manifest("m_2"))
    await store.write(lambda tx: tx.delete_manifest("m_2"))
    manifests = await store.read(lambda view: view.manifests_of_job("j_1"))
    assert [each.id for each in manifests] == ["m_1", "m_3"]


async def test_the_newest_checkpoint_has_the_highest_step_and_then_the_latest_time(store: Store) -> None:
    assert await store.read(lambda view: view.newest_checkpoint("j_1")) is None
    await add(
        store,
        manifest(1, step=500),
        manifest(2, step=1000),
        manifest(3, step=1000),
        manifest(4, step=900),
        manifest(5, kind="artifact", step=2000),
        manifest(6, job_id="j_2", step=3000),
    )
    newest = await store.read(lambda view: view.newest_checkpoint("j_1"))
    assert newest is not None
    assert newest.id == "m_3"


async def test_a_failed_step_takes_manifests_objects_and_notes_back(store: Store) -> None:
    await add(store, manifest(1))
    await store.write(lambda tx: tx.own_object("j_1", SHAS[0], 5, 1.0))

    def step(tx: Tx) -> None:
        tx.delete_manifest("m_1")
        tx.add_manifest(manifest(2))
        tx.own_object("j_1", SHAS[1], 6, 1.0)
        tx.disown_objects([("j_1", SHAS[0])])
        tx.add_notes([note(1)])
        raise KeyError

    with pytest.raises(KeyError):
        await store.write(step)
    assert [each.id for each in await store.read(lambda view: view.manifests_of_job("j_1"))] == ["m_1"]
    assert await store.read(lambda view: view.objects_of_job("j_1")) == {SHAS[0]: 5}
    assert await store.read(lambda view: view.object_has_owner(SHAS[1])) is False
    assert await store.read(lambda view: view.notes_of_job("j_1")) == []


async def test_each_job_has_its_own_uploads_and_the_content_any_owner(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.own_object("j_1", SHAS[0], 2**40, 1.0)
        tx.own_object("j_2", SHAS[0], 2**40, 1.0)
        tx.own_object("j_1", SHAS[1], 7, 1.0)

    await store.write(step)
    assert await store.read(lambda view: view.objects_of_job("j_1")) == {SHAS[0]: 2**40, SHAS[1]: 7}
    of_these = await store.read(lambda view: view.objects_of_job("j_1", [SHAS[1], SHAS[2]]))
    assert of_these == {SHAS[1]: 7}
    assert await store.read(lambda view: view.objects_of_job("j_2", [SHAS[1]])) == {}
    assert await store.read(lambda view: view.stored_bytes_of_job("j_1")) == 2**40 + 7
    assert await store.read(lambda view: view.stored_bytes_of_job("j_3")) == 0
    assert await store.read(lambda view: view.stored_bytes_of_jobs()) == 2**40 + 7
    owner = job(1).owner
    assert await store.read(lambda view: view.stored_bytes_by_owner()) == {owner: 2 * 2**40 + 7}
    await store.write(lambda tx: tx.disown_objects([("j_1", SHAS[0]), ("j_1", SHAS[1])]))
    assert await store.read(lambda view: view.objects_of_job("j_1")) == {}
    assert await store.read(lambda view: view.object_has_owner(SHAS[0])) is True
    assert await store.read(lambda view: view.object_has_owner(SHAS[1])) is False


class Uploads:
    """What jobs of several people and teams have stored, as the rows say, and what anybody does to it."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, Random(seed)
        self.jobs = {
            (
                one := job(number, owner=f"t_{number % 3}", team=("", "vision")[number % 2], **ENDED_JOB)
            ).id: one
            for number in range(10, 16)
        }
        self.held: dict[str, dict[str, int]] = {job_id: {} for job_id in self.jobs}

    async def begin(self) -> None:
        def step(tx: Tx) -> None:
            for one in self.jobs.values():
                tx.add_job(one, BUNDLE)

        await self.store.write(step)

    def some(self) -> list[tuple[str, str]]:
        """Names files, also such as are not there, and some of them twice."""
        ids = sorted(self.jobs)
        return [
            (self.random.choice(ids), self.random.choice(SHAS)) for _ in range(self.random.randrange(1, 6))
        ]

    async def own(self) -> None:
        some = self.some()

        def step(tx: Tx) -> None:
            for job_id, sha256 in some:
                tx.own_object(job_id, sha256, size_of(sha256), 1.0)

        await self.store.write(step)
        for job_id, sha256 in some:
            self.held[job_id][sha256] = size_of(sha256)

    async def own_many(self) -> None:
        """More than are looked up singly, of which the job has some."""
        job_id = self.random.choice(sorted(self.jobs))
        shas = [*self.random.sample(SHAS, 5), *(f"{number:064x}" for number in range(40, 65))]
        sizes = {sha256: size_of(sha256) for sha256 in shas[: self.random.choice((0, 1, 5, 30))]}
        await self.store.write(lambda tx: tx.own_objects(job_id, sizes, 1.0))
        self.held[job_id] |= sizes

    async def disown(self) -> None:
        some = self.some()
        await self.store.write(lambda tx: tx.disown_objects(some))
        for job_id, sha256 in some:
            self.held[job_id].pop(sha256, None)

    async def fail(self) -> None:
        def step(tx: Tx) -> None:
            tx.own_object(*self.some()[0], 77, 1.0)
            tx.disown_objects(self.some())
            raise KeyError

        with pytest.raises(KeyError):
            await self.store.write(step)

    async def delete_job(self) -> None:
        job_id = self.random.choice(sorted(self.jobs))
        if len(self.jobs) > 2:
            gone = deleted(self.jobs.pop(job_id), [], 100.0)
            await self.store.write(lambda tx: tx.delete_job(gone))
            del self.held[job_id]

    def expected(self) -> object:
        def stored(counts: Callable[[Job], bool]) -> int:
            return sum(sum(self.held[one.id].values()) for one in self.jobs.values() if counts(one))

        by_owner = {owner: stored(lambda one, owner=owner: one.owner == owner) for owner in OWNERS}  # type: ignore[misc]
        content = {sha256: size for of_job in self.held.values() for sha256, size in of_job.items()}
        return (
            {job_id: sum(files.values()) for job_id, files in self.held.items()},
            by_owner,
            {owner: used for owner, used in by_owner.items() if used},
            (stored(lambda one: one.team == "vision"), 0),
            sum(content.values()),
        )

    def answers(self, view: View) -> object:
        return (
            {job_id: view.stored_bytes_of_job(job_id) for job_id in self.jobs},
            {owner: view.stored_bytes_of(owner) for owner in OWNERS},
            view.stored_bytes_by_owner(),
            (view.stored_bytes_of_team("vision"), view.stored_bytes_of_team("nobody's")),
            view.stored_bytes_of_jobs(),
        )


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_stored_is_told_as_if_all_files_were_summed_up(store: Store, seed: int) -> None:
    uploads = Uploads(store, seed)
    await uploads.begin()
    for _ in range(40):
        acts = (uploads.own, uploads.own, uploads.own_many, uploads.disown, uploads.fail)
        await (uploads.random.choice(acts) if uploads.random.random() < 0.95 else uploads.delete_job)()
        assert await store.read(uploads.answers) == uploads.expected()
        assert await store.read(lambda view: view.stored_is_miscounted()) is False
    await store.write(lambda tx: tx.recount_stored())
    assert await store.read(uploads.answers) == uploads.expected()


@pytest.mark.parametrize("at_once", [True, False])
async def test_uploads_are_unused_until_named_and_again_when_let_go(store: Store, at_once: bool) -> None:
    def step(tx: Tx) -> None:
        for at, sha256 in enumerate(SHAS[:3]):
            tx.own_object("j_1", sha256, 7, 10.0 - at)
        tx.mark_objects("j_1", SHAS[:1], None)

    async def unused(before: float, limit: int = 10) -> list[str]:
        rows = await store.read(lambda view: view.unused_objects(before, limit))
        return [sha256 for _, sha256 in rows]

    await store.write(step)
    assert await unused(11.0) == [SHAS[2], SHAS[1]]
    assert await unused(11.0, 1) == [SHAS[2]]
    assert await unused(8.5) == [SHAS[2]]
    if at_once:
        await store.write(lambda tx: tx.own_objects("j_1", {SHAS[2]: 7, SHAS[0]: 7}, 20.0))
    else:
        await store.write(lambda tx: tx.own_object("j_1", SHAS[2], 7, 20.0))
        await store.write(lambda tx: tx.own_object("j_1", SHAS[0], 7, 20.0))
    assert await unused(11.0) == [SHAS[1]], "sent again is waiting anew; named stays named"
    await store.write(lambda tx: tx.mark_objects("j_1", [SHAS[0]], 3.0))
    assert await unused(11.0) == [SHAS[0], SHAS[1]]


async def test_notes_are_kept_once_in_the_order_they_came(store: Store) -> None:
    assert await store.write(lambda tx: tx.add_notes([note(2), note(1)])) == 2
    again = [note(1, text="changed"), note(3), note(1, job_id="j_2")]
    assert await store.write(lambda tx: tx.add_notes(again)) == 2
    assert await store.read(lambda view: view.notes_of_job("j_1")) == [note(2), note(1), note(3)]
    assert await store.read(lambda view: view.notes_of_job("j_2")) == [replace(note(1), job_id="j_2")]


async def test_endings_are_told_in_order_page_by_page(store: Store) -> None:
    def step(tx: Tx) -> None:
        for number, at in ((3, 30.5), (4, 10.0), (5, 10.0), (6, 99.0)):
            tx.add_job(job(number, state=JobState.COMPLETED, finished_at=at), BUNDLE)

    async def endings(after: Ending, before: float, limit: int = 10) -> list[str]:
        rows = await store.read(lambda view: view.endings(after, before, limit))
        return [ending.job_id for ending in rows]

    await store.write(step)
    start = Ending(at=0.0, job_id="")
    assert await endings(start, 99.0) == ["j_4", "j_5", "j_3"], "those that run have no end"
    assert await endings(start, 100.0, 2) == ["j_4", "j_5"]
    assert await endings(Ending(at=10.0, job_id="j_4"), 100.0) == ["j_5", "j_3", "j_6"]
    assert await endings(Ending(at=30.5, job_id="j_3"), 99.0) == []
