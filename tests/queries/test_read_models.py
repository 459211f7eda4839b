"""Where a page of a list begins comes back from outside, and may have been written there."""

import base64
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.ports import JobFilter
from simpletuner_fleet.queries.read_models import jobs_page, queue_page
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import POLICY


async def test_a_cursor_that_no_database_could_look_for_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    fleet = Fleet(store, FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), POLICY)
    newest, in_line = (
        base64.urlsafe_b64encode(text).decode() for text in (b"1" + b"0" * 30, b"[1.5,1" + b"0" * 30 + b"]")
    )
    with pytest.raises(Invalid, match="not issued by this server"):
        await jobs_page(fleet, JobFilter(), newest, 10)
    with pytest.raises(Invalid, match="not issued by this server"):
        await queue_page(fleet, in_line, 10)
    await store.close()
