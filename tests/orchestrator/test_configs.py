"""Versions of saved configs, over the memory store."""

import asyncio

from simpletuner_fleet.core.configs.bundle_diff import MOST_LISTED
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.orchestrator.configs import diff_configs, save_config
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.store import MemoryStore

VALUES = 50_000


class StoppedClock:
    def now(self) -> float:
        return 1_000.0


async def test_large_versions_are_compared_while_the_server_goes_on() -> None:
    fleet = Fleet(MemoryStore(), FleetIndex(), StoppedClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    for value in (0, 1):
        await save_config(fleet, "c", {"x": [value] * VALUES}, Writer(actor=ADMIN, owns_as="", above=True))
    comparing = asyncio.create_task(diff_configs(fleet, "c", None, None))
    turns = 0
    while not comparing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    was, now, difference = await comparing
    assert (was, now) == (1, 2)
    assert (len(difference.changes), difference.left_out) == (MOST_LISTED, VALUES - MOST_LISTED)
