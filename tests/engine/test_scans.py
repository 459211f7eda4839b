"""Long looks of one caller come one after another, so that nobody keeps everybody else's from their turn."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.engine.visibility import ScopedFleet, scope_of
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
