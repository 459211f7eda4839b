"""Calls over kept connections, against real sockets that answer as told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.wire.call_connections import (
    CallAnswer,
    CallConnections,
    CallFailed,
    CallTimeouts,
)
from simpletuner_fleet.client.trust import Choices, context_for
from tests.client.test_trust import SECRET, make, tls_server

QUICK = CallTimeouts(connect_s=5.0, silence_s=5.0, whole_s=30.0)
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
CLOSES = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


class ScriptedServer:
    """Answers the n-th request with the n-th of `answers`, the last one again and again; None hangs up instead."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open[asyncio.current_task()] = writer
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
                if b"Connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(*answers)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        for writer in scripted.open.values():
            writer.transport.abort()
        await asyncio.gather(*filter(None, scripted.open))


@asynccontextmanager
async def answering(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """One connection's worth; waits until it is over."""
    over = asyncio.Event()

    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(reader, writer)
        writer.transport.abort()
        over.set()

    server = await asyncio.start_server(serve_once, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await over.wait()
        server.close()
        await asyncio.sleep(0.05)  # for what is closed already to be gone


async def call(
    connections: CallConnections, content: bytes = b"{}", timeouts: CallTimeouts = QUICK
) -> CallAnswer:
    answer = await connections.request("POST", "/a", {"X-Worker-Token": "t"}, content, timeouts)
    return answer._replace(ends="")  # differs with each connection


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


@pytest.mark.parametrize("answer", [HELLO, CHUNKED, INTERIM + HELLO])
async def test_calls_one_after_the_other_share_a_connection(answer: bytes) -> None:
    async with serving(answer) as server:
        connections = CallConnections(server.url + "/base/", None)
        assert [await call(connections, content) for content in (b"1", b"2", b"")] == [
            CallAnswer(200, b"hello")
        ] * 3
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST /base/a HTTP/1.1\r\n")
        assert [request.rpartition(b"\r\n\r\n")[2] for request in server.requests] == [b"1", b"2", b""]
        connections.close()


async def test_calls_at_once_have_a_connection_each() -> None:
    async with serving(HELLO) as server:
        connections = CallConnections(server.url, None)
        answers = await asyncio.gather(*(call(connections) for _ in range(5)))
        assert {answer.content for answer in answers} == {b"hello"}
        assert server.connections == 5
        connections.close()


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async with serving(CLOSES, HELLO) as server:
        connections = CallConnections(server.url, None)
        assert await call(connections) == await call(connections) == CallAnswer(200, b"hello")
        assert server.connections == 2
        connections.close()


async def test_a_kept_connection_that_is_closed_in_the_moment_of_the_call_is_replaced() -> None:
    async with serving(HELLO, None, HELLO) as server:
        connections = CallConnections(server.url, None)
        await call(connections)
        assert await call(connections) == CallAnswer(200, b"hello")
        assert (server.connections, len(server.requests)) == (2, 3)
        connections.close()


async def test_a_new_connection_that_is_closed_without_an_answer_is_a_failure() -> None:
    async with serving(None) as server:
        connections = CallConnections(server.url, None)
        with pytest.raises(CallFailed):
            await call(connections)
        assert server.connections == 1


async def test_a_connection_outlives_a_pause_and_not_a_longer_one() -> None:
    async with serving(HELLO) as server:
        connections = CallConnections(server.url, None)
        await call(connections)
        await call(connections)
        assert server.connections == 1
        connections.keep_idle_s = 0.0
        await call(connections)
        assert server.connections == 2
        connections.close()


async def test_an_answer_that_comes_before_all_is_sent_is_heard() -> None:
    """As of a proxy that takes no body of this size."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await asyncio.sleep(0.2)

    async with answering(refuse) as url:
        assert await call(CallConnections(url, None), b"x" * 8_000_000) == CallAnswer(413, b"big")


async def test_a_slow_line_is_no_silence() -> None:
    async def take_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = 12_000_000
        while left:
            left -= len(await reader.read(1_000_000))
            await asyncio.sleep(0.03)
        writer.write(HELLO)
        await writer.drain()

    async with answering(take_slowly) as url:
        slow = CallTimeouts(connect_s=5.0, silence_s=1.5, whole_s=30.0)
        connections = CallConnections(url, None)
        assert await call(connections, b"x" * 12_000_000, slow) == CallAnswer(200, b"hello")
        connections.close()


async def test_silence_ends_a_call() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello") as server:
        connections = CallConnections(server.url, None)
        with pytest.raises(CallFailed) as silent:
            await call(connections, timeouts=CallTimeouts(connect_s=5.0, silence_s=0.1, whole_s=30.0))
        assert isinstance(silent.value.__cause__, TimeoutError)
        with pytest.raises(CallFailed):
            await call(connections, timeouts=CallTimeouts(connect_s=5.0, silence_s=0.1, whole_s=30.0))
        assert server.connections == 2


async def test_what_is_not_http_is_a_failure() -> None:
    async with serving(b"SSH-2.0-OpenSSH_9.6\r\n\r\n") as server:
        with pytest.raises(CallFailed):
            await call(CallConnections(server.url, None))


async def test_a_header_that_cannot_be_sent_is_a_failure_and_sends_nothing() -> None:
    async with serving(HELLO) as server:
        connections = CallConnections(server.url, None)
        with pytest.raises(CallFailed):
            await connections.request("POST", "/a", {"X-Worker-Token": "a\r\nb: c"}, b"", QUICK)
        assert server.connections == 0


async def test_a_cancelled_call_leaves_no_connection_behind() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello", HELLO) as server:
        connections = CallConnections(server.url, None)
        calling = asyncio.create_task(call(connections))
        await until(lambda: len(server.requests) == 1)
        calling.cancel()
        await asyncio.wait({calling})
        assert await call(connections) == CallAnswer(200, b"hello")
        assert server.connections == 2
        connections.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_where_nobody_listens_is_told_as_refused(host: str) -> None:
    async with serving(HELLO) as server:
        port = server.url.rpartition(":")[2]
    with pytest.raises(CallFailed) as refused:
        await call(CallConnections(f"http://{host}:{port}", None))
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)


async def test_the_token_goes_to_the_pinned_certificate_alone(tmp_path: Path) -> None:
    leaf, impostor = make("fleet server"), make("fleet server")
    with tls_server(tmp_path, leaf) as server:
        context = context_for(server.url, Choices(fingerprint=leaf.pin), print)
        connections = CallConnections(server.url, context)
        headers = {"X-Worker-Token": SECRET}
        answer = await connections.request("GET", "/hello", headers, b"", QUICK)
        assert (answer.status, answer.content) == (200, b"hello")
        connections.close()
        server.context.load_cert_chain(*impostor.files(tmp_path, "impostor"))
        received = len(server.received)
        with pytest.raises(CallFailed) as refused:
            await connections.request("GET", "/hello", headers, b"", QUICK)
        assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)
        assert len(server.received) == received


async def test_the_hosts_name_is_checked_against_a_certificate_of_an_authority(tmp_path: Path) -> None:
    authority = make("fleet CA", ca=True)
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(authority.pem)
    with tls_server(tmp_path, make("fleet server", authority)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        context = context_for(url, Choices(ca_cert=str(ca_file)), print)
        with pytest.raises(CallFailed, match=r"[Hh]ostname mismatch"):
            await connections_get(url, context)
        assert server.received == []


async def connections_get(url: str, context: ssl.SSLContext | None) -> CallAnswer:
    return await CallConnections(url, context).request("GET", "/", {"X-Worker-Token": SECRET}, b"", QUICK)
