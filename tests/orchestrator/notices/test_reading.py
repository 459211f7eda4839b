"""What is read of the audit log to tell people of it."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.organisation import NOBODY_ORGANISED
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.notices.reading import read_chunk
from simpletuner_fleet.orchestrator.notices.waits import WaitWatch
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import NOW, a_job
from tests.ready_databases import lay_sqlite

EVENTS = (EventType.JOB_SUBMITTED, EventType.JOB_FAILED)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet whose first job cannot be read."""
    file = lay_sqlite(tmp_path / "fleet.db")

    def open_fleet(store: SqliteStore) -> Fleet:
        clock = SteadyClock(wall=lambda: NOW, monotonic=lambda: NOW)
        policy = Policy(waits_long_s=60.0)
        return Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), policy)

    def step(transaction: Transaction) -> None:
        for seq, name in enumerate(("j_bad", "j_good"), 1):
            transaction.add_job(a_job(name, seq=seq, name=f"job {seq}"), b"{}")
            for kind in EVENTS:
                transaction.record(Event(type=kind, actor=ORCHESTRATOR, target_type="job", target_id=name))

    store = SqliteStore(file)
    first = open_fleet(store)
    await first.act(lambda transaction: transaction.tx.put_setting("notices.waits", "0"))
    await first.act(step)
    await store.close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE jobs SET tags = '[[' WHERE id = 'j_bad'")
    connection.close()
    store = SqliteStore(file)
    yield open_fleet(store)
    await store.close()


async def test_a_job_that_cannot_be_read_is_named_by_its_id_and_the_log_is_read_on(fleet: Fleet) -> None:
    read = await fleet.read(lambda view: read_chunk(view, NOBODY_ORGANISED, 0, ["u_1"]))
    failed = [(one.target_id, one.title) for one in read.notices if one.kind == "job.failed"]
    assert failed == [("j_bad", "j_bad"), ("j_good", "job 2")]


async def test_a_job_that_cannot_be_read_keeps_no_other_from_waiting_long(fleet: Fleet) -> None:
    await WaitWatch(fleet).look(NOW + 120.0)
    counts = await fleet.read(lambda view: view.audit_stats())
    assert counts.get(EventType.JOB_WAITS_LONG) == 1
