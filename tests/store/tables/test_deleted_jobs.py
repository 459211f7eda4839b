"""Deleted jobs: their rows are gone, and what they have used is told as before, in every store."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Hold, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.requests.deleting import deleted
from simpletuner_fleet.ports import ConcurrentChange, JobFilter, Store, Tx, View
from tests.store.samples import job


def ended(n: int) -> Job:
    return job(n, state=JobState.COMPLETED, hold=Hold.NONE, not_before=None, finished_at=90.0, attempts=1)


def attempt(n: int) -> Attempt:
    return Attempt(
        id=f"a_{n}",
        job_id=f"j_{n}",
        number=1,
        epoch=n,
        worker_id="w_1",
        worker_name="gpu-1",
        state=AttemptState.ENDED,
        offered_at=10.0,
        accepted_at=11.0,
        ended_at=90.0,
        outcome=Outcome.COMPLETED,
        gpus=("GPU-1", "GPU-2"),
        gpu_kind="a100",
        hourly_micros=7,
    )


async def stored(store: Store) -> None:
    def step(tx: Tx) -> None:
        for n in (1, 2):
            tx.add_job(ended(n), b"{}")
            tx.add_attempt(attempt(n))
            tx.own_object(f"j_{n}", "a" * 64, 5, 1.0)
            tx.own_object(f"j_{n}", str(n) * 64, 5, 1.0)

    await store.write(step)


def used(view: View) -> object:
    return (
        view.charges_since(0.0),
        sorted(view.attempts_used(0.0, 1e9), key=repr),
        sum(one.gpu_seconds for one in view.time_used(20.0, 1e9)),
        view.any_priced_attempt(),
    )


async def test_a_deleted_job_is_gone_and_what_it_used_is_not(store: Store) -> None:
    await stored(store)
    before = await store.read(used)
    gone = deleted(ended(1), [attempt(1)], 100.0)
    await store.write(lambda tx: tx.delete_job(gone))

    def look(view: View) -> tuple[object, ...]:
        return (
            view.job("j_1"),
            view.job_bundle("j_1"),
            view.attempt("a_1"),
            view.attempts_of_job("j_1"),
            view.objects_of_job("j_1"),
            [one.id for one in view.jobs_page(JobFilter(), None, 9)],
            view.job_counts(),
            view.object_has_owner("1" * 64),
            view.object_has_owner("a" * 64),
        )

    assert await store.read(look) == (
        *(None, None, None, [], {}, ["j_2"], {"completed": 1}),
        *(False, True),
    )
    assert await store.read(used) == before
    assert await store.read(lambda view: view.deleted_job("j_1")) == gone
    assert await store.read(lambda view: view.deleted_jobs_with_files(9)) == [gone]
    assert await store.read(lambda view: view.deleted_jobs_since(99.0)) == [gone]
    assert await store.read(lambda view: view.deleted_jobs_since(100.0)) == []
    await store.write(lambda tx: tx.files_are_gone("j_1"))
    assert await store.read(lambda view: view.deleted_jobs_with_files(9)) == []
    kept = await store.read(lambda view: view.deleted_job("j_1"))
    assert kept == replace(gone, files_left=False, attempts=())


async def test_a_step_that_fails_deletes_nothing(store: Store) -> None:
    await stored(store)

    def step(tx: Tx) -> None:
        tx.delete_job(deleted(ended(1), [attempt(1)], 100.0))
        assert tx.job("j_1") is None
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await store.write(step)
    assert await store.read(lambda view: view.job("j_1")) == ended(1)
    assert await store.read(lambda view: view.attempts_of_job("j_1")) == [attempt(1)]
    assert await store.read(lambda view: view.job_counts()) == {"completed": 2}
    assert await store.write(lambda tx: tx.job("j_1")) == ended(1)


async def test_only_an_ended_job_that_exists_is_deleted(store: Store) -> None:
    running = job(3, state=JobState.QUEUED, hold=Hold.NONE, not_before=None)
    await store.write(lambda tx: tx.add_job(running, b"{}"))
    for one in (running, ended(4)):
        with pytest.raises(ConcurrentChange):
            await store.write(lambda tx, one=one: tx.delete_job(deleted(one, [], 1.0)))  # type: ignore[misc]
    assert await store.read(lambda view: view.job("j_3")) == running


async def test_jobs_that_go_on_from_another_are_known_until_they_end(store: Store) -> None:
    going = job(5, state=JobState.QUEUED, hold=Hold.NONE, not_before=None, resume_from="j_1:40")
    await store.write(lambda tx: tx.add_job(going, b"{}"))
    assert await store.write(lambda tx: tx.going_on_from("j_1")) == ["j_5"]
    assert await store.write(lambda tx: tx.going_on_from("j_2")) == []
    over = replace(going, state=JobState.CANCELLED, finished_at=9.0)
    await store.write(lambda tx: tx.save_job(over))
    assert await store.write(lambda tx: tx.going_on_from("j_1")) == []
