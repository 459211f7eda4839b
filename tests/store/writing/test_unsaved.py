"""What steps leave to the next commit, several of them together, and what is there after a restart."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NameTaken, StoreUnavailable
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.ports import ConcurrentChange, Tx
from simpletuner_fleet.store.rows.unsaved import Unsaved
from tests.store.outsider import Rig, a_while, sqlite_rig
from tests.store.samples import BUNDLE, attempt, event, job, worker

Step = Callable[[Tx], object]


class ChangedMyMind(Exception):
    pass


def saving(number: int, **fields: object) -> Step:
    def step(tx: Tx) -> None:
        known = tx.worker(f"w_{number}")
        assert known is not None
        tx.save_worker(replace(known, **fields))

    return step


async def together(rig: Rig, *steps: Step) -> None:
    """Runs them in the same turn, so that one commit stores them."""
    await asyncio.gather(*(rig.store.write(step) for step in steps))


@pytest.mark.parametrize("slot", Unsaved.__slots__)
def test_what_is_emptied_for_the_next_step_holds_nothing(slot: str) -> None:
    unsaved = Unsaved()
    some: Any = getattr(unsaved, slot)
    if isinstance(some, dict):
        some["id"] = None
    else:
        some.append(None)
    assert unsaved
    unsaved.clear()
    assert not unsaved


async def test_counters_are_stored_even_if_nothing_else_changed(rig: Rig) -> None:
    assert await rig.store.write(lambda tx: (tx.next_seq(), tx.next_epoch())) == (1, 1)
    await rig.store.write(lambda tx: tx.raise_epoch_to(50))
    await rig.restart()
    assert await rig.store.write(lambda tx: (tx.next_seq(), tx.next_epoch())) == (2, 51)


async def test_what_a_change_of_a_worker_brings_outlives_a_restart(rig: Rig) -> None:
    await rig.store.write(lambda tx: tx.add_worker(worker(1)))
    await rig.store.write(saving(1, retired=("gone",), former_tokens=("old",), datasets=("d_1",), home="h"))
    await rig.restart()
    stored = await rig.store.read(lambda view: view.worker("w_1"))
    assert stored == worker(
        1, retired=("gone",), former_tokens=("old",), datasets=("d_1",), home="h", version=1
    )
    assert await rig.memory_equals_database()


async def test_marks_are_stored_beside_a_change_and_alone(rig: Rig) -> None:
    await rig.store.write(lambda tx: tx.add_worker(worker(1)))
    await together(
        rig,
        lambda tx: tx.touch_heartbeats([("w_1", 5.0)]),
        saving(1, home="h"),
        lambda tx: tx.note_message_seq("w_1", 3),
    )
    await rig.store.write(lambda tx: tx.touch_heartbeats([("w_1", 6.0), ("w_none", 6.0)]))
    stored = await rig.store.read(lambda view: view.worker("w_1"))
    assert stored == worker(1, version=1, home="h", message_seq=3, last_heartbeat=6.0)
    assert await rig.store.write(lambda tx: tx.worker("w_1")) == stored


async def test_marks_of_a_step_that_raises_are_taken_back(rig: Rig) -> None:
    def step(tx: Tx) -> None:
        tx.touch_heartbeats([("w_1", 5.0)])
        tx.note_message_seq("w_1", 3)
        raise ChangedMyMind

    await rig.store.write(lambda tx: tx.add_worker(worker(1)))
    with pytest.raises(ChangedMyMind):
        await rig.store.write(step)
    assert await rig.store.write(lambda tx: tx.worker("w_1")) == worker(1)


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)], ids=["in one step", "after another", "in several"])
async def test_a_worker_may_be_deleted_and_added_again_in_one_commit(rig: Rig, cuts: tuple[int, ...]) -> None:
    steps: list[Step] = [
        saving(1, home="h"),
        lambda tx: tx.delete_worker("w_1"),
        lambda tx: tx.add_worker(worker(1, token_hash="new", address="10.0.0.1")),
        saving(1, home="other"),
    ]
    await rig.store.write(lambda tx: tx.add_worker(worker(1)))
    parts = [steps[start:end] for start, end in pairwise((0, *cuts, len(steps)))]
    await together(rig, *(lambda tx, part=part: [step(tx) for step in part] for part in parts))
    assert await rig.memory_equals_database()
    assert rig.observer.workers["w_1"].home == "other"


async def test_a_name_may_pass_from_one_worker_to_another_in_one_commit(rig: Rig) -> None:
    await together(rig, lambda tx: tx.add_worker(worker(1)), lambda tx: tx.add_worker(worker(2)))
    await together(
        rig,
        saving(2, home="h"),
        saving(1, name="renamed", token_hash="other"),
        saving(2, name="gpu-1", token_hash="hash-1"),
    )
    assert await rig.memory_equals_database()
    assert rig.observer.workers["w_2"].name == "gpu-1"


async def test_whoever_gave_up_a_name_may_change_again_in_the_same_commit(rig: Rig) -> None:
    await together(rig, lambda tx: tx.add_worker(worker(1)), lambda tx: tx.add_worker(worker(2)))
    await together(
        rig,
        saving(1, name="renamed", token_hash="other"),
        saving(2, name="gpu-1", token_hash="hash-1"),
        saving(1, home="h"),
    )
    assert await rig.memory_equals_database()
    assert rig.observer.workers["w_1"].home == "h"


async def test_a_worker_that_came_and_went_in_one_commit_leaves_nothing(rig: Rig) -> None:
    await together(
        rig,
        lambda tx: tx.add_worker(worker(1)),
        saving(1, home="h"),
        lambda tx: tx.touch_heartbeats([("w_1", 5.0)]),
        lambda tx: tx.delete_worker("w_1"),
        lambda tx: tx.add_worker(worker(2, name="gpu-1", token_hash="hash-1")),
    )
    assert await rig.memory_equals_database()
    assert list(rig.observer.workers) == ["w_2"]


async def test_a_class_that_an_undone_step_has_brought_is_stored_with_the_next_job_of_it(rig: Rig) -> None:
    """Each class has a row of its own, to which its jobs point."""

    def step(tx: Tx) -> None:
        tx.add_job(job(1, class_id="c_new"), BUNDLE)
        tx.put_setting("k", "v")
        raise ChangedMyMind

    with pytest.raises(ChangedMyMind):
        await rig.store.write(step)
    await rig.store.write(lambda tx: tx.add_job(job(1, class_id="c_new"), BUNDLE))
    assert await rig.memory_equals_database()


async def test_a_class_that_was_lost_with_its_batch_is_stored_with_the_next_job_of_it(rig: Rig) -> None:
    def add(tx: Tx) -> None:
        tx.add_job(job(1, class_id="c_new"), BUNDLE)
        saving(1, home="h")(tx)

    await rig.store.write(lambda tx: tx.add_worker(worker(1)))
    with rig.commits_held_up():
        adding = asyncio.create_task(rig.store.write(add))
        await a_while()
        rig.spoil_workers()
    with pytest.raises(StoreUnavailable):
        await adding
    await rig.store.write(add)
    assert await rig.memory_equals_database()


async def test_counts_follow_every_state_and_no_step_that_was_undone(rig: Rig) -> None:
    def step_of(number: int) -> Step:
        def step(tx: Tx) -> None:
            tx.add_job(job(number), BUNDLE)
            tx.append_audit(1.0, [event(target=f"j_{number}")])
            if number % 2:
                raise ChangedMyMind
            tx.save_job(job(number, state=JobState.CANCELLED))

        return step

    await asyncio.gather(*(rig.store.write(step_of(n)) for n in range(10)), return_exceptions=True)
    await rig.store.write(lambda tx: tx.add_job(job(77), BUNDLE))
    counts, audited = await rig.store.read(lambda view: (view.job_counts(), view.audit_stats()))
    assert counts == {"cancelled": 5, "queued": 1}
    assert audited == {"job.submitted": 5}


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "with the connection"])
async def test_the_bundle_of_a_job_that_was_refused_is_not_remembered(rig: Rig, in_memory: bool) -> None:
    def step(tx: Tx) -> None:
        tx.add_job(job(1), b"refused")
        if not in_memory:
            tx.put_setting("k", "v")
        tx.job_bundle("j_1")
        raise ChangedMyMind

    with pytest.raises(ChangedMyMind):
        await rig.store.write(step)
    assert await rig.store.write(lambda tx: tx.job_bundle("j_1")) is None
    await rig.store.write(lambda tx: tx.add_job(job(1), BUNDLE))
    assert await rig.store.write(lambda tx: tx.job_bundle("j_1")) == BUNDLE


async def test_a_bundle_on_its_way_to_the_disk_is_found(tmp_path: Path) -> None:
    async with sqlite_rig(tmp_path / "fleet.db") as rig:
        await rig.store.write(lambda tx: None)
        with rig.commits_held_up():
            adding = asyncio.create_task(rig.store.write(lambda tx: tx.add_job(job(1), BUNDLE)))
            await a_while()
            looking = asyncio.create_task(rig.store.write(lambda tx: tx.job_bundle("j_1")))
            await a_while()
        await adding
        assert await looking == BUNDLE


async def test_many_rows_of_each_table_are_stored_by_one_commit(rig: Rig) -> None:
    numbers = range(10, 160)

    def add_all(tx: Tx) -> None:
        for number in numbers:
            tx.add_worker(worker(number))
            tx.add_job(job(number), BUNDLE)
            tx.append_audit(1.0, [event(target=f"j_{number}")])
            tx.add_attempt(attempt(number, job_id=f"j_{number}", worker_id=f"w_{number}"))

    def change_all(tx: Tx) -> None:
        for number in numbers:
            machine, known, tried = tx.worker(f"w_{number}"), tx.job(f"j_{number}"), tx.attempt(f"a_{number}")
            assert machine is not None
            assert known is not None
            assert tried is not None
            tx.save_worker(replace(machine, drain_note=str(number)))
            tx.save_job(replace(known, error=str(number)))
            tx.save_attempt(replace(tried, error=str(number)))
            tx.touch_heartbeats([(machine.id, float(number))])

    await rig.store.write(add_all)
    assert await rig.memory_equals_database()
    await rig.store.write(change_all)
    assert await rig.memory_equals_database()
    heard = await rig.store.read(lambda view: [one.last_heartbeat for one in view.workers()])
    assert heard == [float(number) for number in numbers]


async def test_names_and_tokens_are_unique_in_memory_before_the_database_could_say_so(rig: Rig) -> None:
    def rename(number: int, name: str) -> Step:
        def step(tx: Tx) -> None:
            known = tx.worker(f"w_{number}")
            assert known is not None
            tx.save_worker(replace(known, name=name))

        return step

    steps: list[Step] = [
        lambda tx: tx.add_worker(worker(1, name="a")),
        lambda tx: tx.add_worker(worker(2, name="A")),
        lambda tx: tx.add_worker(worker(3, token_hash="hash-1")),
        lambda tx: tx.add_worker(worker(1, name="b", token_hash="new")),
        rename(1, "c"),
        lambda tx: tx.add_worker(worker(4, name="A")),
        rename(4, "C"),
        lambda tx: tx.delete_worker("w_1"),
        rename(4, "C"),
        lambda tx: tx.add_job(job(1), BUNDLE),
        lambda tx: tx.add_job(job(1, seq=9), BUNDLE),
        lambda tx: tx.add_job(job(9, seq=1), BUNDLE),
        lambda tx: tx.add_attempt(attempt(1)),
        lambda tx: tx.add_attempt(attempt(2)),
        lambda tx: tx.add_attempt(attempt(3, epoch=1)),
        lambda tx: tx.add_attempt(attempt(4, job_id="j_none")),
    ]
    answers = await asyncio.gather(*(rig.store.write(step) for step in steps), return_exceptions=True)
    kinds = [type(answer) for answer in answers]
    fine, taken, clash = type(None), NameTaken, ConcurrentChange
    assert kinds[:9] == [fine, taken, clash, clash, fine, fine, taken, fine, fine]
    assert kinds[9:] == [fine, clash, clash, fine, clash, clash, clash]
    assert await rig.memory_equals_database()
