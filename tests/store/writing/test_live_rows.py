"""Live rows in memory mirror the database: through ends, refusals, returns, and other programs."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.audit import ChainCheck
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import AttemptState, Hold, JobState, Outcome
from simpletuner_fleet.core.workers.worker import AdminState
from simpletuner_fleet.ports import Tx
from tests.store.outsider import Rig, a_while, sqlite_rig, until
from tests.store.samples import BUNDLE, attempt, event, job, worker

Step = Callable[[Tx], object]
EDIT_JOB = "UPDATE jobs SET error = 'edited' WHERE id = 'j_1'"
EDIT_ATTEMPT = "UPDATE attempts SET error = 'edited' WHERE id = 'a_1'"


class ChangedMyMind(Exception):
    pass


def prepare(tx: Tx) -> None:
    tx.add_worker(worker(1))
    tx.add_worker(worker(2))
    tx.add_job(job(1, state=JobState.DISPATCHED), BUNDLE)
    tx.add_job(job(2, state=JobState.BLOCKED, depends_on=("j_1",)), BUNDLE)
    tx.add_attempt(attempt(1))
    tx.append_audit(1.0, [event()])
    tx.raise_epoch_to(1)


def end_job(tx: Tx) -> None:
    """The attempt before its job, as everywhere."""
    tried, known = tx.attempt("a_1"), tx.job("j_1")
    assert tried is not None
    assert known is not None
    tx.save_attempt(replace(tried, state=AttemptState.ENDED, outcome=Outcome.COMPLETED))
    running = replace(known, state=JobState.RUNNING)
    tx.save_job(running)
    tx.save_job(replace(running, version=running.version + 1, state=JobState.COMPLETED))


def give_back(tx: Tx) -> None:
    tried, known = tx.attempt("a_1"), tx.job("j_1")
    assert tried is not None
    assert known is not None
    tx.save_attempt(replace(tried, state=AttemptState.ENDED, outcome=Outcome.LOST))
    tx.save_job(replace(known, state=JobState.QUEUED))


def readopt(tx: Tx) -> None:
    tried, known = tx.attempt_by_epoch("j_1", 1), tx.job("j_1")
    assert tried is not None
    assert known is not None
    tx.save_attempt(replace(tried, state=AttemptState.RUNNING, outcome=None))
    tx.save_job(replace(known, state=JobState.DISPATCHED))


def change_what_is_live(tx: Tx) -> None:
    end_job(tx)
    tx.add_job(job(3, class_id="c_new", state=JobState.BLOCKED, depends_on=("j_2",)), BUNDLE)
    tx.add_worker(worker(3))
    known = tx.worker("w_1")
    assert known is not None
    tx.save_worker(replace(known, name="renamed", token_hash="other", admin=AdminState.DRAINING))
    tx.touch_heartbeats([("w_1", 5.0)])
    tx.note_message_seq("w_1", 7)
    tx.delete_worker("w_2")
    tx.append_audit(2.0, [event(), event()])
    tx.next_seq()
    tx.next_epoch()


def failing(step: Step) -> Step:
    def then_fail(tx: Tx) -> None:
        step(tx)
        raise ChangedMyMind

    return then_fail


def with_connection(step: Step) -> Step:
    """Makes the step run with the connection to itself, and puts a part of it there before the rest."""

    def direct(tx: Tx) -> None:
        step(tx)
        tx.put_setting("k", "v")

    return direct


def indexes(tx: Tx) -> list[object]:
    """Whatever a step can look up in memory, by every index."""
    return [
        *(tx.dependents_of(f"j_{number}", 0, 99) for number in (1, 2)),
        (tx.next_untold(), *(tx.told_up_to(f"j_{number}") for number in (1, 2, 3))),
        *(tx.live_attempts_of_worker(f"w_{number}") for number in (1, 2)),
        *(tx.worker_by_name(name) for name in ("gpu-1", "GPU-2", "gpu-3", "renamed")),
        *(tx.worker_by_token_hash(f"hash-{number}") for number in (1, 2, 3)),
        tx.worker_by_token_hash("other"),
        tx.attempt_by_epoch("j_1", 1),
        (tx.live_attempts(), tx.workers()),
    ]


@pytest.mark.parametrize("as_it_is", [True, False], ids=["in memory", "with the connection"])
async def test_a_step_that_raises_leaves_memory_observer_and_database_as_they_were(
    rig: Rig, as_it_is: bool
) -> None:
    step = change_what_is_live if as_it_is else with_connection(change_what_is_live)
    await rig.store.write(prepare)
    before = await rig.store.write(indexes), rig.observer.rows(), await rig.live_in_database()
    with pytest.raises(ChangedMyMind):
        await rig.store.write(failing(step))
    assert (await rig.store.write(indexes), rig.observer.rows(), await rig.live_in_database()) == before
    assert await rig.memory_equals_database()
    await rig.store.write(step)
    assert await rig.memory_equals_database()
    assert await rig.store.read(lambda view: view.job_counts()) == {"completed": 1, "blocked": 2}
    check = ChainCheck([])
    check.feed(await rig.store.read(lambda view: view.audit_range(0, 99)))
    assert (check.finish(), check.checked) == ([], 3)
    assert await rig.store.write(lambda tx: (tx.next_seq(), tx.next_epoch())) == (2, 3)


async def test_an_observer_learns_the_owner_of_every_attempt_whichever_way_it_goes(rig: Rig) -> None:
    await rig.store.write(prepare)
    with pytest.raises(ChangedMyMind):
        await rig.store.write(failing(end_job))
    assert rig.observer.owners == {"a_1": "t_anna"}
    await rig.store.write(end_job)
    assert rig.observer.owners == {"a_1": "t_anna"}


async def test_what_is_over_leaves_memory_once_it_is_stored_and_is_still_found(rig: Rig) -> None:
    await rig.store.write(prepare)
    rig.outsider.run(EDIT_JOB)
    known = await rig.store.write(lambda tx: tx.job("j_1"))
    assert known is not None
    assert known.error is None
    await rig.store.write(end_job)
    rig.outsider.run(EDIT_JOB)
    rig.outsider.run(EDIT_ATTEMPT)

    def look(tx: Tx) -> list[str | None]:
        rows = tx.job("j_1"), tx.attempt("a_1"), tx.attempt_by_epoch("j_1", 1)
        return [row.error for row in rows if row is not None]

    assert await rig.store.write(look) == ["edited"] * 3
    assert await rig.memory_equals_database()


async def test_the_bundle_of_a_job_that_is_over_leaves_memory_with_it(rig: Rig) -> None:
    """However many jobs have passed, memory holds those that may still be offered."""
    await rig.store.write(prepare)
    rig.outsider.run("DELETE FROM job_bundles")
    assert await rig.store.write(lambda tx: tx.job_bundle("j_1")) == BUNDLE, "it is remembered"
    await rig.store.write(end_job)
    assert await rig.store.write(lambda tx: tx.job_bundle("j_1")) is None
    assert await rig.store.write(lambda tx: tx.job_bundle("j_2")) == BUNDLE


async def test_what_is_over_stays_in_memory_while_it_is_on_its_way_to_the_disk(tmp_path: Path) -> None:
    states: list[object] = []

    def look(tx: Tx) -> None:
        known, tried = tx.job("j_1"), tx.attempt("a_1")
        assert known is not None
        assert tried is not None
        states.append((known.state, tried.state))

    async with sqlite_rig(tmp_path / "fleet.db") as rig:
        await rig.store.write(prepare)
        with rig.commits_held_up():
            ending = asyncio.create_task(rig.store.write(end_job))
            await a_while()
            looking = asyncio.create_task(rig.store.write(look))
            await until(lambda: states)
        await asyncio.gather(ending, looking)
    assert states == [(JobState.COMPLETED, AttemptState.ENDED)]


async def test_a_row_that_was_looked_at_after_its_end_does_not_stay(rig: Rig) -> None:
    await rig.store.write(prepare)
    await rig.store.write(end_job)

    def save_again(tx: Tx) -> None:
        known, tried = tx.job("j_1"), tx.attempt("a_1")
        assert known is not None
        assert tried is not None
        tx.save_attempt(replace(tried, error="noted"))
        tx.save_job(replace(known, error="noted"))

    with pytest.raises(ChangedMyMind):
        await rig.store.write(failing(save_again))
    assert await rig.store.write(lambda tx: [tx.job("j_1"), tx.attempt("a_1")]) == await rig.store.read(
        lambda view: [view.job("j_1"), view.attempt("a_1")]
    )
    await rig.store.write(save_again)
    assert await rig.store.read(lambda view: [view.job("j_1"), view.attempt("a_1")]) == await rig.store.write(
        lambda tx: [tx.job("j_1"), tx.attempt("a_1")]
    )
    rig.outsider.run(EDIT_JOB)
    known = await rig.store.write(lambda tx: tx.job("j_1"))
    assert known is not None
    assert known.error == "edited"


async def test_an_attempt_thought_lost_comes_back_after_it_has_left_memory(rig: Rig) -> None:
    await rig.store.write(prepare)
    await rig.store.write(give_back)
    assert rig.observer.attempts == {}
    await rig.store.write(readopt)
    assert list(rig.observer.attempts) == ["a_1"]
    assert rig.observer.owners["a_1"] == "t_anna"
    assert await rig.memory_equals_database()
    await rig.restart()
    assert await rig.memory_equals_database()


async def test_an_attempt_gives_way_and_comes_back_in_one_commit(rig: Rig) -> None:
    """The database allows one live attempt at a time, and a commit stores only how things ended."""

    def offer_again(tx: Tx) -> None:
        known = tx.job("j_1")
        assert known is not None
        tx.add_attempt(attempt(2, worker_id="w_2"))
        tx.save_job(replace(known, state=JobState.DISPATCHED))

    def withdraw(tx: Tx) -> None:
        tried, known = tx.attempt("a_2"), tx.job("j_1")
        assert tried is not None
        assert known is not None
        tx.save_attempt(replace(tried, state=AttemptState.ENDED, outcome=Outcome.RELEASED))
        tx.save_job(replace(known, state=JobState.QUEUED))

    await rig.store.write(prepare)
    await asyncio.gather(*(rig.store.write(step) for step in (give_back, offer_again)))
    assert await rig.memory_equals_database()
    await asyncio.gather(*(rig.store.write(step) for step in (withdraw, readopt)))
    assert await rig.memory_equals_database()
    assert list(rig.observer.attempts) == ["a_1"]


@pytest.mark.parametrize("table", ["jobs", "workers"])
async def test_a_row_that_another_program_changed_is_not_overwritten(rig: Rig, table: str) -> None:
    """Fewer changes than ours, as many, or more: each of them is somebody else's."""

    def change(tx: Tx) -> None:
        change_once(tx)
        change_once(tx)

    def change_once(tx: Tx) -> None:
        known, machine = tx.job("j_2"), tx.worker("w_1")
        assert known is not None
        assert machine is not None
        if table == "jobs":
            tx.save_job(replace(known, hold=Hold.NONE, error="ours"))
        else:
            tx.save_worker(replace(machine, drain_note="ours"))

    await rig.store.write(prepare)
    for more in (1, 2, 3):
        rig.outsider.run(f"UPDATE {table} SET version = version + {more}")
        with pytest.raises(StoreUnavailable, match=f"'{table}' were changed by another program"):
            await rig.store.write(change)
        assert await rig.memory_equals_database()
        await rig.store.write(change)
        assert await rig.memory_equals_database()


async def test_a_row_that_another_program_deleted_does_not_come_back(rig: Rig) -> None:
    await rig.store.write(prepare)
    rig.outsider.run("DELETE FROM workers WHERE id = 'w_2'")
    with pytest.raises(StoreUnavailable):
        await rig.store.write(lambda tx: tx.touch_heartbeats([("w_2", 5.0)]))
    assert await rig.store.write(lambda tx: tx.worker("w_2")) is None
    assert await rig.memory_equals_database()
