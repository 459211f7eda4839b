"""What an end means for the jobs that waited for it."""

import sqlite3
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import a_job

CHAIN = 1_500


async def test_an_end_reaches_the_last_of_a_chain_that_is_longer_than_any_stack(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    fleet = Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())

    def submit_chain(transaction: Transaction) -> None:
        transaction.add_job(a_job("j_1", seq=1), b"{}")
        for seq in range(2, CHAIN + 1):
            waiting = a_job(f"j_{seq}", seq=seq, state=JobState.BLOCKED, depends_on=(f"j_{seq - 1}",))
            transaction.add_job(waiting, b"{}")

    def cancel_first(transaction: Transaction) -> None:
        cancelled = replace(
            transaction.job("j_1"), state=JobState.CANCELLED, finished_at=transaction.now, reason="cancelled"
        )
        transaction.apply(Decision(job=cancelled))

    await fleet.act(submit_chain)
    await fleet.act(cancel_first)
    last = await fleet.read(lambda view: view.job(f"j_{CHAIN}"))
    assert last is not None
    assert last.terminal
    assert f"j_{CHAIN - 1}" in (last.error or "")
    assert await fleet.read(lambda view: view.job_counts()) == {"cancelled": 1, "failed": CHAIN - 1}
    await store.close()


async def test_an_end_is_taken_though_another_job_that_its_dependent_needs_cannot_be_read(
    tmp_path: Path,
) -> None:
    """A worker would repeat its report of the end for ever."""
    file = tmp_path / "fleet.db"
    store = SqliteStore(file)
    fleet = Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())

    def submit(transaction: Transaction) -> None:
        transaction.add_job(a_job("j_ended", seq=1, state=JobState.COMPLETED), b"{}")
        transaction.add_job(a_job("j_runs", seq=2, state=JobState.RUNNING), b"{}")
        waiting = a_job("j_waits", seq=3, state=JobState.BLOCKED, depends_on=("j_ended", "j_runs"))
        transaction.add_job(waiting, b"{}")

    def complete(transaction: Transaction) -> None:
        completed = replace(transaction.job("j_runs"), state=JobState.COMPLETED, finished_at=transaction.now)
        transaction.apply(Decision(job=completed))

    await fleet.act(submit)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE jobs SET tags = '[[' WHERE id = 'j_ended'")
    connection.close()
    await fleet.act(complete)
    assert await fleet.read(lambda view: view.job_counts()) == {"blocked": 1, "completed": 2}
    await store.close()
