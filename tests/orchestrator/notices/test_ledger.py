"""Notes of deliveries are written together, and none fails because of another."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable, UnreadableRow
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.notices.ledger import Ledger, Step
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.ready_databases import lay_sqlite


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    yield Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    await store.close()


def noting(number: int) -> Step:
    def step(transaction: Transaction) -> int:
        transaction.tx.put_setting(f"note:{number}", "written")
        return number

    return step


def failing(error: Exception) -> Step:
    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting("note:bad", "written")
        raise error

    return step


@pytest.mark.parametrize(
    "error", [UnreadableRow("The endpoint n_bad cannot be read."), ValueError("a defect")]
)
async def test_a_note_that_fails_keeps_no_other_from_being_written(fleet: Fleet, error: Exception) -> None:
    ledger = Ledger(fleet)
    steps = [noting(1), failing(error), noting(2), failing(error), noting(3)]
    answers = await asyncio.gather(*map(ledger.write, steps), return_exceptions=True)
    assert answers == [1, error, 2, error, 3]
    stored = await fleet.read(lambda view: view.settings_with_prefix("note:"))
    assert sorted(stored) == ["note:1", "note:2", "note:3"]
    await ledger.stop()


async def test_where_the_store_is_away_everybody_is_told(fleet: Fleet) -> None:
    await fleet.store.close()
    ledger = Ledger(fleet)
    answers = await asyncio.gather(
        *(ledger.write(noting(number)) for number in range(3)), return_exceptions=True
    )
    assert [type(one) for one in answers] == [StoreUnavailable] * 3
    await ledger.stop()


async def test_where_the_store_is_lost_while_a_note_looks_something_up_it_is_asked_once(fleet: Fleet) -> None:
    asked = 0

    def losing(transaction: Transaction) -> None:
        nonlocal asked
        asked += 1
        raise StoreUnavailable("The connection is lost.")

    ledger = Ledger(fleet)
    answers = await asyncio.gather(*(ledger.write(losing) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in answers] == [StoreUnavailable] * 5
    assert asked == 1
    await ledger.stop()
