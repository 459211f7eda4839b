"""Streams events: within bounds, quick to notice a reader that is gone or does not read, and easy to end."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, RawHeaders, head_of

MAX_BUFFER_BYTES = 4 * 1024 * 1024
WRITE_TIMEOUT_S = 15.0
PING_EVERY_S = 15.0
RETRY_LINE = b"retry: 2000\n\n"

EVENT_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class StreamConnection(Protocol):
    """A stream line is the connection beneath a stream of events."""

    def send(self, chunk: bytes) -> bool:
        """Sends a chunk.

        Returns False if the reader has fallen behind: the next one waits until `EventStream.resume`.
        """

    def end_stream(self) -> None:
        """Ends the answer and the connection cleanly."""

    def abort(self) -> None:
        """Drops the connection with what is still buffered; a plain close would wait for the reader."""


class EventStream:
    """Streams events to one reader, with neither task nor frame to serve it.

    `push` never waits; a reader that lets the buffer fill or a write stall is dropped.

    `on_close(why)` is called once: `gone` (the reader left), `slow`, or what was given to `end`.
    """

    __slots__ = (
        "_buffer",
        "_buffered",
        "_connection",
        "_flush_planned",
        "_max",
        "_on_close",
        "_ping",
        "_ping_every_s",
        "_stalled",
        "_timer",
        "_write_timeout_s",
        "on_detached",
        "why",
    )

    def __init__(
        self,
        *,
        on_close: Callable[[str], None] | None = None,
        ping: Callable[[], bytes] | None = None,
        ping_every_s: float = PING_EVERY_S,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self.why: str | None = None
        """Why it ended; None while it lives."""
        self._buffer: list[bytes] | None = [RETRY_LINE]
        self._buffered = len(RETRY_LINE)
        self._max = max_buffer_bytes
        self._on_close = on_close
        self.on_detached: Callable[[EventStream], object] | None = None
        """Called once, when no connection carries this stream any more."""
        self._ping = ping
        self._ping_every_s = ping_every_s
        self._write_timeout_s = write_timeout_s
        self._connection: StreamConnection | None = None
        self._flush_planned = False
        self._timer: asyncio.TimerHandle | None = None
        """The next ping, or, while the reader stands still, the end of our patience."""
        self._stalled = False

    def push(self, chunk: bytes) -> bool:
        """Queues a chunk; returns False if the stream has ended, also if this push ended it."""
        if self.why is not None:
            return False
        if self._buffered + len(chunk) > self._max:
            self._drop_slow_reader()
            return False
        if self._buffer is None:
            self._buffer = [chunk]
        else:
            self._buffer.append(chunk)
        self._buffered += len(chunk)
        self._plan_flush()
        return True

    def end(self, why: str = "ended", last: bytes = b"") -> None:
        """Ends the stream cleanly, after sending what was pushed before and then `last`."""
        if last:
            self.push(last)
        self._close(why)
        self._plan_flush()

    def attach(self, connection: StreamConnection) -> None:
        """Starts sending on this line, where the answer has begun."""
        self._connection = connection
        if self.why in ("slow", "gone"):
            self._drop_slow_reader()
            return
        self._ping_later()
        self._flush()

    def resume(self) -> None:
        """Goes on sending, since the reader has caught up."""
        if self._stalled:
            self._stalled = False
            self._stop_timer()
            self._ping_later()
            self._flush()

    def lost(self) -> None:
        """Ends the stream, since the reader has left."""
        self._close("gone")
        self._detach()

    def _plan_flush(self) -> None:
        """Plans to send all that is pushed in one turn of the event loop as one piece."""
        if self._connection and not self._flush_planned and not self._stalled:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._connection is None or self._stalled:
            return
        if self._buffer:
            chunk, self._buffer, self._buffered = b"".join(self._buffer), None, 0
            if not self._connection.send(chunk):
                self._wait_for_reader()
                return
        if self.why is not None:
            connection = self._connection
            self._detach()
            connection.end_stream()

    def _wait_for_reader(self) -> None:
        self._stalled = True
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._write_timeout_s, self._drop_slow_reader)

    def _drop_slow_reader(self) -> None:
        self._close("slow")
        connection = self._connection
        self._detach()
        if connection:
            connection.abort()

    def _ping_later(self) -> None:
        if self._ping and self.why is None and not self._stalled:
            self._timer = asyncio.get_running_loop().call_later(self._ping_every_s, self._send_ping)

    def _send_ping(self) -> None:
        if self._ping and self.push(self._ping()):
            self._ping_later()

    def _close(self, why: str) -> None:
        if self.why is not None:
            return
        self.why = why
        if not self._stalled:
            self._stop_timer()
        if self._on_close:
            on_close, self._on_close = self._on_close, None
            on_close(why)

    def _detach(self) -> None:
        self._stop_timer()
        self._connection = self._buffer = None
        on_detached, self.on_detached = self.on_detached, None
        if on_detached:
            on_detached(self)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class Chunks:
    """Sends a long answer from a generator at the reader's pace; the generator is closed when the reader leaves.

    One that is told to end early ends cleanly, unless it has promised its length: then the connection is dropped.
    `on_close` is called once, however it ended.
    """

    __slots__ = ("_chunks", "_ended", "_headers", "_on_close", "_status", "_write_timeout_s", "_writer")

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        headers: RawHeaders = EVENT_HEADERS,
        status: int = 200,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._chunks = chunks
        self._on_close = on_close
        self._status = status
        self._headers = headers
        self._write_timeout_s = write_timeout_s
        self._writer: asyncio.Task[None] | None = None
        self._ended = False

    def end(self, why: str = "ended") -> None:
        self._ended = True
        if self._writer:
            self._writer.cancel()

    def lost(self) -> None:
        """Ends it, since nobody reads it any more or ever will."""
        self.end("gone")
        on_close, self._on_close = self._on_close, None
        if on_close:
            on_close()

    async def respond(self, exchange: Exchange, headers: RawHeaders) -> None:
        try:
            await self._respond(exchange, headers)
        finally:
            self.lost()

    async def _respond(self, exchange: Exchange, headers: RawHeaders) -> None:
        head = head_of(self._status, [*headers, *self._headers])
        writer = self._writer = asyncio.create_task(self._write_chunks(exchange, head))
        exchange.on_lost(writer.cancel)
        try:
            await asyncio.wait((writer,))
        finally:
            writer.cancel()
        failure = None if writer.cancelled() else writer.exception()
        if isinstance(failure, TimeoutError) or (self._ended and self._promised_length):
            exchange.cut(at_once=True)
        elif failure and not isinstance(failure, CallerGone):
            raise failure
        elif exchange.begun:
            exchange.finish()

    @property
    def _promised_length(self) -> bool:
        return any(name == b"content-length" for name, _ in self._headers)

    async def _write_chunks(self, exchange: Exchange, head: bytes) -> None:
        async with aclosing(self._chunks):
            exchange.begin(head)
            while not self._ended:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    return
                async with asyncio.timeout(self._write_timeout_s):
                    await exchange.write(chunk)


Stream = EventStream | Chunks
"""An answer that writes itself, until it is told to end."""
