"""Several runs side by side, over the memory store."""

import asyncio

import msgspec

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.bundle_diff import MOST_LISTED
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries.comparison import compared
from simpletuner_fleet.store import MemoryStore
from tests.store.samples import job

VALUES = 50_000


class StoppedClock:
    def now(self) -> float:
        return 1_000.0


def add_jobs(tx: Tx) -> None:
    for number in (1, 2):
        tx.add_job(job(number), msgspec.json.encode(Bundle(settings={"x": [number] * VALUES})))


async def test_runs_with_large_configs_are_compared_while_the_server_goes_on() -> None:
    store = MemoryStore()
    await store.write(add_jobs)
    fleet = Fleet(store, FleetIndex(), StoppedClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    comparing = asyncio.create_task(compared(fleet, ["j_1", "j_2"]))
    turns = 0
    while not comparing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    differences = (await comparing).differences
    assert (len(differences.fields), differences.left_out) == (MOST_LISTED, VALUES - MOST_LISTED)


async def test_no_runs_differ_in_nothing() -> None:
    fleet = Fleet(MemoryStore(), FleetIndex(), StoppedClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    assert (await compared(fleet, [])).differences.fields == []
