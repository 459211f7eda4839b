"""A stream that is answered by nobody, or by something else, is given up in time; odd headers end no agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from simpletuner_fleet.agent.wire import client as client_module
from simpletuner_fleet.agent.wire import direct_connections
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.direct_connections import DirectFailed
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.protocol.messages import TERM_HEADER, Heartbeat


@asynccontextmanager
async def answering(answer: bytes, drop: bytes = b"") -> AsyncIterator[OrchestratorClient]:
    """A server that says this to everybody and then keeps the line open: in silence, or with a drop now and then."""
    over = asyncio.Event()
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(EOFError):  # on a slow machine the client gives up before it has asked
            await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        while drop and not over.is_set():
            writer.write(drop)
            await asyncio.sleep(0.02)
        await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = OrchestratorClient(f"http://127.0.0.1:{port}", lambda: "t", None)
        yield client
        over.set()
        await client.close()
        await asyncio.gather(*filter(None, serving))


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 500\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\nX-Half: a"],
    ids=["nothing", "half a refusal", "half a head"],
)
async def test_a_stream_that_is_not_answered_is_given_up(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.1)
    async with answering(answer) as client:
        client.answer_timeout_s = 0.2
        with pytest.raises(Unreachable):
            async with asyncio.timeout(20), client.stream("/api/workers/stream?x=1", "", lambda: 60.0):
                pass


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nX-Padding: ", b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n"],
    ids=["in its head", "in its body"],
)
async def test_a_heartbeat_is_not_held_by_an_answer_that_drips(answer: bytes) -> None:
    async with answering(answer, drop=b" ") as client:
        client.answer_timeout_s = 0.2
        with pytest.raises(Unreachable):
            async with asyncio.timeout(5):
                await client.heartbeat(Heartbeat(worker_id="w", status="idle", attempts=[], gpus=[]))


@pytest.mark.parametrize("term", [b"\xff", b"9" * 5000, b"\xc2\xb2", b"-1", b""])
async def test_a_term_that_is_none_is_passed_over(term: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + TERM_HEADER.encode() + b": " + term + b"\r\nContent-Length: 2\r\n\r\n{}"
    async with answering(head) as client:
        with pytest.raises(Unreachable):  # for what it says is no answer to a heartbeat
            await client.heartbeat(Heartbeat(worker_id="w", status="idle", attempts=[], gpus=[]))
        assert client._addresses._newest_term == 0


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nX-Padding: ", b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 50000\r\n\r\n"],
    ids=["in its head", "in its refusal"],
)
async def test_a_file_is_not_waited_for_where_what_precedes_it_drips(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.1)
    async with answering(answer, drop=b" ") as client:
        client.answer_timeout_s = 0.2
        with pytest.raises(Unreachable):
            async with asyncio.timeout(20), client.fetch_data("j_1", "0" * 64, 0):
                pass


async def test_the_storage_is_left_where_the_head_of_its_answer_drips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_connections, "CONNECT_S", 0.1)
    monkeypatch.setattr(direct_connections, "ANSWER_S", 0.2)
    async with answering(b"HTTP/1.1 200 OK\r\nX-Padding: ", drop=b" ") as client:
        with pytest.raises(DirectFailed):
            async with asyncio.timeout(20), client.direct.get(f"{client.url}/bucket/x", 0):
                pass
