"""What was used is looked up once: whatever changes since, the same is known as after a new start."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.people.quotas import Quota, QuotaKind, QuotaScope
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Team
from simpletuner_fleet.core.placement.shares import FairShare, Shares
from simpletuner_fleet.core.placement.usage import UseLedger
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.setting_documents import FAIR_SHARE_SETTING, QUOTA_PREFIX
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import MemoryStore, SqliteStore
from tests.core.builders import NOW
from tests.engine.test_dispatch import Bench
from tests.ready_databases import lay_sqlite

KINDS = (QuotaKind.GPU_HOURS_DAY, QuotaKind.GPU_HOURS_MONTH, QuotaKind.JOBS_PER_HOUR)
RED = Team(id="t_red", name="red", created_at=NOW)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = MemoryStore() if request.param == "memory" else SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    yield opened
    await opened.close()


def complete(transaction: Transaction, name: str) -> None:
    job = transaction.job(name)
    attempt = transaction.attempt(job.attempt_id or "")
    transaction.apply(lifecycle.completed(job, attempt, End(), now=transaction.now))


async def run(bench: Bench, name: str, owner: str, for_s: float) -> None:
    await bench.submit_as(name, Requirements(owner=owner, team="t_red", gpus=1))
    await bench.accept(name)
    bench.now += for_s
    await bench.act(lambda transaction: complete(transaction, name))


def known_to(index: FleetIndex, now: float) -> list[object]:
    book, shares = index.roster.book, index.roster.lines.shares
    assert book is not None
    assert isinstance(shares, Shares)
    used = [
        (quota.id, account, round(book.standing(quota, account, now).used, 6))
        for quota in book.quotas
        for account in ("person:ann", "person:bob", "team:t_red", "all")
    ]
    return [used, round(shares.used_part("t_red"), 6), dict(shares.weights)]


async def test_what_was_used_is_known_as_after_a_new_start_whatever_was_changed_or_undone_since(
    store: Store,
) -> None:
    bench = Bench(store)
    for name in ("w_1", "w_2"):
        await bench.join(name)
    await run(bench, "j_before", "ann", 600.0)
    for kind in KINDS:
        await bench.organise(
            QUOTA_PREFIX + kind, Quota(id=kind, kind=kind, scope=QuotaScope.EACH, ceiling=1e6)
        )
    await bench.organise(FAIR_SHARE_SETTING, FairShare(enabled=True))
    await bench.organise(TEAM_PREFIX + RED.id, RED)
    await run(bench, "j_between", "bob", 4_000.0)
    await bench.submit("j_runs", "ann")
    await bench.accept("j_runs")
    bench.now += 60.0

    def end_change_and_fail(transaction: Transaction) -> None:
        complete(transaction, "j_runs")
        transaction.organisation_changed()
        transaction.worker("w_unknown")

    with pytest.raises(NotFound):
        await bench.act(end_change_and_fail)
    heavier = Team(id=RED.id, name=RED.name, created_at=NOW, weight=3.0)
    await bench.organise(TEAM_PREFIX + RED.id, heavier)
    await run(bench, "j_after", "bob", 300.0)
    await bench.act(lambda transaction: None)
    known = known_to(bench.index, bench.now)
    successor = Bench(store)
    successor.now = bench.now
    await successor.act(lambda transaction: None)
    assert known == known_to(successor.index, bench.now)


async def test_a_change_of_the_organisation_does_not_look_up_again_what_was_used(tmp_path: Path) -> None:
    store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    bench = Bench(store)
    await bench.organise(FAIR_SHARE_SETTING, FairShare(enabled=True))
    for kind in KINDS:
        await bench.organise(
            QUOTA_PREFIX + kind, Quota(id=kind, kind=kind, scope=QuotaScope.EACH, ceiling=1e6)
        )
    statements: list[str] = []
    store._writing._connection.set_trace_callback(statements.append)
    await bench.organise(TEAM_PREFIX + RED.id, RED)
    await store.close()
    assert any("settings" in one for one in statements)
    assert not [one for one in statements if "attempts" in one or "FROM jobs" in one]


async def three_runs(file: Path, kind: QuotaKind = QuotaKind.JOBS_PER_HOUR) -> float:
    """Leaves a database with a quota of this kind and three jobs of its last hour; returns when they are over."""
    store = SqliteStore(file)
    bench = Bench(store)
    await bench.organise(QUOTA_PREFIX + kind, Quota(id=kind, kind=kind, scope=QuotaScope.EACH, ceiling=1e6))
    await bench.join("w_1")
    for name in ("j_1", "j_2", "j_3"):
        await run(bench, name, "ann", 60.0)
    await store.close()
    return bench.now


async def successor_on(store: SqliteStore, now: float) -> UseLedger:
    successor = Bench(store)
    successor.now = now
    await successor.act(lambda transaction: None)
    await store.close()
    return successor.index.usage


async def starts_known_to_successor(store: SqliteStore, now: float) -> int:
    return len((await successor_on(store, now)).started_since("person:ann", NOW - 1))


def damage(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()


async def test_however_many_jobs_started_in_the_last_hour_they_are_looked_up_together(tmp_path: Path) -> None:
    file = lay_sqlite(tmp_path / "fleet.db")
    now = await three_runs(file)
    store = SqliteStore(file)
    statements: list[str] = []
    store._writing._connection.set_trace_callback(statements.append)
    assert await starts_known_to_successor(store, now) == 3
    assert len([one for one in statements if "'j_1'" in one or "'j_2'" in one]) == 1


async def test_a_job_that_cannot_be_read_keeps_no_successor_from_counting_the_starts_of_the_others(
    tmp_path: Path,
) -> None:
    file = lay_sqlite(tmp_path / "fleet.db")
    now = await three_runs(file)
    damage(file, "UPDATE jobs SET tags = '[[' WHERE id = 'j_1'")
    assert await starts_known_to_successor(SqliteStore(file), now) == 2


async def test_an_attempt_that_cannot_be_read_keeps_no_successor_from_counting_the_hours_of_the_others(
    tmp_path: Path,
) -> None:
    file = lay_sqlite(tmp_path / "fleet.db")
    now = await three_runs(file, QuotaKind.GPU_HOURS_MONTH)
    damage(file, "UPDATE attempts SET rates = '[[' WHERE job_id = 'j_1'")
    usage = await successor_on(SqliteStore(file), now)
    assert usage.gpu_hours(usage.month, "person:ann", now) == pytest.approx(120.0 / 3600.0)
