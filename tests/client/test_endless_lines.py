"""A line of a log that never ends is given in pieces, and is never all in memory."""

import asyncio
import itertools
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from simpletuner_fleet.cli.jobs.logs import LineJoiner
from simpletuner_fleet.client import Fleet
from simpletuner_fleet.client.async_fleet import AsyncFleetClient
from simpletuner_fleet.client.calls import logs
from tests.cli.conftest import Run, run

__all__ = ["run"]
MIB = 2**20
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Log-Attempt: 1\r\n"
    b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
)
JOB = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"id": "j_1", "status": "running"}'
)
MOST_CHUNKS = 64 * MIB // 0x10000
"""So that a client which waits for the end of the line fails, and takes not all memory."""


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LONGEST_LINE", MIB)
    monkeypatch.setattr("simpletuner_fleet.cli.jobs.logs.LONGEST_LINE", MIB)


@pytest.fixture
def endless() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        writing = threading.Thread(target=write_on, args=(door,))
        writing.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
        writing.join()


def write_on(door: socket.socket) -> None:
    with suppress(OSError):
        while True:
            line = door.accept()[0]
            with suppress(OSError), line:
                if b"/logs" not in line.recv(65536):
                    line.sendall(JOB)
                    continue
                line.sendall(HEAD)
                for _ in range(MOST_CHUNKS):
                    line.sendall(CHUNK)
                line.sendall(b"0\r\n\r\n")


def peak_of(act: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("follow", [False, True])
def test_the_python_client_gives_it_in_pieces(endless: str, follow: bool) -> None:
    def blocking() -> None:
        with Fleet(endless, "st_x") as fleet:
            lengths.extend(map(len, itertools.islice(fleet.logs("j_1", follow=follow), 5)))

    async def awaiting() -> None:
        async with AsyncFleetClient(endless, "st_x") as fleet:
            async for line in fleet.logs("j_1", follow=follow):
                lengths.append(len(line))
                if len(lengths) == 10:
                    break

    lengths: list[int] = []
    assert peak_of(blocking) < 16 * MIB
    assert peak_of(lambda: asyncio.run(awaiting())) < 16 * MIB
    assert lengths == [MIB] * 10


def test_a_command_that_looks_for_a_pattern_looks_in_each(
    endless: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_x")
    words = ("jobs", "logs", "j_1", "--url", endless, "--grep")
    assert peak_of(lambda: run(*words, "y")) < 16 * MIB
    shown = run(*words, "^x")
    assert shown.out.count("\n") == MOST_CHUNKS * 0x10000 // MIB


def test_with_times_it_is_shown_in_parts() -> None:
    joiner = LineJoiner()
    parts = [part for _ in range(40) for part in joiner.feed("now", b"x" * 0x10000, ends=False)]
    parts += joiner.feed("now", b"end", ends=True)
    assert b"".join(data for _, data in parts) == b"x" * 40 * 0x10000 + b"end"
    assert max(len(data) for _, data in parts) < 2 * MIB
