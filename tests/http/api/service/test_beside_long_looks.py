"""While people's long looks take every thread that reads, probes, metrics and the health check go on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.visibility import ScopedFleet
from simpletuner_fleet.http.api.service import health
from simpletuner_fleet.orchestrator.runtime import Runtime
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import Store, View
from simpletuner_fleet.queries import overview
from simpletuner_fleet.queries.dataset_use import use_of
from simpletuner_fleet.store import open_store
from simpletuner_fleet.store.writing.scanners import SCANNERS
from tests.http.api_kit import Running, orchestrator
from tests.ready_databases import lay_sqlite

SOON_S = 10.0
QUOTA = {"kind": "stored_bytes", "scope": "all", "ceiling": 10, "action": "warn"}


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{lay_sqlite(tmp_path / 'fleet.db')}"
    else:
        url = request.getfixturevalue("ready_database")
    opened = open_store(url)
    yield opened
    await opened.close()


@asynccontextmanager
async def long_looks(running: Running, *, reading: bool) -> AsyncIterator[None]:
    """As many as there are scanners, each of another person, more that wait behind them, and one in the readers' thread."""
    may_end = threading.Event()
    begun = threading.Semaphore(0)

    def held(view: View) -> None:
        begun.release()
        assert may_end.wait(6 * SOON_S)

    people = [
        ScopedFleet(running.fleet, lambda who=who: VisibilityScope(ids=frozenset({f"u_{who}"})))  # type: ignore[misc]
        for who in range(2 * SCANNERS)
    ]
    looks = [asyncio.ensure_future(one.scan(held)) for one in people]
    looks += [asyncio.ensure_future(running.fleet.read(held))] if reading else []
    try:
        for _ in range(SCANNERS + reading):
            assert await asyncio.to_thread(begun.acquire, timeout=SOON_S)
        yield
    finally:
        may_end.set()
        await asyncio.gather(*looks)


@asynccontextmanager
async def long_read(running: Running) -> AsyncIterator[None]:
    """One look alone in the thread of all short reads."""
    begun, may_end = threading.Event(), threading.Event()

    def held(view: View) -> None:
        begun.set()
        assert may_end.wait(6 * SOON_S)

    look = asyncio.ensure_future(running.fleet.read(held))
    try:
        assert await asyncio.to_thread(begun.wait, SOON_S)
        yield
    finally:
        may_end.set()
        await look


async def test_what_goes_through_many_rows_takes_no_turn_among_the_short_reads(store: Store) -> None:
    """With a million jobs, a count of those with a word in their names kept every short read waiting for 5 s."""
    async with orchestrator(store=store) as running:
        await running.post("/api/quotas", QUOTA)
        await running.submit()
        ann = ScopedFleet(running.fleet, lambda: VisibilityScope(ids=frozenset({"u_ann"})))
        search = {"search": {"q": "word"}}
        async with long_read(running), asyncio.timeout(SOON_S):
            counted = await running.post("/api/matching/count", {**search, "act": "cancel"})
            assert counted["count"] == 0
            assert (await running.post("/api/matching/cancel", {**search, "expected": 0}))["done"] == 0
            assert [one["used"] for one in (await running.get("/api/quotas/me"))["quotas"]] == [0]
            seen = await overview.look(ann, "u_ann")
            assert seen.line is not None
            assert (await use_of(running.fleet, "ds_1", jobs=True)).job_count == 0


async def test_a_probe_waits_for_no_look(store: Store) -> None:
    async with orchestrator(store=store) as running, long_looks(running, reading=True):
        for path in ("/health/live", "/health/ready"):
            assert (await running.http.get(path, timeout=SOON_S)).status_code == 200


async def test_a_probe_says_so_where_a_read_hangs_and_is_well_again_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orchestrator(store=store) as running:
        async with long_read(running):
            assert (await running.http.get("/health/ready", timeout=SOON_S)).status_code == 200
            monkeypatch.setattr(health, "HANGS_AFTER_S", 0.0)
            running.clock.at += health.PROBED_AT_MOST_EVERY_S
            answer = await running.http.get("/health/ready", timeout=SOON_S)
            assert answer.status_code == 503
            assert "A read of the database has not ended for" in answer.json()["detail"]
            assert (await running.http.get("/health/live", timeout=SOON_S)).status_code == 200
        monkeypatch.setattr(health, "HANGS_AFTER_S", SOON_S)
        running.clock.at += health.PROBED_AT_MOST_EVERY_S
        assert (await running.http.get("/health/ready", timeout=SOON_S)).status_code == 200


async def test_a_reader_that_hangs_is_known_though_nobody_asks_it_anything(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orchestrator(store=store) as running:
        assert (await running.http.get("/health/ready")).status_code == 200
        assert running.deps.reading is not None
        async with asyncio.timeout(SOON_S):
            await running.deps.reading


async def test_metrics_tell_what_they_can_while_long_looks_go_on_and_the_rest_after_them(
    store: Store,
) -> None:
    async with orchestrator(store=store) as running:
        await running.submit()
        async with long_looks(running, reading=True):
            page = await running.http.get("/metrics", timeout=SOON_S)
            assert page.status_code == 200
            assert "simpletuner_worker_streams 0.0" in page.text
            assert "simpletuner_stored_bytes{" not in page.text, (
                "a figure that nobody has counted is not told"
            )
            assert "simpletuner_figures_age_seconds +Inf" in page.text
        page = await running.http.get("/metrics", timeout=SOON_S)
        assert 'simpletuner_stored_bytes{kind="jobs"} 0.0' in page.text
        assert 'simpletuner_jobs{state="queued"} 1.0' in page.text
        async with long_looks(running, reading=True):
            page = await running.http.get("/metrics", timeout=SOON_S)
            assert 'simpletuner_stored_bytes{kind="jobs"} 0.0' in page.text
            assert 'simpletuner_jobs{state="queued"} 1.0' in page.text


async def test_a_health_check_waits_for_no_report_though_a_quota_counts_what_is_stored(store: Store) -> None:
    async with orchestrator(store=store) as running:
        await running.post("/api/quotas", QUOTA)
        async with long_looks(running, reading=False), asyncio.timeout(SOON_S):
            await sweep_once(running.fleet)


async def test_a_silent_worker_is_noticed_while_reports_go_on(store: Store) -> None:
    policy = Policy(heartbeat_timeout_s=1.0, mass_loss_wait_s=0.0)
    async with orchestrator(store=store, policy=policy) as running:
        await running.post("/api/quotas", QUOTA)
        agent = await running.worker()
        async with long_looks(running, reading=False):
            runtime = Runtime(running.fleet)
            await runtime.start()
            try:
                async with asyncio.timeout(SOON_S):
                    while (await running.get(f"/api/admin/workers/{agent.id}"))["status"] != "offline":
                        running.clock.at += 0.1
                        await asyncio.sleep(0.05)
            finally:
                await runtime.stop()
