"""The stores on which stories of the API are told."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import MemoryStore, open_store
from tests.ready_databases import lay_sqlite


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    match request.param:
        case "memory":
            opened: Store = MemoryStore()
        case "sqlite":
            opened = open_store(f"sqlite:///{lay_sqlite(tmp_path / 'fleet.db')}")
        case _:
            opened = open_store(request.getfixturevalue("ready_database"))
    yield opened
    await opened.close()
