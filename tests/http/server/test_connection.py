"""One connection after another, as honest and as hostile clients use them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Answer, Call, Reply, Route
from simpletuner_fleet.http.edge.streams import Chunks, EventStream, Stream
from simpletuner_fleet.http.server import serving as http_server
from simpletuner_fleet.http.server.connection import MAX_SENT_AHEAD
from simpletuner_fleet.http.server.head_reader import MAX_HEAD_BYTES
from simpletuner_fleet.http.server.serving import IDLE_TIMEOUT_S, idle_timeout_for
from tests.http.edge_kit import ADMIN, raw_exchange, running

HOST = b"Host: localhost\r\n"


async def say(call: Call[None]) -> dict[str, str]:
    return {"id": call.path["id"]}


async def say_late(call: Call[None]) -> dict[str, str]:
    await asyncio.sleep(0.05)
    return {"id": call.path["id"]}


async def headers(call: Call[bytes]) -> dict[str, Any]:
    return {"headers": dict(call.headers), "body": call.body.decode()}


async def timed(call: Call[None]) -> dict[str, bool]:
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
    return {"timed": True}


async def short(call: Call[None]) -> Stream:
    async def three() -> AsyncGenerator[bytes, None]:
        for word in (b"a", b"b", b"c"):
            yield word

    return Chunks(three(), headers=[(b"content-type", b"text/plain")])


async def too_short(call: Call[None]) -> Stream:
    async def few() -> AsyncGenerator[bytes, None]:
        yield b"abc"

    return Chunks(few(), headers=[(b"content-length", b"10")])


async def split(call: Call[None]) -> Answer:
    return Reply(body=b"", headers={"X-Name": "a\r\nSet-Cookie: b=c"})


async def large(call: Call[None]) -> Answer:
    return Reply(body=b"x" * 50_000_000, content_type="text/plain")


async def stream(call: Call[None]) -> Stream:
    return EventStream()


ROUTES = [
    Route("GET", "/say/{id}", say, PUBLIC, prompt=True),
    Route("GET", "/late/{id}", say_late, PUBLIC),
    Route("POST", "/headers", headers, PUBLIC, body=bytes, max_body_bytes=1_000_000),
    Route("POST", "/private", headers, ANY_USER, body=bytes),
    Route("GET", "/timed", timed, PUBLIC),
    Route("GET", "/short", short, PUBLIC, stream=True),
    Route("GET", "/too-short", too_short, PUBLIC, stream=True),
    Route("GET", "/split", split, PUBLIC),
    Route("GET", "/large", large, PUBLIC),
    Route("GET", "/stream", stream, PUBLIC, stream=True),
]


def get(path: str, *more: bytes) -> bytes:
    return f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"".join(more) + b"\r\n"


LAST = b"Connection: close\r\n"


async def test_pipelined_requests_are_answered_in_order_however_long_each_takes() -> None:
    requests = [get("/late/1"), get("/say/2"), get("/late/3"), get("/say/4", LAST), get("/say/5")]
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, b"".join(requests))
    ids = [part[:1] for part in answer.split(b'"id":"')[1:]]
    assert ids == [b"1", b"2", b"3", b"4"], "what follows the last request is left unread"


async def test_requests_sent_ahead_are_answered_up_to_a_limit() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, get("/say/1") * (MAX_SENT_AHEAD + 50))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
    assert statuses == [b"200"] * MAX_SENT_AHEAD + [b"400"]


async def test_what_cannot_be_read_is_refused_after_the_requests_before_it_were_answered() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, get("/late/1") + b"NONSENSE\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"400"]


async def test_a_request_may_come_in_the_smallest_pieces() -> None:
    request = b"POST /headers HTTP/1.1\r\n" + HOST + LAST
    request += b"Content-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nabc"
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
        for at in range(len(request)):
            writer.write(request[at : at + 1])
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert b'"body":"abc"' in answer


CHUNKED = (
    b"POST /headers HTTP/1.1\r\n" + HOST + LAST + b"Content-Type: application/octet-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


async def test_trailers_are_refused() -> None:
    request = CHUNKED + b"3\r\nabc\r\n0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, request)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "endless",
    [b"3\r\nabc\r\n0\r\nX-Long: ", b"3;name=", b"3\r\nabc\r\n0\r\n" + b"A: b\r\n" * 20_000],
    ids=["trailer", "chunk extension", "many trailers"],
)
async def test_what_never_becomes_a_body_is_cut_off(endless: bytes) -> None:
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
        writer.write(CHUNKED + endless)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                for _ in range(20 * MAX_HEAD_BYTES // 4096):
                    writer.write(b"x" * 4096)
                    await writer.drain()
                await reader.read()
        writer.close()
        assert (await here.client.get("/say/1")).status_code == 200


async def test_a_body_that_is_no_http_is_a_problem_of_its_sender() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, CHUNKED + b"3\r\nabc\r\nnonsense\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_body_that_nobody_reads_is_left_aside_and_the_connection_goes_on() -> None:
    head = b"POST /private HTTP/1.1\r\n" + HOST + b"Content-Length: 300000\r\n\r\n"
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
        writer.write(head)
        first = await asyncio.wait_for(reader.readuntil(b"}"), 5)
        writer.write(b"x" * 300_000 + get("/say/2", LAST))
        rest = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert first.startswith(b"HTTP/1.1 401")
    assert b'{"id":"2"}' in rest


async def test_an_expected_body_that_is_not_wanted_ends_the_connection() -> None:
    head = b"POST /private HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, head)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answer


async def test_another_protocol_is_not_spoken_but_its_request_is_answered() -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, get("/say/1", upgrade) + b"\x81\x05hello")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b'{"id":"1"}')


async def test_an_old_client_gets_no_chunks() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, get("/short").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answer.endswith(b"\r\n\r\nabc")
    assert b"chunked" not in answer


async def test_an_answer_shorter_than_it_promised_ends_the_connection() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, get("/too-short") + get("/say/2"))
    assert answer.endswith(b"abc")


async def test_no_header_can_be_smuggled_into_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with running(ROUTES) as here:
        answer = await here.client.get("/split")
    assert answer.status_code == 500
    assert "set-cookie" not in answer.headers


async def test_a_handler_that_needs_a_task_has_one() -> None:
    async with running(ROUTES) as here:
        assert (await here.client.get("/timed")).json() == {"timed": True}


async def test_the_end_of_a_stream_is_the_end_of_its_connection_and_said_so() -> None:
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
        writer.write(get("/stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" in head
        writer.write(b"x" * 100_000)
        await asyncio.sleep(0.1)
        await here.edge.end_streams()
        assert (await asyncio.wait_for(reader.read(), 5)).endswith(b"0\r\n\r\n")
        writer.close()


async def test_idle_connections_are_kept_from_one_heartbeat_to_the_next_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert idle_timeout_for(30.0) == IDLE_TIMEOUT_S > 2 * 30.0
    assert idle_timeout_for(60.0) == 150.0
    monkeypatch.setattr(http_server, "SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(http_server.serve, "__kwdefaults__", {**kwdefaults(), "idle_timeout_s": 0.3})
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
        for _ in range(4):
            await asyncio.sleep(0.1)
            writer.write(get("/say/1"))
            await reader.readuntil(b"}")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


@pytest.mark.parametrize("more", [b"", LAST], ids=["kept open", "closed"])
async def test_a_reader_that_never_takes_its_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    monkeypatch.setattr(http_server, "SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(http_server.serve, "__kwdefaults__", {**kwdefaults(), "idle_timeout_s": 0.2})
    async with running(ROUTES) as here:
        reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port, limit=1000)
        writer.write(get("/large", more))
        await asyncio.sleep(1.5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(1_000_000), 5):
                received += len(piece)
        writer.close()
    assert received < 50_000_000, "what nobody took was not kept for ever"


def kwdefaults() -> dict[str, Any]:
    return dict(http_server.serve.__kwdefaults__ or {})


async def test_when_files_run_short_the_idle_leave_and_strangers_are_not_let_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "SWEEP_EVERY_S", 0.02)
    monkeypatch.setattr(http_server, "CROWDED_IDLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(http_server, "most_connections", lambda: 4)
    async with running(ROUTES) as here:
        held = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(here.listening.host, here.listening.port)
            writer.write(get("/say/1"))
            await reader.readuntil(b"}")
            held.append((reader, writer))
        with contextlib.suppress(ConnectionError):
            assert await raw_exchange(here.listening, b"") == b""
        ends = [asyncio.create_task(reader.read()) for reader, _ in held]
        done, others = await asyncio.wait(ends, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert {end.result() for end in done} == {b""}
        for end in others:
            end.cancel()
        for _, writer in held:
            writer.close()
        answer = await here.client.get("/say/1", headers={"Authorization": f"Bearer {ADMIN}"})
        assert answer.status_code == 200
