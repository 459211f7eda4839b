"""Versions of saved configs, over the memory store."""

import asyncio

import pytest

from simpletuner_fleet.core.configs.bundle_diff import MOST_LISTED
from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.visibility import ScopedFleet
from simpletuner_fleet.orchestrator.configs import Sharing, diff_configs, save_config
from simpletuner_fleet.ports import ConfigVersion
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.store import MemoryStore
from simpletuner_fleet.store.memory.view import MemoryView

VALUES = 50_000


class StoppedClock:
    def now(self) -> float:
        return 1_000.0


def fleet_with(store: MemoryStore) -> Fleet:
    return Fleet(store, FleetIndex(), StoppedClock(), RandomIds(b"s" * 32), StreamHub(), Policy())


async def test_large_versions_are_compared_while_the_server_goes_on() -> None:
    fleet = fleet_with(MemoryStore())
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


async def test_no_save_and_no_comparison_reads_all_versions_that_ever_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may have megabytes, and there may be thousands: the store would read them all for the next one."""

    def all_of_them(view: MemoryView, name: str) -> list[ConfigVersion]:
        raise AssertionError(f"all versions of {name} are read")

    monkeypatch.setattr(MemoryView, "config_versions", all_of_them)
    fleet, writer = fleet_with(MemoryStore()), Writer(actor=ADMIN, owns_as="", above=True)
    for value in range(3):
        saved, changed = await save_config(fleet, "c", {"x": value}, writer)
        assert (saved.version, changed) == (value + 1, True)
    assert (await diff_configs(fleet, "c", None, None))[:2] == (2, 3)
    assert (await diff_configs(fleet, "c", None, 2))[:2] == (1, 2)
    assert (await diff_configs(fleet, "c", None, 1))[:2] == (1, 1)
    assert (await diff_configs(fleet, "c", 1, None))[:2] == (1, 3)
    for was, now in ((7, None), (None, 7)):
        with pytest.raises(NotFound, match="no version 7"):
            await diff_configs(fleet, "c", was, now)
    with pytest.raises(NotFound, match="no config 'other'"):
        await diff_configs(fleet, "other", None, None)


async def test_a_comparison_passes_over_versions_that_the_caller_may_not_see() -> None:
    fleet, writer = fleet_with(MemoryStore()), Writer(actor=ADMIN, owns_as="", above=True)
    for value, visibility in enumerate(("everybody", "private", "private", "everybody")):
        sharing = Sharing(visibility=Visibility(visibility))
        await save_config(fleet, "c", {"x": value}, writer, sharing)
    scoped = ScopedFleet(fleet, lambda: VisibilityScope(ids=frozenset({"u_else"})))
    assert (await diff_configs(scoped, "c", None, None))[:2] == (1, 4)
