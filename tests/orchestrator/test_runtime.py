"""The loops: they go on whatever happens, and end when told."""

import asyncio
import logging

import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub, Wakeups
from simpletuner_fleet.orchestrator.runtime import BackgroundTasks, Runtime
from simpletuner_fleet.store import MemoryStore

QUICK = Policy(heartbeat_interval_s=0.01, heartbeat_timeout_s=0.08, offer_timeout_s=0.05)


def a_fleet(store: MemoryStore) -> Fleet:
    return Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), QUICK)


async def test_the_health_check_goes_on_after_the_store_failed(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    fleet = a_fleet(store)
    runtime = Runtime(fleet)
    await runtime.start()
    fleet.presence.heard("w_nobody", fleet.clock.now())
    store.fail_next_commits(3)
    rounds = fleet.presence.listening_now
    for _ in range(1000):
        if fleet.presence.listening_now > rounds and not fleet.presence.expected("w_nobody"):
            break
        await asyncio.sleep(0.01)
    assert fleet.presence.listening_now > rounds
    assert not fleet.presence.expected("w_nobody")
    await runtime.stop()
    stopped_at = fleet.presence.listening_now
    await asyncio.sleep(0.05)
    assert fleet.presence.listening_now == stopped_at


async def test_a_failed_errand_is_told_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    background_tasks = BackgroundTasks()
    done: list[int] = []

    async def fail() -> None:
        raise OSError("no luck")

    async def succeed() -> None:
        await asyncio.sleep(0)
        done.append(1)

    with caplog.at_level(logging.ERROR):
        background_tasks.start(fail())
        background_tasks.start(succeed())
        await background_tasks.finish(1.0)
    assert done == [1]
    assert "a background task failed" in caplog.text


async def test_errands_that_do_not_end_are_given_up_at_the_stop() -> None:
    background_tasks = BackgroundTasks()
    background_tasks.start(_wait_for_ever())
    await background_tasks.finish(0.01)
    await asyncio.sleep(0)


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_bell_rings_for_those_who_wait_and_keeps_nothing() -> None:
    wakeups = Wakeups()
    wakeups.wake("nobody")
    waiting = asyncio.create_task(wakeups.wait("log", 5))
    await asyncio.sleep(0)
    wakeups.wake("log")
    await asyncio.wait_for(waiting, 1)
    await wakeups.wait("log", 0.001)
    assert wakeups._waiting == {}


def test_a_superseded_stream_leaves_its_successor_alone() -> None:
    hub = StreamHub()
    looked: list[str] = []
    first = hub.open("w", "i", lambda: looked.append("first"))
    second = hub.open("w", "i", lambda: looked.append("second"))
    assert first.closing == "reconnected"
    assert looked == ["first"]
    assert not hub.closed(first)
    assert hub.streaming("w")
    hub.wake("w")
    assert looked == ["first", "second"]
    third = hub.open("w", "another", lambda: None)
    assert second.closing == "superseded"
    assert hub.closed(third)
    assert not hub.streaming("w")
