"""A row that cannot be read is missing in what is shown, and everything else is shown as ever."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.store import SqliteStore
from simpletuner_fleet.store.rows.jobs import ATTEMPTS, JOBS
from simpletuner_fleet.store.rows.workers import WORKERS
from tests.http.api_kit import CPU_CONFIG, orchestrator
from tests.ready_databases import lay_sqlite

DAMAGE = {
    "a job's list": "UPDATE jobs SET gpus = '[[' WHERE id IN (:running, :waiting)",
    "a job's number": "UPDATE jobs SET created_at = 'yesterday' WHERE id IN (:running, :waiting, :ended)",
    "an attempt's list": "UPDATE attempts SET gpus = '[[' WHERE job_id IN (:running, :ended)",
    "an attempt's number": "UPDATE attempts SET offered_at = 'now', resumed_from_step = 'x' WHERE job_id = :ended",
    "a worker's number": "UPDATE workers SET last_heartbeat = 'now' WHERE id = :worker",
}
NEEDS_GPU = {**CPU_CONFIG, "resources": {"gpus": 1}}
SHOWN = (
    *("/api/jobs", "/api/queue", "/api/queue/me", "/api/queue/stats", "/api/admin/workers"),
    *("/api/admin/pulses", "/metrics"),
)


@pytest.fixture(autouse=True)
def noted_for_no_other_test() -> Iterator[None]:
    """A process remembers the rows that it has set aside as long as it lives."""
    yield
    for rows in (JOBS, ATTEMPTS, WORKERS):
        rows.set_aside.clear()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
async def test_every_list_shows_the_others_to_whoever_sees_all_and_to_whoever_sees_a_part(
    tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "fleet.db"
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store) as running:
        bad = await running.worker("bad")
        rows = {"worker": bad.id, "running": (await running.submit())["job_id"]}
        await bad.take()
        good = await running.worker("good", max_jobs=4)
        rows["ended"] = (await running.submit())["job_id"]
        await good.report(await good.take(), "completed", exit_code=0)
        sound = (await running.submit())["job_id"]
        await good.take()
        waiting = [(await running.submit(config=NEEDS_GPU))["job_id"] for _ in range(2)]
        rows["waiting"] = waiting[0]
        token = await running.token("admin.workers", "queue.read", "jobs.read", "admin.limits")
    await store.close()
    with sqlite3.connect(file) as connection:
        connection.execute(damage, rows)
        assert connection.total_changes > 0
    connection.close()
    store = SqliteStore(file)
    async with orchestrator(store=store) as running, running.as_user(token) as part:
        for who in (running.http, part):
            for path in (*SHOWN, f"/api/admin/workers/{good.id}"):
                answer = await who.get(path)
                assert answer.status_code == 200, (path, answer.text)
        listed = {one["id"] for one in (await running.get("/api/jobs"))["jobs"]}
        assert {sound, waiting[1]} <= listed
        stats = await running.get("/api/queue/stats")
        assert sum(stats["by_reason"].values()) == 2, "whoever stands for those that wait for the same"
    await store.close()


async def test_a_page_with_a_row_that_cannot_be_read_leads_on_to_all_others(tmp_path: Path) -> None:
    file = tmp_path / "fleet.db"
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store) as running:
        ids = [(await running.submit(config=NEEDS_GPU))["job_id"] for _ in range(7)]
    await store.close()
    with sqlite3.connect(file) as connection:
        connection.execute(DAMAGE["a job's number"], {"running": ids[5], "waiting": ids[4], "ended": ids[1]})
    connection.close()
    store = SqliteStore(file)
    async with orchestrator(store=store) as running:
        for sort in ("-created", "name", "-finished"):
            page = await running.get("/api/jobs", limit="2", sort=sort, status="queued")
            listed = [job["id"] for job in page["jobs"]]
            while page["next"]:
                page = await running.get(
                    "/api/jobs", limit="2", sort=sort, status="queued", cursor=page["next"]
                )
                listed += [job["id"] for job in page["jobs"]]
            assert sorted(listed) == sorted(ids[at] for at in (0, 2, 3, 6)), sort
        for query in ({}, {"status": "queued"}):
            page = await running.get("/api/queue", limit="2", **query)
            listed = [job["id"] for job in page["jobs"]]
            while page["next"]:
                page = await running.get("/api/queue", limit="2", cursor=page["next"], **query)
                listed += [job["id"] for job in page["jobs"]]
            assert sorted(listed) == sorted(ids[at] for at in (0, 2, 3, 6)), query
    await store.close()
