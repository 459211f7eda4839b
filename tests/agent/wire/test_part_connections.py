"""Parts on their way: over plain lines and TLS, refused half-way, given up at once, and of a size that suits the line."""

import asyncio
import errno
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from simpletuner_fleet.agent.wire.bandwidth import SMALLEST_PART_BYTES, Bandwidth, PartSize
from simpletuner_fleet.agent.wire.part_connections import (
    FileShrunk,
    NoAnswer,
    Part,
    PartConnections,
    PartTimeouts,
)
from simpletuner_fleet.http.server.tls import private_authority, server_context
from simpletuner_fleet.protocol.uploads import PART_BYTES

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE = PartTimeouts(connect_s=5.0, step_s=5.0, answer_s=5.0)
CONTENT = bytes(range(256)) * 8_000
MIB = 2**20


@asynccontextmanager
async def listening(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    answering: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.append(task)
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        await asyncio.wait_for(asyncio.gather(*answering), 5)


def echoed(line: bytes, body: bytes) -> bytes:
    return b"%b\n%d %b" % (line, len(body), hashlib.sha256(body).hexdigest().encode())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says the request's first line and the digest of its body, again and again."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = echoed(head.split(b"\r\n")[0], await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_bytes(CONTENT)
    return tmp_path / "weights"


async def sent(lines: PartConnections, file: Path, offset: int, count: int) -> tuple[int, bytes]:
    part = Part(file=file, offset=offset, count=count)
    return await lines.put("/objects/x?offset=1", {"X-Worker-Token": "token"}, part, PATIENCE)


@pytest.mark.parametrize("secure", [False, True])
async def test_any_part_of_a_file_arrives_and_the_line_is_kept(
    tmp_path: Path, file: Path, secure: bool
) -> None:
    authority = private_authority(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority.ca)) if secure else None
    async with listening(echo, server_context(authority) if secure else None) as url:
        lines = PartConnections(f"{url}/under/", trusting)
        for offset, count in [(0, len(CONTENT)), (1_000_001, 999), (len(CONTENT), 0), (5, 1_500_000)]:
            status, answer = await sent(lines, file, offset, count)
            assert status == 200
            assert answer == echoed(
                b"PUT /under/objects/x?offset=1 HTTP/1.1", CONTENT[offset : offset + count]
            )
        assert len(lines._idle) == 1
        lines.close()


async def test_a_refusal_that_comes_before_the_part_is_sent_is_heard(file: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\nConnection: close\r\n\r\nstale")
        await writer.drain()
        await reader.read()

    async with listening(refuse) as url:
        lines = PartConnections(url, None)
        assert await sent(lines, file, 0, len(CONTENT)) == (409, b"stale")
        assert lines._idle == []
        lines.close()


async def test_a_file_that_is_shorter_than_it_was_or_gone_is_told_apart_from_a_dead_line(file: Path) -> None:
    async with listening(echo) as url:
        lines = PartConnections(url, None)
        with pytest.raises(FileShrunk):
            await sent(lines, file, 1000, len(CONTENT))
        with pytest.raises(FileNotFoundError):
            await sent(lines, file.with_name("gone"), 0, 10)
        lines.close()
    with pytest.raises(NoAnswer) as caught:
        await sent(lines := PartConnections(url, None), file, 0, 10)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ECONNREFUSED
    lines.close()


async def test_a_part_nobody_waits_for_any_more_ends_at_once(file: Path) -> None:
    begun, hung_up = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await reader.read()
        hung_up.set()

    async with listening(never_answer) as url:
        lines = PartConnections(url, None)
        sending = asyncio.create_task(sent(lines, file, 0, 1000))
        await asyncio.wait_for(begun.wait(), 20)
        sending.cancel()
        await asyncio.wait_for(hung_up.wait(), 3)
        lines.close()


def test_parts_grow_on_a_fast_line_and_shrink_on_a_slow_one() -> None:
    size = PartSize(Bandwidth())
    assert size.bytes == 8 * MIB
    size.took(8 * MIB, 0.1)
    assert size.bytes == 16 * MIB
    size.took(100, 0.001)
    assert size.bytes == 16 * MIB, "a small one tells nothing"
    for _ in range(10):
        size.took(size.bytes, 0.1)
    assert size.bytes == PART_BYTES
    size.took(PART_BYTES, 2.0)
    assert size.bytes == PART_BYTES
    size.took(PART_BYTES, 30.0)
    size.broke()
    assert size.bytes == PART_BYTES // 4
    for _ in range(20):
        size.broke()
    assert size.bytes == SMALLEST_PART_BYTES
    limited = PartSize(Bandwidth(8.0))
    limited.took(limited.bytes, 0.1)
    assert limited.bytes == 1_000_000


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nX-Padding: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 50000\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
    ids=["in its head", "in its body", "before it hangs up", "until it hangs up"],
)
async def test_a_part_is_not_held_by_an_answer_that_drips(file: Path, head: bytes) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        while not reader.at_eof():
            writer.write(b" ")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1000), 0.02)

    async with listening(drip) as url:
        connections = PartConnections(url, None)
        timeouts = PartTimeouts(connect_s=5.0, step_s=5.0, answer_s=0.2)
        with pytest.raises(NoAnswer):
            async with asyncio.timeout(5):
                await connections.put("/x", {}, Part(file=file, offset=0, count=100), timeouts)
        connections.close()
