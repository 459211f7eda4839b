"""The hold after a restore ends in time, whatever the clock says to the server that is started within it."""

import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.restoring import HELD_UNTIL
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex, held_until
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.orchestrator.after_restore import hold_after_restore, place_after_hold
from simpletuner_fleet.store import MemoryStore

BEFORE = 1_800_000_000.0
HOLD_S = 40.0
POLICY = Policy(heartbeat_timeout_s=HOLD_S / 2)


def started(store: MemoryStore, wall: float) -> Fleet:
    clock = SteadyClock(wall=lambda: wall, monotonic=lambda: 0.0)
    return Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)


@pytest.mark.parametrize("set_by_s", [-7200.0, 0.0, 7200.0])
async def test_a_server_started_within_the_hold_holds_as_long_by_its_own_clock(set_by_s: float) -> None:
    store = MemoryStore()
    await store.write(lambda tx: tx.put_setting(HELD_UNTIL, repr(BEFORE + HOLD_S)))
    now = BEFORE + set_by_s
    fleet = started(store, now)
    assert await hold_after_restore(fleet) == now + HOLD_S
    assert await store.read(held_until) == now + HOLD_S, "what people are told is by the same clock"


async def test_the_hold_ends_though_the_database_fails_for_a_while() -> None:
    store = MemoryStore()
    await store.write(lambda tx: tx.put_setting(HELD_UNTIL, repr(BEFORE)))
    fleet = started(store, BEFORE)
    store.fail_next_commits(1)
    await place_after_hold(fleet, BEFORE)
    assert await store.read(held_until) is None
    assert await hold_after_restore(started(store, BEFORE)) is None
