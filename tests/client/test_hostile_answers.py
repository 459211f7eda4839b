"""What answers in the orchestrator's place is an error of the client's own family, and never a result."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.client import AsyncFleet, Fleet, UnreachableError
from tests.cli.conftest import Answer, FakeServer, server

__all__ = ["server"]
MOVED = Answer(302, b"{}", {"location": "https://portal.example.org/"})
GARBAGE = Answer(200, b"not gzip at all", {"content-encoding": "gzip", "content-type": "text/plain"})
PATHS = ("/api/queue/submit", "/api/jobs/j_1", "/api/jobs/j_1/logs", "/api/jobs", "/api/data/objects")
ACTS: dict[str, Callable[[Any], Any]] = {
    "job": lambda fleet: fleet.job("j_1"),
    "submit": lambda fleet: fleet.submit("cats"),
    "cancel": lambda fleet: fleet.cancel("j_1"),
    "jobs": lambda fleet: all_of(fleet.jobs()),
    "logs": lambda fleet: all_of(fleet.logs("j_1")),
}


def all_of(rows: Any) -> Any:
    """What the one client lists, and what the other has to be waited for."""
    return awaited(rows) if isinstance(rows, AsyncIterator) else list(rows)


async def awaited(rows: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in rows]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner_fleet.client.calls.caller.RESEND_AFTER_S", (0.0,))


@pytest.fixture(params=[MOVED, GARBAGE], ids=["moved", "garbage"])
def foreign(server: FakeServer, request: pytest.FixtureRequest) -> FakeServer:
    for path in (*PATHS, "/api/jobs/j_1/cancel"):
        for method in ("GET", "POST"):
            server.on(method, path, request.param)
    return server


@pytest.mark.parametrize("act", ACTS)
def test_a_foreign_answer_is_no_result(foreign: FakeServer, act: str) -> None:
    with Fleet(foreign.url, "st_secret") as fleet, pytest.raises(UnreachableError):
        ACTS[act](fleet)


@pytest.mark.parametrize("act", ACTS)
async def test_nor_for_the_one_that_awaits(foreign: FakeServer, act: str) -> None:
    async with asyncio.timeout(20), AsyncFleet(foreign.url, "st_secret") as fleet:
        with pytest.raises(UnreachableError):
            await ACTS[act](fleet)


def test_nor_for_what_moves_files(foreign: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "cat.txt").write_text("a cat")
    with Fleet(foreign.url, "st_secret") as fleet, pytest.raises(UnreachableError):
        fleet.push_dataset(tmp_path / "pets")


def test_nor_is_a_page_that_stands_in_for_it(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "cat.txt").write_text("a cat")
    server.on("POST", "/api/data/objects", Answer(200, b"<html>log in"))
    with Fleet(server.url, "st_secret") as fleet, pytest.raises(UnreachableError):
        fleet.push_dataset(tmp_path)
