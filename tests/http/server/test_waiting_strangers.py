"""Strangers who connect and say nothing, or never end their handshake, keep nobody else out."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from simpletuner_fleet.http.server.shared_port import TLS_HANDSHAKE, SharedPort

MOST_WAITING = 4
STRANGERS = 12


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"welcome")


@asynccontextmanager
async def shared_port(plain_from: Callable[[str], bool]) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        listener.setblocking(False)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        port = SharedPort(listener, context, plain_from, lambda tls: Greeter(), MOST_WAITING)
        yield listener.getsockname()[1]
        port.close()
        await asyncio.sleep(0)


async def connected(port: int, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    await asyncio.sleep(0.01)
    return reader, writer


@pytest.mark.parametrize("first", [b"", bytes([TLS_HANDSHAKE])], ids=["silent", "half a handshake"])
async def test_who_waits_longest_makes_room(first: bytes) -> None:
    async with shared_port(lambda peer: True) as port:
        strangers = [await connected(port, first) for _ in range(STRANGERS)]
        left = [await is_let_go(reader) for reader, _ in strangers]
        assert left == [True] * (STRANGERS - MOST_WAITING) + [False] * MOST_WAITING
        reader, writer = await connected(port, b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(reader.read(7), 5) == b"welcome"
        for one in (writer, *(writer for _, writer in strangers)):
            one.transport.abort()


async def test_who_was_refused_does_not_hold_a_place_for_long() -> None:
    async with shared_port(lambda peer: False) as port:
        refused = [await connected(port, b"GET / HTTP/1.1\r\n\r\n") for _ in range(STRANGERS)]
        for reader, writer in refused:
            assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 426")
            writer.transport.abort()


async def is_let_go(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 0.1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
