"""Every promise is tested in all three homes; those about memory beside a database, in both that have one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.ready_databases import lay_sqlite
from tests.store.outsider import Rig, postgres_rig, sqlite_rig


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    match request.param:
        case "memory":
            opened = MemoryStore()
        case "sqlite":
            opened = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
        case _:
            opened = PostgresStore(request.getfixturevalue("ready_database"))
    yield opened
    await opened.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    if request.param == "sqlite":
        async with sqlite_rig(lay_sqlite(tmp_path / "fleet.db")) as made:
            yield made
    else:
        async with postgres_rig(request.getfixturevalue("ready_database")) as made:
            yield made
