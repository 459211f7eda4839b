"""Rows of pools and machines that cannot be read: what they stand for is there, and everything else goes on."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool, name_for
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.rounds import MachineCalls, ProviderSnapshots, decide_once
from simpletuner_fleet.storage.ownership import FLEET_ID
from simpletuner_fleet.store.integrity import unreadable_rows
from simpletuner_fleet.store.rows.documents import MACHINES, POOLS
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import NOW
from tests.core.provisioning.provisioning_kit import a_machine, a_pool, a_snapshot, an_offer, listed
from tests.ready_databases import lay_sqlite

CUT_OFF = '{"id":"m_bad","pool":"cloud","name":"stf-'
WRONG_FIELD = '{"id":"m_bad","pool":"cloud","name":"x","state":"sideways","created_at":1.0}'
NOTHING_LEFT = "\x00\x00"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    clock = SteadyClock(wall=lambda: NOW, monotonic=lambda: NOW)
    yield Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), Policy())
    await store.close()


@pytest.fixture(autouse=True)
def nothing_set_aside() -> Iterator[None]:
    yield
    MACHINES.set_aside.clear()
    POOLS.set_aside.clear()


def booting(id: str, pool: str, **fields: Any) -> Machine:
    return a_machine(
        id, MachineState.BOOTING, name=name_for("f1", id), pool=pool, asked_at=NOW - 10.0, **fields
    )


def pool(name: str, **fields: Any) -> MachinePool:
    return a_pool(name, **{"min_machines": 2, "max_machines": 2, **fields})


async def lay(fleet: Fleet, pools: list[MachinePool], machines: list[Machine]) -> None:
    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting(FLEET_ID, "f1")
        for one in pools:
            transaction.tx.put_pool(one)
        for machine in machines:
            transaction.tx.put_machine(machine)

    await fleet.act(step)


def damage(tmp_path: Path, table: str, key: str, id: str, document: str) -> None:
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute(f"UPDATE {table} SET document = ? WHERE {key} = ?", (document, id))
    connection.close()


async def decided(fleet: Fleet, **shown: list[Machine]) -> tuple[MachineCalls, list[str]]:
    """What is to be done after all pools were looked at, and for which pools machines are wanted."""
    snapshots = {
        name: a_snapshot(*map(listed, machines), offers=(an_offer(),)) for name, machines in shown.items()
    }
    calls = await decide_once(fleet, ProviderSnapshots(snapshots=snapshots, troubles={}))
    rows = await fleet.read(lambda view: [view.machine(one) for one in calls.ask])
    return calls, sorted(row.pool for row in rows if row)


@pytest.mark.parametrize("document", [CUT_OFF, WRONG_FIELD])
async def test_a_machine_that_cannot_be_read_is_not_doubled_or_ended_and_other_pools_go_on(
    fleet: Fleet, tmp_path: Path, document: str
) -> None:
    bad = booting("m_bad", "cloud")
    await lay(fleet, [pool("cloud"), pool("other")], [bad])
    damage(tmp_path, "machines", "id", "m_bad", document)
    assert [(one.table, one.id) for one in unreadable_rows(tmp_path / "fleet.db")] == [("machines", "m_bad")]
    calls, wanted = await decided(fleet, cloud=[bad], other=[])
    assert wanted == ["other", "other"]
    assert calls.destroy == ()
    set_aside = await fleet.read(lambda view: view.rows_set_aside())
    assert ("machines", "m_bad") in [(one.table, one.id) for one in set_aside]
    with pytest.raises(UnreadableRow):
        await fleet.read(lambda view: view.machine("m_bad"))


async def test_where_its_pool_is_not_known_either_no_pool_grows_and_all_are_tended(
    fleet: Fleet, tmp_path: Path
) -> None:
    dear = booting("m_dear", "other", hourly_micros=5_000_000)
    pools = [pool("cloud"), pool("other", max_price_micros=4_000_000)]
    await lay(fleet, pools, [booting("m_bad", "cloud"), dear])
    damage(tmp_path, "machines", "id", "m_bad", NOTHING_LEFT)
    calls, wanted = await decided(fleet, cloud=[], other=[dear])
    assert wanted == []
    assert [machine.id for machine in calls.destroy] == ["m_dear"]


@pytest.mark.parametrize(("limits", "grows"), [({}, True), ({"max_monthly_micros": 10**12}, False)])
async def test_a_bill_that_cannot_be_read_holds_a_pool_whose_bills_are_limited(
    fleet: Fleet, tmp_path: Path, limits: dict[str, int], *, grows: bool
) -> None:
    gone = a_machine("m_bad", MachineState.GONE, asked_at=NOW - 60.0, gone_at=NOW - 30.0)
    await lay(fleet, [pool("cloud", **limits)], [gone])
    damage(tmp_path, "machines", "id", "m_bad", CUT_OFF)
    _, wanted = await decided(fleet, cloud=[])
    assert bool(wanted) is grows


async def test_a_deleted_pool_stays_while_a_machine_of_it_cannot_be_read(
    fleet: Fleet, tmp_path: Path
) -> None:
    await lay(fleet, [pool("cloud", deleted_at=NOW - 1.0)], [booting("m_bad", "cloud")])
    damage(tmp_path, "machines", "id", "m_bad", CUT_OFF)
    await decided(fleet, cloud=[])
    assert [one.name for one in await fleet.read(lambda view: view.pools())] == ["cloud"]


async def test_a_pool_that_cannot_be_read_stops_no_other_and_its_machines_are_no_strays(
    fleet: Fleet, tmp_path: Path
) -> None:
    of_it = booting("m_1", "cloud")
    await lay(fleet, [pool("cloud"), pool("other")], [of_it])
    damage(tmp_path, "pools", "name", "cloud", "{")
    assert [(one.table, one.id) for one in unreadable_rows(tmp_path / "fleet.db")] == [("pools", "cloud")]
    calls, wanted = await decided(fleet, other=[of_it])
    assert (wanted, calls.destroy) == (["other", "other"], ())
    set_aside = await fleet.read(lambda view: view.rows_set_aside())
    assert ("pools", "cloud") in [(one.table, one.id) for one in set_aside]
