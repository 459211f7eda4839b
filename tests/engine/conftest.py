"""Stores for what is tried on a real database as well as in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import MemoryStore, SqliteStore
from tests.ready_databases import lay_sqlite


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """One that runs every step where it is, and one that begins a step anew where it needs its connection."""
    opened = MemoryStore() if request.param == "memory" else SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
    yield opened
    await opened.close()
