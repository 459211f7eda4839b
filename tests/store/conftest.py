"""Every promise is tested in all three homes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    match request.param:
        case "memory":
            opened = MemoryStore()
        case "sqlite":
            opened = SqliteStore(tmp_path / "fleet.db")
        case _:
            opened = PostgresStore(request.getfixturevalue("postgres_database"))
    yield opened
    await opened.close()
