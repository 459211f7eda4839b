"""One row that cannot be read of what was used is not counted; all others are, and the server goes on."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.placement.usage import HOUR_S
from simpletuner_fleet.engine.memory.setting_documents import FAIR_SHARE_SETTING
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.queries import last_day
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from simpletuner_fleet.store import SqliteStore
from simpletuner_fleet.store.integrity import unreadable_rows
from simpletuner_fleet.store.rows.jobs import ATTEMPTS, DELETED_JOBS
from tests.http.api_kit import CPU_CONFIG, Agent, Running, TurnedClock, orchestrator
from tests.ready_databases import lay_sqlite

DAMAGE = {
    "when one began": "UPDATE attempts SET accepted_at = 'then' WHERE job_id = :ended",
    "when one ended": "UPDATE attempts SET ended_at = 'then' WHERE job_id = :ended",
    "the GPUs of one": "UPDATE attempts SET gpus = '[[' WHERE job_id = :ended",
    "the prices of one": "UPDATE attempts SET hourly_micros = 'much', rates = '[[' WHERE job_id = :ended",
    "who sees its job": "UPDATE jobs SET visibility = 'nobody' WHERE id = :ended",
    "when one of a deleted job began": "UPDATE spent_attempts SET accepted_at = 'then'",
    "when one of a deleted job ended": "UPDATE spent_attempts SET ended_at = 'then'",
    "the GPUs of one of a deleted job": "UPDATE spent_attempts SET gpus = '[['",
    "the prices of one of a deleted job": "UPDATE spent_attempts SET hourly_micros = 'much', rates = '[['",
    "the files of a deleted job": "UPDATE deleted_jobs SET attempts = '[['",
    "when a deleted job was submitted": "UPDATE deleted_jobs SET created_at = 'then', deleted_at = 'then'",
}
QUOTAS = ("gpu_hours_day", "money_month", "jobs_per_hour")
NEEDS_GPU = {**CPU_CONFIG, "resources": {"gpus": 1}}


@pytest.fixture(autouse=True)
def noted_for_no_other_test() -> Iterator[None]:
    """A process remembers the rows that it has set aside as long as it lives."""
    yield
    for rows in (ATTEMPTS, DELETED_JOBS):
        rows.set_aside.clear()


async def used(file: Path, clock: TurnedClock) -> dict[str, str]:
    """Leaves a database in which three jobs have used a GPU for a minute each, and one of them is deleted."""
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store, clock=clock) as running:
        worker = await running.worker("one", gpus=1)
        deleted, ended, sound = [await _a_minutes_job(running, worker) for _ in range(3)]
        assert (await running.http.delete(f"/api/jobs/{deleted}")).is_success
        for kind in QUOTAS:
            quota = {"kind": kind, "scope": "all", "ceiling": 1_000, "action": "wait"}
            assert (await running.http.post("/api/quotas", json=quota)).is_success
        await running.fleet.act(_share_fairly)
    await store.close()
    return {"ended": ended, "sound": sound}


async def _a_minutes_job(running: Running, worker: Agent) -> str:
    job_id = str((await running.submit(config=NEEDS_GPU))["job_id"])
    offer = await worker.take()
    running.clock.at += 60.0
    await worker.report(offer, "completed", exit_code=0)
    return job_id


def _share_fairly(transaction: Transaction) -> None:
    fair = msgspec.json.encode(FairShare(enabled=True)).decode()
    transaction.tx.put_setting(FAIR_SHARE_SETTING, fair)
    transaction.organisation_changed()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_the_server_goes_on_and_counts_the_others(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "fleet.db", TurnedClock()
    rows = await used(file, clock)
    with sqlite3.connect(file) as connection:
        connection.execute(damage, rows)
        assert connection.total_changes > 0
    connection.close()
    named = [one.table for one in unreadable_rows(file) if one.table == "deleted_jobs"]
    assert named == ["deleted_jobs"] * ("deleted_jobs" in damage)
    store = SqliteStore(file)
    async with orchestrator(store=store, clock=clock) as running:
        await running.submit()
        for path in ("/api/quotas/me", "/api/jobs", f"/api/jobs/{rows['sound']}"):
            assert (await running.http.get(path)).status_code == 200, path
        of_deleted = "deleted" in damage
        for by in ("person", "day", "gpu"):
            report = await running.get("/api/usage", by=by)
            assert report["total"]["attempts"] == (3 if of_deleted else 2)
        hours = dict(await last_day.gpu_hours(running.fleet))
        assert sum(hours.values()) * HOUR_S >= 120.0
        await sweep_storage_once(running.deps.storage)
        assert "failed" not in caplog.text
    await store.close()
