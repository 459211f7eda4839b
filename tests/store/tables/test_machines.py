"""Pools and machines: read as they were put, by every way in which they are looked for."""

from msgspec.structs import replace

from simpletuner_fleet.core.provisioning.machine import MachineState
from simpletuner_fleet.core.provisioning.pool import NoMachine
from simpletuner_fleet.ports import Store, Tx
from tests.core.provisioning.provisioning_kit import a_machine, a_pool


async def test_pools_are_kept_by_name_and_can_go(store: Store) -> None:
    pool = replace(
        a_pool("größe", labels={"team": "größe"}, max_price_micros=1_500_000),
        no_machine={"line": NoMachine(code="MACHINE_CEILING", params={"hourly_micros": 2_500_000})},
        trouble='it said "no"',
    )
    await store.write(lambda tx: tx.put_pool(pool))
    await store.write(lambda tx: tx.put_pool(a_pool("another")))
    assert await store.read(lambda view: view.pool("größe")) == pool
    assert [one.name for one in await store.read(lambda view: view.pools())] == ["another", "größe"]
    await store.write(lambda tx: tx.delete_pool("another"))
    assert await store.read(lambda view: view.pools()) == [pool]
    assert await store.read(lambda view: view.pool("another")) is None


async def test_machines_are_read_by_id_by_their_token_and_by_when_they_went(store: Store) -> None:
    rows = [
        a_machine("m_1", MachineState.ASKED, join_hash="h1", detail="größer\x00"),
        a_machine("m_2", MachineState.GONE, gone_at=10.0),
        a_machine("m_3", MachineState.GONE, gone_at=20.0),
        a_machine("m_4", stop_by=5.0, rates=((1.0, 2), (3.0, 4))),
    ]

    def put_all(tx: object) -> None:
        for row in rows:
            tx.put_machine(row)  # type: ignore[attr-defined]

    await store.write(put_all)
    assert await store.read(lambda view: view.machine("m_4")) == rows[3]
    assert await store.read(lambda view: view.machine("m_9")) is None
    by_hash = await store.read(lambda view: view.machine_by_join_hash("h1"))
    assert by_hash is not None
    assert by_hash.id == "m_1"
    assert await store.read(lambda view: view.machine_by_join_hash("")) is None
    ids = [one.id for one in await store.read(lambda view: view.machines_since(10.0))]
    assert ids == ["m_1", "m_3", "m_4"]
    live = [one.id for one in await store.read(lambda view: view.machines_since(float("inf")))]
    assert live == ["m_1", "m_4"]
    joined = replace(by_hash, state=MachineState.GONE, gone_at=30.0, join_hash="")
    await store.write(lambda tx: tx.put_machine(joined))
    assert await store.read(lambda view: view.machine_by_join_hash("h1")) is None
    assert [one.id for one in await store.read(lambda view: view.machines_since(25.0))] == ["m_1", "m_4"]


async def test_of_machines_that_went_long_ago_those_that_were_ever_made_are_read_apart(store: Store) -> None:
    unmade = '"rates":[]'
    rows = [
        a_machine("m_1", MachineState.ASKED, rates=()),
        a_machine("m_2", MachineState.GONE, gone_at=10.0, rates=(), why="refused"),
        a_machine("m_3", MachineState.GONE, gone_at=10.0, detail=unmade, name=unmade),
        a_machine("m_4", MachineState.GONE, gone_at=20.0, rates=(), why="refused"),
        a_machine("m_5", MachineState.GONE, gone_at=20.0),
        a_machine("m_6", MachineState.GONE, gone_at=5.0),
    ]

    def put_all(tx: Tx) -> None:
        for row in rows:
            tx.put_machine(row)

    await store.write(put_all)
    counted = await store.read(lambda view: view.machines_that_count(gone_after=15.0, made_after=5.0))
    assert [one.id for one in counted] == ["m_1", "m_3", "m_4", "m_5"]
    assert counted == [rows[0], *rows[2:5]]
    counted = await store.read(lambda view: view.machines_that_count(gone_after=25.0, made_after=25.0))
    assert [one.id for one in counted] == ["m_1"]
