"""Event streams: bounded, quick to notice a reader that is gone or does not read, and easy to end."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.types import Receive, Scope, Send

RawHeaders = list[tuple[bytes, bytes]]

MAX_BUFFER_BYTES = 4 * 1024 * 1024
WRITE_TIMEOUT_S = 15.0
PING_EVERY_S = 15.0
RETRY_LINE = b"retry: 2000\n\n"
ABORT_EXTENSION = "simpletuner.abort"

EVENT_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Stream(Protocol):
    """An answer that writes itself, until it is told to end."""

    def end(self, why: str = ...) -> None: ...
    async def respond(self, scope: Scope, receive: Receive, send: Send, headers: RawHeaders) -> None: ...


class EventStream:
    """One reader. `push` never waits; a reader that lets the buffer fill or a write stand still is dropped.

    `on_close(why)` is called once: `gone` (the reader left), `slow`, or what `end` was told.
    """

    __slots__ = (
        "_buffer",
        "_buffered",
        "_max",
        "_on_close",
        "_ping",
        "_ping_every_s",
        "_timer",
        "_wake",
        "_write_timeout_s",
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
        self._buffer: list[bytes] = [RETRY_LINE]
        self._buffered = len(RETRY_LINE)
        self._max = max_buffer_bytes
        self._on_close = on_close
        self._ping = ping
        self._ping_every_s = ping_every_s
        self._write_timeout_s = write_timeout_s
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def push(self, chunk: bytes) -> bool:
        """False if the stream has ended, by this push too."""
        if self.why is not None:
            return False
        if self._buffered + len(chunk) > self._max:
            self._close("slow")
            return False
        self._buffer.append(chunk)
        self._buffered += len(chunk)
        self._wake.set()
        return True

    def end(self, why: str = "ended", last: bytes = b"") -> None:
        """What was pushed before is still sent, then `last`, then a clean end."""
        if last:
            self.push(last)
        self._close(why)

    async def respond(self, scope: Scope, receive: Receive, send: Send, headers: RawHeaders) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.start", "status": 200, "headers": headers + EVENT_HEADERS})
            self._ping_later()
            await self._write_all(send)
        except TimeoutError:
            self._close("slow")
        finally:
            self._close("gone")
            watcher.cancel()
            if self.why == "slow":
                abort(scope)

    async def _write_all(self, send: Send) -> None:
        while True:
            self._wake.clear()
            if self._buffer and self.why not in ("gone", "slow"):
                chunk, self._buffer, self._buffered = b"".join(self._buffer), [], 0
                async with asyncio.timeout(self._write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            elif self.why is None:
                await self._wake.wait()
            else:
                break
        if self.why not in ("gone", "slow"):
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        await until_gone(receive)
        self._close("gone")

    def _ping_later(self) -> None:
        if self._ping and self.why is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._ping_every_s, self._send_ping, self._ping
            )

    def _send_ping(self, ping: Callable[[], bytes]) -> None:
        if self.push(ping()):
            self._ping_later()

    def _close(self, why: str) -> None:
        if self.why is not None:
            return
        self.why = why
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._wake.set()
        if self._on_close:
            on_close, self._on_close = self._on_close, None
            on_close(why)


class Chunks:
    """A long answer read from a generator at the reader's pace; the generator is closed when the reader leaves.

    One that is told to end early ends cleanly, unless it has promised its length: then the connection is dropped.
    """

    __slots__ = ("_chunks", "_ended", "_headers", "_started", "_status", "_write_timeout_s", "_writer")

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        headers: RawHeaders = EVENT_HEADERS,
        status: int = 200,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self._chunks = chunks
        self._status = status
        self._headers = headers
        self._write_timeout_s = write_timeout_s
        self._writer: asyncio.Task[None] | None = None
        self._started = False
        self._ended = False

    def end(self, why: str = "ended") -> None:
        self._ended = True
        if self._writer:
            self._writer.cancel()

    async def respond(self, scope: Scope, receive: Receive, send: Send, headers: RawHeaders) -> None:
        writer = self._writer = asyncio.create_task(self._write_chunks(send, headers))
        watcher = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone = watcher.done()
            watcher.cancel()
            writer.cancel()
        await asyncio.wait((writer,))
        failure = None if writer.cancelled() else writer.exception()
        if isinstance(failure, TimeoutError):
            abort(scope)
        elif failure:
            raise failure
        elif self._ended and any(name == b"content-length" for name, _ in self._headers):
            abort(scope)
        elif self._started and not gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_chunks(self, send: Send, headers: RawHeaders) -> None:
        async with aclosing(self._chunks):
            await send(
                {"type": "http.response.start", "status": self._status, "headers": headers + self._headers}
            )
            self._started = True
            async for chunk in self._chunks:
                async with asyncio.timeout(self._write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if self._ended:
                    break


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def abort(scope: Scope) -> None:
    """Drops the connection with what is still buffered; a plain close would wait for the reader."""
    extension = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if extension:
        extension["abort"]()
