"""Long looks of one caller come one after another, so that nobody keeps everybody else's from their turn."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.engine.visibility import ScopedFleet, scope_of
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.ports import View
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import Running, orchestrator
from tests.ready_databases import lay_sqlite

SOON_S = 20.0


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    try:
        async with orchestrator(store=store) as running:
            yield running
    finally:
        await store.close()


async def test_a_callers_second_scan_waits_for_the_first_and_anothers_does_not(running: Running) -> None:
    ann, bob = (
        ScopedFleet(running.fleet, lambda who=who: VisibilityScope(ids=frozenset({who})))  # type: ignore[misc]
        for who in ("u_ann", "u_bob")
    )
    begun, may_end, ran = threading.Event(), threading.Event(), []

    def held(view: View) -> str:
        begun.set()
        assert may_end.wait(SOON_S)
        ran.append("first")
        return min(scope_of(view).ids)

    first = asyncio.ensure_future(ann.scan(held))
    assert await asyncio.to_thread(begun.wait, SOON_S)
    second = asyncio.ensure_future(ann.scan(lambda view: ran.append("second")))
    async with asyncio.timeout(SOON_S):
        assert await bob.scan(lambda view: min(scope_of(view).ids)) == "u_bob"
        assert await ann.read(lambda view: min(scope_of(view).ids)) == "u_ann", "a short read waits for none"
    assert ran == []
    may_end.set()
    assert await first == "u_ann"
    await second
    assert ran == ["first", "second"]


async def test_whoever_sees_everything_keeps_no_other_from_their_turn_either(tmp_path: Path) -> None:
    """An administrator's second report took the other thread, and the lists of all others waited behind it."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    def held(view: View) -> None:
        begun.release()
        assert may_end.wait(3 * SOON_S)

    async def report(call: Call[None]) -> None:
        await deps_of(call).fleet.scan(held)

    store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    route = Route("GET", "/held", report, "jobs.read", summary="A report that takes long")
    async with orchestrator(store=store, pages=[route]) as running:
        bob = ScopedFleet(running.fleet, lambda: VisibilityScope(ids=frozenset({"u_bob"})))
        reports = [asyncio.ensure_future(running.http.get("/held", timeout=4 * SOON_S)) for _ in range(3)]
        try:
            assert await asyncio.to_thread(begun.acquire, timeout=SOON_S)
            assert not await asyncio.to_thread(begun.acquire, timeout=0.5), "one alone at once"
            async with asyncio.timeout(SOON_S):
                await bob.scan(lambda view: None)
        finally:
            may_end.set()
            assert [(await one).status_code for one in reports] == [204] * 3
    await store.close()


async def test_a_person_and_the_tokens_that_act_for_them_are_one_caller(running: Running) -> None:
    with_tokens = [
        ScopedFleet(running.fleet, lambda ids=ids: VisibilityScope(ids=frozenset(ids)))  # type: ignore[misc]
        for ids in (("u_ann", "u_ann"), ("t_1", "u_ann"), ("t_2", "u_ann"))
    ]
    begun, may_end = threading.Semaphore(0), threading.Event()

    def held(view: View) -> None:
        begun.release()
        assert may_end.wait(3 * SOON_S)

    looks = [asyncio.ensure_future(one.scan(held)) for one in with_tokens]
    try:
        assert await asyncio.to_thread(begun.acquire, timeout=SOON_S)
        assert not await asyncio.to_thread(begun.acquire, timeout=0.5)
    finally:
        may_end.set()
        await asyncio.gather(*looks)
