"""A restore sends no agent away that was started since the backup: which one was the newest then says nothing now."""

from pathlib import Path

import pytest

from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.orchestrator.workers.attendance import must_be_newest
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.backup import postgres_copy, sqlite_copy
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store import samples

NOTHING = Withdrawn()


def fill(tx: Tx) -> None:
    tx.add_worker(samples.worker(1, incarnation="before the backup"))


async def restored_sqlite(folder: Path) -> Worker | None:
    store = SqliteStore(folder / "fleet.db")
    await store.write(fill)
    await store.close()
    out = folder / "out"
    out.mkdir()
    sqlite_copy.copy_out(folder / "fleet.db", out, "1.2.3", 1000.0)
    sqlite_copy.put_back(out, folder / "fleet.db", NOTHING, "one_time_key:", 2000.0, "{}", replace=True)
    store = SqliteStore(folder / "fleet.db")
    try:
        return await store.read(lambda view: view.worker("w_1"))
    finally:
        await store.close()


async def restored_postgres(folder: Path, url: str) -> Worker | None:
    store = PostgresStore(url)
    await store.write(fill)
    await store.close()
    manifest = postgres_copy.copy_out(url, folder, "1.2.3", 1000.0)
    postgres_copy.put_back(folder, url, manifest, NOTHING, "one_time_key:", 2000.0, "{}", replace=True)
    store = PostgresStore(url)
    try:
        return await store.read(lambda view: view.worker("w_1"))
    finally:
        await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_agent_started_since_the_backup_is_not_told_that_a_newer_one_has_come(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "postgres":
        worker = await restored_postgres(tmp_path, request.getfixturevalue("postgres_database"))
    else:
        worker = await restored_sqlite(tmp_path)
    assert worker is not None
    must_be_newest(worker, "since the backup")
    must_be_newest(worker, "before the backup")
