"""How a server that shares its database with others stops leading."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from simpletuner_fleet.cli.programs.leading.leader_election import LeaderElection
from simpletuner_fleet.cli.programs.leading.leader_services import LeaderServices
from simpletuner_fleet.store import SqliteStore, open_store
from tests.orchestrator.test_leadership import LateBook


class EndsBadly(LeaderServices):
    """Runs nothing, and cannot end it."""

    def __init__(self) -> None:
        self.edge = cast(Any, None)

    async def begin(self) -> None: ...
    async def end_streams(self, *, keep_local_worker: bool = False) -> None: ...
    async def end(self) -> None:
        raise OSError("the folder is gone")


async def test_a_leader_that_cannot_end_what_it_runs_closes_its_store_and_returns_the_lease(
    tmp_path: Path,
) -> None:
    book = LateBook()
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    leads = asyncio.Event()
    election = LeaderElection(
        book,
        b"k" * 32,
        lambda term: SqliteStore(tmp_path / "fleet.db"),
        lambda store, term: EndsBadly(),
        tls=False,
    )
    election.start("http://127.0.0.1:1", "", lambda services: leads.set(), lambda: None)
    await leads.wait()
    with pytest.raises(OSError, match="gone"):
        await election.stop()
    assert book.lease is not None
    assert book.lease.released, "another one need not wait until the lease is over"
    await open_store(url).close()
