"""A waiting job of which something cannot be read that its worker would be sent: all others are placed."""

import sqlite3
from pathlib import Path

import pytest

from simpletuner_fleet.store import SqliteStore
from tests.http.api_kit import Agent, TurnedClock, orchestrator
from tests.ready_databases import lay_sqlite

MANIFEST = (
    "INSERT INTO manifests (id, job_id, attempt_id, attempt_number, epoch, kind, name, step, files, total_bytes,"
    " created_at, worker_name) VALUES ('m_1', :id, 'a_1', 1, 1, 'checkpoint', 'c', 5, '[[', 0, 1.0, 'w')"
)
DATASET = (
    "INSERT INTO datasets (id, name, files, total_bytes, manifest_bytes, created_at, created_by, owner, team,"
    " visibility, ready) VALUES ('abc', 'd', 1, 1, 1, 1.0, 'u', 'u', '', 'nobody', 1)"
)
NAMES_IT = (
    "UPDATE job_bundles SET bundle = CAST(json_set(CAST(bundle AS TEXT), '$.datasets',"
    """ json('{"data": "abc"}')) AS BLOB) WHERE job_id = :id"""
)
DAMAGE = {
    "its config": ("UPDATE job_bundles SET bundle = CAST('{' AS BLOB) WHERE job_id = :id",),
    "a text for its config": ("UPDATE job_bundles SET bundle = '{' WHERE job_id = :id",),
    "a config without end": (
        f"UPDATE job_bundles SET bundle = CAST('{'[' * 60_000}' AS BLOB) WHERE job_id = :id",
    ),
    "its checkpoint": ("UPDATE jobs SET attempts = 1 WHERE id = :id", MANIFEST),
    "its dataset": (DATASET, NAMES_IT),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_a_worker_comes_and_takes_the_others_and_the_job_says_why_it_waits(
    tmp_path: Path, damage: tuple[str, ...]
) -> None:
    file, clock = tmp_path / "fleet.db", TurnedClock()
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store, clock=clock) as running:
        bad, good = [str((await running.submit())["job_id"]) for _ in range(2)]
    await store.close()
    with sqlite3.connect(file) as connection:
        for statement in damage:
            assert connection.execute(statement, {"id": bad}).rowcount == 1
    connection.close()
    store = SqliteStore(file)
    async with orchestrator(store=store, clock=clock) as running:
        worker = await running.worker(max_jobs=2)
        assert (await worker.take())["job_id"] == good
        listed = {one["id"]: one for one in (await running.get("/api/jobs"))["jobs"]}
        assert listed[bad]["status"] == "queued"
        assert "cannot be read" in listed[bad]["error"]
        explained = await running.get(f"/api/jobs/{bad}/explain")
        assert explained["code"] == "RETRY_BACKOFF"
        later = str((await running.submit())["job_id"])
        assert (await running.job(later))["status"] == "dispatched"
        assert (await running.post(f"/api/jobs/{bad}/cancel"))["status"] == "cancelled"
    await store.close()


async def test_it_is_tried_again_and_placed_once_it_can_be_read(tmp_path: Path) -> None:
    file, clock = tmp_path / "fleet.db", TurnedClock()
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store, clock=clock) as running:
        job_id = str((await running.submit())["job_id"])
        worker = await running.create_worker()
    await store.close()
    connection = sqlite3.connect(file, isolation_level=None)
    [(bundle,)] = connection.execute("SELECT bundle FROM job_bundles")
    connection.execute("UPDATE job_bundles SET bundle = CAST('{' AS BLOB)")
    store = SqliteStore(file)
    async with orchestrator(store=store, clock=clock) as running:
        agent = Agent(running, worker)
        await agent.register(gpus=0)
        await agent.open_stream()
        assert "cannot be read" in (await running.job(job_id))["error"]
    await store.close()
    connection.execute("UPDATE job_bundles SET bundle = ?", (bundle,))
    connection.close()
    store = SqliteStore(file)
    async with orchestrator(store=store, clock=clock) as running:
        clock.at += running.fleet.policy.retry_backoff_max_s
        await running.pass_time(running.fleet.policy.sweep_interval_s)
        again = Agent(running, worker, "i-2")
        await again.register(gpus=0)
        await again.open_stream()
        assert (await running.job(job_id))["status"] == "dispatched"
    await store.close()
