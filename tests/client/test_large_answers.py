"""An answer that becomes very much once it is unpacked is given up before it is all in memory."""

import asyncio
import gzip
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client import ClientError, Fleet, time_limits
from simpletuner_fleet.client.async_fleet import AsyncFleetClient
from tests.cli.conftest import Answer, FakeServer, Run, ask, run, server

__all__ = ["ask", "run", "server"]
MIB = 2**20
BOMB = gzip.compress(b"\0" * 64 * MIB)
PACKED = {"content-encoding": "gzip"}


@pytest.fixture(autouse=True)
def bombs(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "MOST_BYTES", 2 * MIB)
    of_json = {**PACKED, "content-type": "application/json"}
    for path in ("/api/whoami", "/api/jobs/j_1"):
        server.on("GET", path, Answer(200, BOMB, of_json))
    server.on("GET", "/api/jobs/j_1/logs", Answer(500, BOMB, of_json))
    server.on("GET", "/api/usage/export", Answer(200, BOMB, {**PACKED, "content-type": "text/csv"}))


def peak_of(act: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("words", ["whoami", "jobs logs j_1", "usage --csv"])
def test_a_command_gives_up(ask: Run, words: str) -> None:
    said: list[Any] = []
    assert peak_of(lambda: said.append(ask(*words.split()))) < 32 * MIB
    assert said[0].code == ExitCode.UNREACHABLE
    assert "E_ANSWER_TOO_LARGE" in said[0].err
    assert "it has more than 2 MiB" in said[0].err


def refused_by(act: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as refused:
        act()
    return refused.value.code


@pytest.mark.parametrize("act", ["job", "logs"])
def test_the_python_client_gives_up(server: FakeServer, act: str) -> None:
    def blocking() -> None:
        with Fleet(server.url, "st_x") as fleet:
            code = refused_by(lambda: fleet.job("j_1") if act == "job" else list(fleet.logs("j_1")))
        assert code == "E_ANSWER_TOO_LARGE"

    async def awaiting() -> None:
        async with AsyncFleetClient(server.url, "st_x") as fleet:
            with pytest.raises(ClientError) as refused:
                await fleet.job("j_1") if act == "job" else [line async for line in fleet.logs("j_1")]
            assert refused.value.code == "E_ANSWER_TOO_LARGE"

    assert peak_of(blocking) < 32 * MIB
    assert peak_of(lambda: asyncio.run(awaiting())) < 32 * MIB
    assert len(server.seen) == 2, "it is not asked for again"


def test_a_large_answer_that_is_true_is_read(server: FakeServer, ask: Run) -> None:
    whole = b'{"name": "' + b"a" * MIB + b'"}'
    server.on(
        "GET",
        "/api/whoami",
        Answer(200, gzip.compress(whole), {**PACKED, "content-type": "application/json"}),
    )
    assert len(ask("whoami", "--json").json["name"]) == MIB
