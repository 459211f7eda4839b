"""Event streams and the server around them, over real sockets and in a real process."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route
from simpletuner_fleet.http.edge.streams import Chunks, EventStream, Stream
from simpletuner_fleet.http.server.connection import HEAD_TIMEOUT_S, HttpConnection
from simpletuner_fleet.http.server.serving import Listening, serve
from simpletuner_fleet.http.server.sockets import AddressInUse, CannotListen, listen
from tests.http.edge_kit import raw_exchange, running
from tests.stop_watch import StopWatch

REQUEST = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Board:
    """What a handler of streams needs to keep: who is open and why who closed."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.open: list[EventStream] = []
        self.closed: asyncio.Queue[str] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.generators_closed: asyncio.Queue[bytes] = asyncio.Queue()

    def new_stream(self) -> EventStream:
        stream = EventStream(on_close=self.closed.put_nowait, **self.options)
        self.open.append(stream)
        self.opened.set()
        return stream


async def open_stream(call: Call[None]) -> Stream:
    board: Board = call.app
    return board.new_stream()


async def follow(call: Call[None]) -> Stream:
    return Chunks(lines(call.app))


async def lines(board: Board) -> AsyncGenerator[bytes, None]:
    try:
        yield b"data: one\n\n"
        yield b"data: two\n\n"
        await asyncio.Event().wait()
    finally:
        board.generators_closed.put_nowait(b"")


async def short(call: Call[None]) -> Stream:
    async def three() -> AsyncGenerator[bytes, None]:
        for word in (b"a", b"b", b"c"):
            yield word

    return Chunks(three(), headers=[(b"content-type", b"text/plain")])


ROUTES = [
    Route("GET", "/stream", open_stream, PUBLIC, stream=True),
    Route("GET", "/follow", follow, PUBLIC, stream=True),
    Route("GET", "/short", short, PUBLIC, stream=True),
]


@contextlib.asynccontextmanager
async def connected(
    listening: Listening, request: bytes = REQUEST
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(listening.host, listening.port)
    writer.write(request)
    yield reader, writer
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def first_bytes(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readuntil(b"retry: 2000\n\n\r\n")


async def test_a_stream_says_its_first_bytes_at_once_and_pushes_in_order() -> None:
    board = Board()
    async with running(ROUTES, board) as here, connected(here.listening) as (reader, _):
        head = await asyncio.wait_for(first_bytes(reader), 5)
        assert b"content-type: text/event-stream" in head
        assert b"cache-control: no-store" in head
        assert b"x-accel-buffering: no" in head
        assert b"x-content-type-options: nosniff" in head
        for number in range(3):
            assert board.open[0].push(b"data: %d\n\n" % number)
        assert b"data: 0\n\ndata: 1\n\ndata: 2\n\n" in await reader.readuntil(b"data: 2\n\n")


async def test_a_stream_that_is_ended_sends_what_it_holds_and_closes_cleanly() -> None:
    board = Board()
    async with running(ROUTES, board) as here, connected(here.listening) as (reader, _):
        await first_bytes(reader)
        board.open[0].push(b"data: before\n\n")
        board.open[0].end("superseded", last=b"data: last\n\n")
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert b"data: before\n\ndata: last\n\n" in rest
        assert await board.closed.get() == "superseded"
        assert not board.open[0].push(b"data: late\n\n")


async def test_a_reader_that_leaves_is_noticed_at_once() -> None:
    board = Board()
    async with running(ROUTES, board) as here:
        async with connected(here.listening) as (reader, _):
            await first_bytes(reader)
        assert await asyncio.wait_for(board.closed.get(), 2) == "gone"


async def test_a_reader_that_does_not_read_is_dropped_when_a_write_stands_still() -> None:
    board = Board(write_timeout_s=0.2, max_buffer_bytes=64 * 1024 * 1024)
    async with running(ROUTES, board) as here:
        deaf = socket.create_connection((here.listening.host, here.listening.port))
        deaf.sendall(REQUEST)
        await asyncio.wait_for(board.opened.wait(), 5)
        for _ in range(40):
            board.open[0].push(b"data: " + b"x" * 1_000_000 + b"\n\n")
            await asyncio.sleep(0)
        assert await asyncio.wait_for(board.closed.get(), 5) == "slow"
        deaf.setblocking(False)
        await until_reset(deaf)
        deaf.close()


async def until_reset(deaf: socket.socket) -> None:
    """Dropped means dropped: after what the kernel held there is an end, not the rest of the buffer."""
    loop = asyncio.get_running_loop()
    received = 0
    with contextlib.suppress(ConnectionError):
        while chunk := await asyncio.wait_for(loop.sock_recv(deaf, 1 << 20), 5):
            received += len(chunk)
    assert received < 30_000_000


async def test_a_buffer_that_is_full_ends_the_stream_and_grows_no_further() -> None:
    stream = EventStream(max_buffer_bytes=1000)
    pushes = [stream.push(b"x" * 100) for _ in range(12)]
    assert pushes.count(True) == 9
    assert stream.why == "slow"


async def test_pings_come_by_themselves() -> None:
    board = Board(ping=lambda: b"event: ping\n\n", ping_every_s=0.02)
    async with running(ROUTES, board) as here, connected(here.listening) as (reader, _):
        for _ in range(3):
            await asyncio.wait_for(reader.readuntil(b"event: ping\n\n"), 5)


async def test_chunks_flow_at_the_readers_pace_and_their_source_is_closed_when_it_leaves() -> None:
    board = Board()
    async with running(ROUTES, board) as here:
        request = REQUEST.replace(b"/stream", b"/follow")
        async with connected(here.listening, request) as (reader, _):
            await reader.readuntil(b"data: two\n\n")
            assert board.generators_closed.empty()
        await asyncio.wait_for(board.generators_closed.get(), 5)
        answer = await here.client.get("/short")
        assert (answer.text, answer.headers["content-type"]) == ("abc", "text/plain")


async def test_a_source_that_fails_midway_cuts_the_answer_short_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"data: one\n\n"
        raise ZeroDivisionError

    async def fail(call: Call[None]) -> Stream:
        return Chunks(failing())

    request = b"GET /fail HTTP/1.1\r\nHost: localhost\r\n\r\n"
    routes = [Route("GET", "/fail", fail, PUBLIC, stream=True)]
    async with running(routes) as here, connected(here.listening, request) as (reader, _):
        rest = await asyncio.wait_for(reader.read(), 5)
    assert rest.count(b"HTTP/1.1") == 1
    assert not rest.endswith(b"0\r\n\r\n")
    assert "incident" in caplog.text


async def test_the_end_of_the_server_is_a_clean_end_of_every_stream() -> None:
    board = Board()
    async with running(ROUTES, board) as here, contextlib.AsyncExitStack() as stack:
        readers = []
        for number in range(20):
            request = REQUEST.replace(b"/stream", b"/follow") if number % 2 else REQUEST
            reader, _ = await stack.enter_async_context(connected(here.listening, request))
            await reader.readuntil(b"data: two\n\n" if number % 2 else b"retry: 2000\n\n")
            readers.append(reader)
        here.stop.set()
        for reader in readers:
            assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"0\r\n\r\n")
        await asyncio.wait_for(here.server, 2)
    assert board.generators_closed.qsize() == 10


async def test_an_expected_body_is_asked_for() -> None:
    async def size(call: Call[bytes]) -> dict[str, int]:
        return {"size": len(call.body)}

    request = (
        b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    routes = [Route("POST", "/size", size, PUBLIC, body=bytes)]
    async with running(routes) as here, connected(here.listening, request) as (reader, writer):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await asyncio.wait_for(reader.readuntil(b"}"), 5)


async def test_head_is_no_way_to_open_a_stream() -> None:
    board = Board()
    async with running(ROUTES, board) as here:
        assert (await here.client.head("/stream")).status_code == 405
    assert not board.open


PROGRAM = """
import asyncio, sys
import uvloop
from simpletuner_fleet.http.edge.edge import build_app
from simpletuner_fleet.http.edge.routes import PUBLIC, Route
from simpletuner_fleet.http.server.serving import serve
from simpletuner_fleet.http.edge.streams import EventStream
from tests.http.edge_kit import MemoryCredentials

async def stream(call):
    return EventStream()

async def main():
    app = build_app([Route("GET", "/stream", stream, PUBLIC, stream=True)], None, credentials=MemoryCredentials())
    await serve(app, "127.0.0.1", 0, None, lambda at: print(at.port, flush=True), app.end_streams)
    print("stopped cleanly", flush=True)

uvloop.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_server_with_fifty_open_streams_within_a_second(number: signal.Signals) -> None:
    root = str(Path(__file__).parents[3])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    assert process.stdout
    port = int(await process.stdout.readline())
    listening = Listening("127.0.0.1", port, False)
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(50):
            reader, _ = await stack.enter_async_context(connected(listening))
            await first_bytes(reader)
            readers.append(reader)
        with StopWatch(process.pid) as watch:
            process.send_signal(number)
            ends = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in readers)), 30)
            code = await asyncio.wait_for(process.wait(), 30)
            took = watch.elapsed_s
    assert set(ends) == {b"0\r\n\r\n"}
    assert (code, await process.stdout.read()) == (0, b"stopped cleanly\n")
    assert took < 1.0


def test_accepted_sockets_inherit_what_notices_dead_peers() -> None:
    (listener,) = listen("127.0.0.1", 0)
    client = socket.create_connection(listener.getsockname())
    listener.setblocking(True)
    accepted, _ = listener.accept()
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 5,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 2,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 15_000,
    }
    assert {option: accepted.getsockopt(*option) for option in options} == options
    for one in (accepted, client, listener):
        one.close()


def test_a_port_in_use_is_said_with_a_way_out() -> None:
    (taken,) = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(AddressInUse) as caught:
        listen("127.0.0.1", port)
    assert str(port) in caught.value.detail
    assert "--port" in (caught.value.next or "")
    taken.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_refused_with_a_way_out(host: str) -> None:
    with pytest.raises(CannotListen) as caught:
        listen(host, 0)
    assert host in caught.value.detail
    assert "0.0.0.0" in (caught.value.next or "")


def test_every_address_of_a_name_is_bound_on_one_port() -> None:
    sockets = listen("localhost", 0)
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


async def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HEAD_TIMEOUT_S > 5
    monkeypatch.setattr(HttpConnection, "head_timeout_s", 0.1)
    async with running(ROUTES, Board()) as here:
        for request in (b"", b"GET /stream HTTP/1.1\r\nHost: loc"):
            async with connected(here.listening, request) as (reader, _):
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""
        whole = b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with connected(here.listening, whole) as (reader, writer):
            await reader.readuntil(b"not_found")
            writer.write(b"GET /no")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1" not in await asyncio.wait_for(reader.read(), 5)


@pytest.mark.parametrize(
    "head", [b"X: " + b"y" * 200_000, b"".join(b"X-%d: %b\r\n" % (n, b"y" * 50) for n in range(2000))]
)
async def test_a_head_that_is_too_large_is_refused(head: bytes) -> None:
    async with running(ROUTES, Board()) as here:
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await raw_exchange(
                here.listening, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n"
            )
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_http_are_refused_and_never_500(request_bytes: bytes) -> None:
    async with running(ROUTES, Board()) as here:
        answer = await raw_exchange(here.listening, request_bytes)
        assert answer[9:10] == b"4"
        assert (await here.client.get("/short")).text == "abc"


async def test_a_server_whose_port_is_taken_raises_instead_of_exiting() -> None:
    (taken,) = listen("127.0.0.1", 0)
    with pytest.raises(AddressInUse):
        await serve(lambda *_: asyncio.sleep(0), "127.0.0.1", taken.getsockname()[1])
    taken.close()
