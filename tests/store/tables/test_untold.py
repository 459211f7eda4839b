"""Which ends are still to be told follows from the rows, and a step that is undone has told nobody."""

from functools import partial

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.ports import Store, Tx
from simpletuner_fleet.store.rows.live_rows import NobodyWatches
from tests.store.samples import BUNDLE, job


class ChangedMyMind(Exception):
    pass


def waiting(number: int, *needs: str) -> Job:
    return job(number, state=JobState.BLOCKED, hold=Hold.DEPENDENCY, depends_on=needs)


def ended(one: Job) -> Job:
    return replace(one, state=JobState.FAILED, hold=Hold.NONE, finished_at=9.0)


def submit(tx: Tx) -> None:
    first = job(1, state=JobState.RUNNING)
    for one in (first, job(2, state=JobState.RUNNING), waiting(3, "j_1"), waiting(4, "j_1", "j_2")):
        tx.add_job(one, BUNDLE)


def end(job_id: str, tx: Tx) -> None:
    running = tx.job(job_id)
    assert running is not None
    tx.save_job(ended(running))


def look(tx: Tx) -> tuple[str | None, dict[str, int | None], list[bool]]:
    ids = [f"j_{number}" for number in range(1, 5)]
    reached = {id: tx.told_up_to(id) for id in ids if tx.told_up_to(id) is not None}
    return tx.next_untold(), reached, [tx.job_goes_on(id) for id in ids]


async def test_an_end_is_to_be_told_where_somebody_waits_for_it(store: Store) -> None:
    await store.write(submit)
    assert await store.write(look) == (None, {}, [True] * 4)
    await store.write(partial(end, "j_1"))
    assert await store.write(look) == ("j_1", {"j_1": 0}, [False, True, True, True])
    await store.write(partial(end, "j_3"))
    assert await store.write(look) == ("j_1", {"j_1": 0}, [False, True, False, True]), "nobody waits for j_3"


async def test_how_far_it_was_told_is_forgotten_with_the_rows_and_told_again(store: Store) -> None:
    await store.write(submit)
    await store.write(partial(end, "j_1"))
    await store.write(lambda tx: tx.note_told("j_1", 3))
    assert (await store.write(look))[1] == {"j_1": 3}
    await store.write(partial(end, "j_2"))
    await store.write(lambda tx: tx.note_told("j_2", None))
    assert (await store.write(look))[1] == {"j_1": 3}
    store.observe(NobodyWatches())
    assert (await store.write(look))[1] == {"j_1": 0, "j_2": 0}
    for job_id in ("j_3", "j_4"):
        await store.write(partial(end, job_id))
    store.observe(NobodyWatches())
    assert (await store.write(look))[:2] == (None, {})


@pytest.mark.parametrize("directly", [False, True], ids=["in memory", "with the connection"])
async def test_a_step_that_is_undone_has_told_nobody(store: Store, directly: bool) -> None:
    def fail(tx: Tx) -> None:
        end("j_2", tx)
        tx.note_told("j_1", None)
        for job_id in ("j_3", "j_4"):
            end(job_id, tx)
        tx.note_told("j_2", 4)
        if directly:
            tx.put_setting("k", "v")
        raise ChangedMyMind

    await store.write(submit)
    await store.write(partial(end, "j_1"))
    await store.write(lambda tx: tx.note_told("j_1", 3))
    before = await store.write(look)
    with pytest.raises(ChangedMyMind):
        await store.write(fail)
    assert await store.write(look) == before == ("j_1", {"j_1": 3}, [False, True, True, True])
    assert await store.write(lambda tx: len(tx.dependents_of("j_2", 0, 9))) == 1
