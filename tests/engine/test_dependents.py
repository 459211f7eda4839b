"""What an end means for the jobs that waited for it, and how many of them one transaction tells."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.people.approvals import Voter, asked_for
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.dependents import tell_dependents_once
from simpletuner_fleet.orchestrator.organising import approvals
from simpletuner_fleet.orchestrator.runtime import Runtime
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.rows.documents import APPROVALS
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import a_job

CHAIN = 1_500
FEW = 4
ADMIN = Actor("t_admin", "admin", "10.9.9.9")


def fleet_over(store: Store, told_at_once: int = FEW) -> Fleet:
    policy = Policy(told_at_once=told_at_once)
    return Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), policy)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "fleet.db")
    yield opened
    await opened.close()


def waiting(seq: int, *needs: str, hold: Hold = Hold.DEPENDENCY) -> Job:
    return a_job(f"j_{seq}", seq=seq, state=JobState.BLOCKED, hold=hold, depends_on=needs)


async def submit(fleet: Fleet, *jobs: Job) -> None:
    def step(transaction: Transaction) -> None:
        for job in jobs:
            transaction.add_job(job, b"{}")

    await fleet.act(step)


async def end(fleet: Fleet, job_id: str, state: JobState = JobState.CANCELLED) -> None:
    def step(transaction: Transaction) -> None:
        job = transaction.job(job_id)
        transaction.apply(Decision(job=replace(job, state=state, finished_at=transaction.now)))

    await fleet.act(step)


async def tell_all(fleet: Fleet) -> int:
    """Returns how many transactions it took."""
    steps = 1
    while await tell_dependents_once(fleet):
        steps += 1
    return steps


async def counts(fleet: Fleet) -> dict[str, int]:
    return await fleet.read(lambda view: view.job_counts())


async def one(fleet: Fleet, job_id: str) -> Job:
    job = await fleet.read(lambda view: view.job(job_id))
    assert job is not None
    return job


RUNNING = a_job("j_1", seq=1, state=JobState.RUNNING)


async def test_an_end_reaches_the_last_of_a_chain_that_is_longer_than_any_stack(store: SqliteStore) -> None:
    fleet = fleet_over(store, told_at_once=2 * CHAIN)
    await submit(fleet, a_job("j_1", seq=1), *(waiting(seq, f"j_{seq - 1}") for seq in range(2, CHAIN + 1)))
    await end(fleet, "j_1")
    last = await one(fleet, f"j_{CHAIN}")
    assert last.terminal
    assert f"j_{CHAIN - 1}" in (last.error or "")
    assert await counts(fleet) == {"cancelled": 1, "failed": CHAIN - 1}


async def test_an_end_is_taken_though_another_job_that_its_dependent_needs_cannot_be_read(
    tmp_path: Path, store: SqliteStore
) -> None:
    """A worker would repeat its report of the end for ever."""
    fleet = fleet_over(store)
    completed = a_job("j_2", seq=2, state=JobState.COMPLETED)
    await submit(fleet, RUNNING, completed, waiting(3, "j_2", "j_1"))
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute("UPDATE jobs SET tags = '[[' WHERE id = 'j_2'")
    connection.close()
    await end(fleet, "j_1", JobState.COMPLETED)
    assert await counts(fleet) == {"blocked": 1, "completed": 2}


def vanishes(tmp_path: Path, job_id: str) -> None:
    """Deletes a job's row as any program but ours would, which knows nothing of who waits for it."""
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        assert connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,)).rowcount == 1
    connection.close()


async def test_an_end_is_taken_though_another_job_that_its_dependent_needs_is_not_there_any_more(
    tmp_path: Path, store: SqliteStore
) -> None:
    """A worker would be told for ever that there is no such job as it has never heard of."""
    fleet = fleet_over(store)
    completed = a_job("j_2", seq=2, state=JobState.COMPLETED)
    await submit(fleet, RUNNING, completed, waiting(3, "j_2", "j_1"), waiting(4, "j_1"))
    vanishes(tmp_path, "j_2")
    await end(fleet, "j_1", JobState.COMPLETED)
    await tell_all(fleet)
    assert await counts(fleet) == {"blocked": 1, "completed": 2, "queued": 1}, "the tally counts who vanished"


async def test_who_waits_for_a_job_that_is_not_there_any_more_keeps_no_other_from_being_told(
    tmp_path: Path, store: SqliteStore
) -> None:
    fleet = fleet_over(store, told_at_once=1)
    gone = a_job("j_2", seq=2, state=JobState.COMPLETED)
    others = [waiting(seq, "j_1") for seq in range(5, 9)]
    await submit(fleet, RUNNING, gone, waiting(3, "j_2"), waiting(4, "j_2", "j_1"), *others)
    vanishes(tmp_path, "j_2")
    await end(fleet, "j_1", JobState.COMPLETED)
    await store.close()
    again = SqliteStore(tmp_path / "fleet.db")
    try:
        fleet = fleet_over(again, told_at_once=1)
        await tell_all(fleet)
        states = [(await one(fleet, f"j_{seq}")).state for seq in range(3, 9)]
        assert states == ["blocked", "blocked", "queued", "queued", "queued", "queued"]
    finally:
        await again.close()


async def test_a_job_can_be_approved_though_another_that_it_needs_is_not_there_any_more(
    tmp_path: Path, store: SqliteStore
) -> None:
    fleet = fleet_over(store)
    gone = a_job("j_2", seq=2, state=JobState.COMPLETED)
    await submit(fleet, gone, waiting(3, "j_2", hold=Hold.APPROVAL))
    vanishes(tmp_path, "j_2")
    voter = Voter(ids=frozenset({"u_ann"}), name="ann", above=True)
    approved = await approvals.approve(fleet, "j_3", voter, ADMIN)
    assert (approved.state, approved.hold) == (JobState.BLOCKED, Hold.DEPENDENCY)


@pytest.mark.parametrize(
    ("state", "after"), [(JobState.COMPLETED, JobState.QUEUED), (JobState.FAILED, JobState.FAILED)]
)
async def test_one_transaction_tells_a_few_and_the_next_ones_the_others(
    store: SqliteStore, state: JobState, after: JobState
) -> None:
    fleet = fleet_over(store)
    await submit(fleet, RUNNING, *(waiting(seq, "j_1") for seq in range(2, 12)))
    await end(fleet, "j_1", state)
    assert (await counts(fleet))["blocked"] == 10 - FEW
    assert [(await one(fleet, f"j_{seq}")).state for seq in (5, 6)] == [after, "blocked"], "by their number"
    assert await tell_all(fleet) >= 2
    assert "blocked" not in await counts(fleet)
    events = await fleet.read(lambda view: view.audit_range(0, 99))
    assert len([one.target_id for one in events]) == len({one.target_id for one in events}) == 10


async def test_a_chain_is_told_link_by_link_and_its_branches_with_it(store: SqliteStore) -> None:
    fleet = fleet_over(store)
    links = [waiting(seq, f"j_{seq - 1}") for seq in range(2, 30)]
    await submit(fleet, RUNNING, *links, *(waiting(seq, "j_2", f"j_{seq - 20}") for seq in range(30, 45)))
    await end(fleet, "j_1", JobState.FAILED)
    assert (await counts(fleet))["failed"] == 1 + FEW
    await tell_all(fleet)
    assert await counts(fleet) == {"failed": 44}


async def test_a_good_end_releases_nobody_who_is_still_to_be_told_of_a_bad_one(store: SqliteStore) -> None:
    fleet = fleet_over(store)
    others = [waiting(seq, "j_1") for seq in range(3, 9)]
    await submit(
        fleet, RUNNING, a_job("j_2", seq=2, state=JobState.RUNNING), *others, waiting(9, "j_2", "j_1")
    )
    await end(fleet, "j_1", JobState.FAILED)
    await end(fleet, "j_2", JobState.COMPLETED)
    last = await one(fleet, "j_9")
    assert (last.state, last.error) == (JobState.FAILED, "it depends on j_1, which ended as failed")
    await tell_all(fleet)
    assert await counts(fleet) == {"completed": 1, "failed": 8}


async def test_an_approval_releases_nobody_who_is_still_to_be_told_of_a_bad_end(store: SqliteStore) -> None:
    fleet = fleet_over(store)
    others = [waiting(seq, "j_1") for seq in range(2, 9)]
    await submit(fleet, RUNNING, *others, waiting(9, "j_1", hold=Hold.APPROVAL))
    await end(fleet, "j_1", JobState.FAILED)
    voter = Voter(ids=frozenset({ADMIN.id}), name=ADMIN.name, above=True)
    approved = await approvals.approve(fleet, "j_9", voter, ADMIN)
    assert (approved.state, approved.hold) == (JobState.BLOCKED, Hold.DEPENDENCY)
    await tell_all(fleet)
    assert await counts(fleet) == {"failed": 9}


async def test_who_is_left_is_told_after_a_restart_and_by_whoever_leads_next(
    tmp_path: Path, store: SqliteStore
) -> None:
    fleet = fleet_over(store)
    await submit(fleet, RUNNING, *(waiting(seq, "j_1") for seq in range(2, 12)))
    await end(fleet, "j_1", JobState.FAILED)
    await store.close()
    next_store = SqliteStore(tmp_path / "fleet.db")
    next_fleet = fleet_over(next_store)
    runtime = Runtime(next_fleet)
    await runtime.start()
    async with asyncio.timeout(20):
        while "blocked" in await counts(next_fleet):
            pass
    await runtime.stop()
    assert await counts(next_fleet) == {"failed": 11}
    await next_store.close()


async def test_who_is_left_is_told_though_nobody_heard_that_the_commit_of_the_end_was_kept(
    store: SqliteStore,
) -> None:
    """The health check looks at the rows that are there after a commit that failed, also where nobody asks again."""
    fleet = fleet_over(store)
    heard: list[bool] = []
    fleet.on_unfinished = lambda: heard.append(True)
    await submit(fleet, RUNNING, *(waiting(seq, "j_1") for seq in range(2, 12)))
    await end(fleet, "j_1", JobState.FAILED)
    assert heard == [True]
    store.observe(fleet._index)  # as a failed commit: all that is known of the rows is forgotten
    assert fleet.needs_a_step()
    await sweep_once(fleet)
    assert heard == [True, True]


async def test_a_commit_that_fails_midway_leaves_those_it_told_to_be_told_again() -> None:
    store = MemoryStore()
    fleet = fleet_over(store)
    await submit(fleet, RUNNING, *(waiting(seq, "j_1") for seq in range(2, 12)))
    await end(fleet, "j_1", JobState.FAILED)
    store.fail_next_commits(1)
    with pytest.raises(StoreUnavailable):
        await tell_dependents_once(fleet)
    assert (await counts(fleet))["failed"] == 1 + FEW
    await tell_all(fleet)
    assert await counts(fleet) == {"failed": 11}


async def test_an_end_that_nobody_can_read_holds_up_nobody_else(tmp_path: Path, store: SqliteStore) -> None:
    fleet = fleet_over(store)
    second = a_job("j_2", seq=2, state=JobState.RUNNING)
    jobs = [waiting(seq, f"j_{seq % 2 + 1}") for seq in range(3, 23)]
    await submit(fleet, RUNNING, second, *jobs)
    await end(fleet, "j_1", JobState.FAILED)
    await end(fleet, "j_2", JobState.FAILED)
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute("UPDATE jobs SET tags = '[[' WHERE id = 'j_1'")
    connection.close()
    store.observe(fleet._index)
    assert await tell_all(fleet) < 9
    assert (await counts(fleet))["blocked"] == 10 - FEW, "nobody can say how j_1 ended"


async def test_jobs_that_need_many_look_ups_are_told_fewer_at_a_time(store: SqliteStore) -> None:
    """Each other job that is over, and so in the database alone, costs as much as a job that is told."""
    fleet = fleet_over(store, told_at_once=10)
    done = [a_job(f"j_{seq}", seq=seq, state=JobState.COMPLETED) for seq in range(2, 42)]
    needing = [waiting(100 + n, "j_1", *(f"j_{2 + 4 * n + one}" for one in range(4))) for n in range(10)]
    await submit(fleet, RUNNING, *done, *needing)
    await end(fleet, "j_1", JobState.COMPLETED)
    assert (await counts(fleet)).get("queued", 0) <= 2
    assert await tell_all(fleet) >= 4
    assert (await counts(fleet))["queued"] == 10


async def test_approvals_that_expire_together_end_some_at_a_time(store: SqliteStore) -> None:
    fleet = fleet_over(store)
    many = 2 * approvals.EXPIRIES_PER_TRANSACTION + 1
    asking = [waiting(seq, hold=Hold.APPROVAL) for seq in range(1, many + 1)]
    await submit(fleet, *asking)

    def ask(transaction: Transaction) -> None:
        for job in asking:
            transaction.tx.put_approval(asked_for(job, [approvals.BY_SETTING], (1.0,), 0.0))

    await fleet.act(ask)
    commits: list[float] = []
    fleet.on_commit = commits.append
    await sweep_once(fleet)
    assert await counts(fleet) == {"cancelled": many}
    assert len(commits) == 3


async def test_an_approval_that_cannot_be_read_holds_up_nobody_who_is_told_of_an_end(
    tmp_path: Path, store: SqliteStore
) -> None:
    fleet = fleet_over(store)
    asking = waiting(2, "j_1", hold=Hold.APPROVAL)
    await submit(fleet, RUNNING, asking, *(waiting(seq, "j_1") for seq in range(3, 13)))

    def ask(transaction: Transaction) -> None:
        transaction.tx.put_approval(asked_for(asking, [approvals.BY_SETTING], (), 0.0))

    await fleet.act(ask)
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute("UPDATE approvals SET document = '[['")
    connection.close()
    await end(fleet, "j_1", JobState.FAILED)
    await tell_all(fleet)
    APPROVALS.set_aside.clear()
    assert await counts(fleet) == {"failed": 12}
