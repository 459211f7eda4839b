"""Keeps connections to the orchestrator that leads: one request at a time on each, reused for the next."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

import httptools

READ_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 2.0
MOST_IDLE_S = 20.0
MOST_IDLE = 64
BROKEN = (OSError, EOFError, TimeoutError, httptools.HttpParserError)
"""What a connection to a leader that is gone, or no orchestrator at all, comes to."""


class CountingReader(asyncio.StreamReader):
    """Counts the bytes that have come, whether anybody has read them or not."""

    came_bytes = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        self.came_bytes += len(data)
        super().feed_data(data)


class Upstream:
    """Holds one connection to the orchestrator that leads. It reads one answer at a time."""

    def __init__(self, reader: CountingReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._read_bytes = 0
        self.used_at = time.monotonic()
        self._is_reused = self._is_given_up = False
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self._pieces: list[bytes] = []
        self._head_is_here = self._whole = self._stays_open = False
        self._was_answered = False
        """Whether a byte of the answer has come."""

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._whole:
            raise httptools.HttpParserError("the leader gave two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = []
        else:
            self._head_is_here = True
            # The parser knows this only as long as it has not read the body to its end.
            self._stays_open = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._whole = self._head_is_here

    # What the forwarder calls

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read_head(self) -> None:
        while not self._head_is_here:
            await self._read()

    async def body(self) -> AsyncIterator[bytes]:
        while True:
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield b"".join(pieces)
            elif self._whole:
                return
            else:
                await self._read()

    async def _read(self) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise EOFError("the leader hung up")
        self._was_answered = True
        self._read_bytes += len(data)
        self._parser.feed_data(data)

    def may_be_kept(self, without_body: bool) -> bool:
        """Tells, once the answer was read, whether to reuse the connection.

        `without_body` means that by its head no body follows.
        """
        over = self._whole or without_body
        if not over or not self._stays_open or self._writer.is_closing():
            return False
        self._begin()
        self.used_at = time.monotonic()
        self._is_reused = True
        return True

    @property
    def is_usable(self) -> bool:
        """Tells whether to send the next request here.

        What came while nothing was asked is no answer to it: a proxy may say that the connection was idle for too long.
        """
        closed = self._reader.at_eof() or self._writer.is_closing()
        unasked = self._reader.came_bytes != self._read_bytes
        return not closed and not unasked and time.monotonic() - self.used_at < MOST_IDLE_S

    @property
    def was_closed_before(self) -> bool:
        """Tells, of a connection that broke, whether the leader may have closed it before it saw the request."""
        return self._is_reused and not self._was_answered and not self._is_given_up

    def give_up(self) -> None:
        """Breaks the connection, since nobody waits for its answer any more."""
        self._is_given_up = True
        self.abort()

    def abort(self) -> None:
        with suppress(OSError):
            self._writer.transport.abort()


class LeaderConnections:
    """Holds the connections to one leader. Its successor gets connections of its own, and these end."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._context = context
        self._idle: list[Upstream] = []
        self._busy: set[Upstream] = set()
        self._closed = False

    async def take(self, *, fresh: bool) -> Upstream:
        while self._idle and not fresh:
            upstream = self._idle.pop()
            if upstream.is_usable:
                self._busy.add(upstream)
                return upstream
            upstream.abort()
        upstream = await self._connected()
        self._busy.add(upstream)
        if self._closed:
            upstream.give_up()
        return upstream

    async def _connected(self) -> Upstream:
        loop, reader = asyncio.get_running_loop(), CountingReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, _ = await loop.create_connection(
                lambda: protocol, self._host, self._port, ssl=self._context
            )
        return Upstream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def give_back(self, upstream: Upstream, *, without_body: bool) -> None:
        self._busy.discard(upstream)
        while self._idle and not self._idle[0].is_usable:  # The first has been idle for longest.
            self._idle.pop(0).abort()
        if upstream.may_be_kept(without_body) and not self._closed and len(self._idle) < MOST_IDLE:
            self._idle.append(upstream)
        else:
            upstream.abort()

    def drop(self, upstream: Upstream) -> None:
        self._busy.discard(upstream)
        upstream.abort()

    def close(self) -> None:
        """Ends all connections, even those whose caller still waits: this leader does not lead any more."""
        self._closed = True
        for upstream in (*self._idle, *self._busy):
            upstream.give_up()
        self._idle.clear()


def head_bytes(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")
