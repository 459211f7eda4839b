"""Streams that end before they have begun: nobody reads them, and they keep no place."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import httpx2
import pytest

from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.http.edge.edge import EdgeSettings, build_app
from simpletuner_fleet.http.edge.exchange import RawHeaders
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Call, Route
from simpletuner_fleet.http.edge.streams import EVENT_HEADERS, Chunks, EventStream, Stream
from simpletuner_fleet.http.server.http_exchange import HttpExchange
from simpletuner_fleet.ports import ApiToken
from tests.http.edge.edge_kit import bearer
from tests.http.edge_kit import ADMIN, READER, MemoryCredentials, running

SECRET = b"data: secret\n\n"
PROMISED: RawHeaders = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(SECRET))]
BOTH = pytest.mark.parametrize("path", ["/events", "/lines"])


class Desk:
    """Opens streams when it is let, and counts how often one was closed."""

    def __init__(self) -> None:
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.closed = 0
        self.stream: Stream | None = None
        self.headers: RawHeaders = EVENT_HEADERS

    def close(self, why: str = "") -> None:
        self.closed += 1


async def events(call: Call[None]) -> Stream:
    desk: Desk = call.app
    desk.asked.set()
    await desk.may_go_on.wait()
    desk.stream = EventStream(on_close=desk.close)
    return desk.stream


async def lines(call: Call[None]) -> Stream:
    desk: Desk = call.app
    desk.asked.set()
    await desk.may_go_on.wait()
    desk.stream = Chunks(secrets(), headers=desk.headers, on_close=desk.close)
    return desk.stream


async def secrets() -> AsyncGenerator[bytes, None]:
    yield SECRET


ROUTES = [
    Route("GET", "/events", events, ANY_USER, stream=True),
    Route("GET", "/lines", lines, ANY_USER, stream=True),
]
PUBLIC_ROUTES = [
    Route("GET", "/events", events, PUBLIC, stream=True),
    Route("GET", "/lines", lines, PUBLIC, stream=True),
]


class SlowCredentials(MemoryCredentials):
    """Finds a token, and takes its time before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def api_token(self, token_hash: str) -> ApiToken | None:
        token = await super().api_token(token_hash)
        self.asked.set()
        await self.may_go_on.wait()
        return token


async def opened(client: httpx2.AsyncClient, path: str) -> httpx2.Response:
    return await client.get(path, headers=bearer(READER), timeout=5)


@BOTH
async def test_a_credential_that_is_revoked_while_its_stream_is_opened_reads_nothing(path: str) -> None:
    desk = Desk()
    async with running(ROUTES, desk) as here:
        answer = asyncio.create_task(opened(here.client, path))
        await desk.asked.wait()
        here.edge.end_streams_of([tokens.hashed(READER)])
        desk.may_go_on.set()
        assert SECRET not in (await answer).content
    assert desk.closed == 1


@BOTH
async def test_a_credential_that_is_revoked_while_it_is_looked_up_reads_nothing(path: str) -> None:
    desk, credentials = Desk(), SlowCredentials()
    desk.may_go_on.set()
    async with running(ROUTES, desk, credentials=credentials) as here:
        answer = asyncio.create_task(opened(here.client, path))
        await credentials.asked.wait()
        here.edge.end_streams_of([tokens.hashed(READER)])
        credentials.may_go_on.set()
        assert SECRET not in (await answer).content
    assert desk.closed == 1


async def test_a_revoked_credential_gets_no_part_of_an_answer_whose_length_was_promised() -> None:
    desk = Desk()
    desk.headers = PROMISED
    async with running(ROUTES, desk) as here:
        answer = asyncio.create_task(opened(here.client, "/lines"))
        await desk.asked.wait()
        here.edge.end_streams_of([tokens.hashed(READER)])
        desk.may_go_on.set()
        with pytest.raises(httpx2.TransportError):
            await answer
    assert desk.closed == 1


async def test_another_credential_that_is_revoked_meanwhile_ends_nothing() -> None:
    desk = Desk()
    async with running(ROUTES, desk) as here:
        answer = asyncio.create_task(opened(here.client, "/lines"))
        await desk.asked.wait()
        here.edge.end_streams_of([tokens.hashed(ADMIN)])
        desk.may_go_on.set()
        assert (await answer).content == SECRET
        here.edge.end_streams_of([tokens.hashed(READER)])
        assert (await opened(here.client, "/lines")).content == SECRET
    assert desk.closed == 2


@BOTH
async def test_a_stream_that_a_doubtful_leader_withholds_is_closed(path: str) -> None:
    desk, sure = Desk(), True
    async with running(ROUTES, desk, settings=EdgeSettings(may_promise=lambda: sure)) as here:
        answer = asyncio.create_task(opened(here.client, path))
        await desk.asked.wait()
        sure = False
        desk.may_go_on.set()
        assert (await answer).json()["code"] == "not_leader"
    assert desk.closed == 1


async def test_an_answer_whose_head_cannot_be_written_is_closed() -> None:
    desk = Desk()
    desk.headers = [(b"content-type", b"text/plain\r\n")]
    desk.may_go_on.set()
    async with running(ROUTES, desk) as here:
        assert (await opened(here.client, "/lines")).status_code == 500
    assert desk.closed == 1


class BrokenConnection:
    """A connection on which nothing can be written any more."""

    writing_paused = False
    ends = ""

    def write(self, data: bytes) -> None:
        raise OSError("this connection is broken")

    def date_line(self) -> bytes:
        return b""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def answered(self, exchange: HttpExchange) -> None: ...
    def carry(self, stream: EventStream, *, chunked: bool) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


@BOTH
async def test_a_stream_whose_connection_breaks_as_it_begins_is_closed(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    desk.may_go_on.set()
    edge = build_app(PUBLIC_ROUTES, desk, credentials=MemoryCredentials())
    headers = {"host": "localhost"}
    exchange = HttpExchange(
        BrokenConnection(), "GET", path, b"", headers, "127.0.0.1", False, "1.1", keep_alive=True
    )
    exchange.complete()
    await edge(exchange)
    assert desk.closed == 1
    assert "this connection is broken" in caplog.text


async def test_a_stream_that_was_dropped_says_so_once() -> None:
    desk = Desk()
    makers: list[Callable[[], Stream]] = [
        lambda: EventStream(on_close=desk.close),
        lambda: Chunks(secrets(), on_close=desk.close),
    ]
    for number, make in enumerate(makers, 1):
        stream = make()
        stream.lost()
        stream.lost()
        assert desk.closed == number
