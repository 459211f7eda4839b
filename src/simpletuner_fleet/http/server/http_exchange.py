"""Implements an exchange over HTTP/1.1, on a connection that may carry others after it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from simpletuner_fleet.core.errors import Malformed
from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, HeadMemory
from simpletuner_fleet.http.edge.streams import EventStream

MAX_UNREAD_BYTES = 64 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
SAYS_CLOSE = b"\r\n" + CLOSE
NO_BODY = (b"204", b"304")


class Carrier(Protocol):
    """A carrier is the connection that carries a request and its answer."""

    writing_paused: bool

    @property
    def ends(self) -> str: ...
    def write(self, data: bytes) -> None: ...
    def date_line(self) -> bytes: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def answered(self, exchange: "HttpExchange") -> None: ...
    def carry(self, stream: EventStream, *, chunked: bool) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class HttpExchange(Exchange):
    __slots__ = (
        "_chunked",
        "_connection",
        "_lost",
        "_modern",
        "_on_lost",
        "_pieces",
        "_promised",
        "_reader",
        "_spoilt",
        "_unread_bytes",
        "_writer",
        "keep_alive",
        "whole",
    )

    def __init__(
        self,
        connection: Carrier,
        method: str,
        path: str,
        query: bytes,
        headers: dict[str, str],
        peer: str,
        secure: bool,
        version: str,
        keep_alive: bool,
        memory: HeadMemory | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.peer = peer
        self.secure = secure
        self.in_task = True
        self.memory = memory
        self.whole = False
        """Whether the last byte of the body is here."""
        self.keep_alive = keep_alive and version != "1.0"
        self._modern = version != "1.0"
        """Knows chunks and 100 Continue."""
        self._connection: Carrier | None = connection
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._on_lost: Callable[[], object] | None = None
        self.begun = self._chunked = self._lost = self._spoilt = False
        self._promised = 0

    # What the edge calls

    @property
    def ends(self) -> str:
        return self._connection.ends if self._connection else ""

    def whole_body(self) -> bytes | None:
        if not self.whole or self._spoilt:
            return None
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def receive(self) -> tuple[bytes, bool]:
        connection = self._connection
        if connection and not (self._pieces or self.whole or self._lost or self._spoilt):
            self._ask_for_body(connection)
            connection.resume_reading()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._spoilt:
            raise Malformed
        if self._lost or self._connection is None:
            raise CallerGone
        piece, self._pieces, self._unread_bytes = b"".join(self._pieces), [], 0
        return piece, not self.whole

    def _ask_for_body(self, connection: Carrier) -> None:
        if self._modern and self.headers.pop("expect", "").lower() == "100-continue":
            connection.write(CONTINUE)

    def respond(self, head: bytes, body: bytes) -> None:
        connection = self._connection
        if self.begun or connection is None:
            return
        self.begun = True
        length = b"" if head[9:12] in NO_BODY else b"content-length: %d\r\n" % len(body)
        close = b"" if self._stays(head) else CLOSE
        sent = b"" if self.method == "HEAD" else body
        connection.write(b"%b%b%b%b\r\n%b" % (head, connection.date_line(), close, length, sent))
        self._connection = self._on_lost = None
        connection.answered(self)

    def begin(self, head: bytes) -> None:
        connection = self._connection
        if self.begun or connection is None:
            raise CallerGone
        self.begun = True
        length = 0 if self.method == "HEAD" else _promised_length(head)
        self._chunked = length is None and self._modern
        if length is None and not self._modern:
            self.keep_alive = False  # Only the end of the connection tells where the body ends.
        self._promised = length or 0
        framing = CHUNKED if self._chunked else b""
        close = b"" if self._stays(head) else CLOSE
        connection.write(b"".join((head, connection.date_line(), close, framing, b"\r\n")))

    async def write(self, piece: bytes) -> None:
        connection = self._connection
        if connection is None or self._lost:
            raise CallerGone
        if self._chunked:
            if piece:
                connection.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._promised -= len(piece)
            connection.write(piece)
        if connection.writing_paused:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    def finish(self) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._chunked:
            connection.write(b"0\r\n\r\n")
        elif self._promised and self._modern:
            self.cut(at_once=False)  # Shorter or longer than promised: what follows could not be told apart.
            return
        self._connection = self._on_lost = None
        connection.answered(self)

    def on_lost(self, callback: Callable[[], object]) -> None:
        self._on_lost = callback
        if self._lost:
            callback()

    def hand_over(self, head: bytes, stream: EventStream) -> None:
        connection = self._connection
        if self.begun or connection is None:
            raise CallerGone
        self.begun = True
        self._connection = None
        framing = CHUNKED if self._modern else b""
        connection.write(b"".join((head, connection.date_line(), CLOSE, framing, b"\r\n")))
        connection.carry(stream, chunked=self._modern)

    def cut(self, *, at_once: bool) -> None:
        connection, self._connection = self._connection, None
        self.begun = True
        if connection:
            connection.abort() if at_once else connection.close()

    # What the connection calls

    def feed(self, piece: bytes) -> None:
        """Takes a piece of the body; what comes after the answer is left unread."""
        if self._connection is None:
            return
        self._pieces.append(piece)
        self._unread_bytes += len(piece)
        if self._unread_bytes > MAX_UNREAD_BYTES:
            self._connection.pause_reading()
        self._wake_reader()

    def feed_whole(self, body: bytes) -> None:
        """Takes the whole body of a request that nobody reads yet."""
        if body:
            self._pieces.append(body)
        self.whole = True

    def complete(self) -> None:
        self.whole = True
        self._wake_reader()

    def spoil(self) -> None:
        """Notes that the rest of the body cannot be read."""
        self._spoilt, self.keep_alive = True, False
        self._wake_reader()

    def lost(self) -> None:
        self._lost = True
        self._connection = None
        self._wake_reader()
        self.wake_writer()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost:
            on_lost()

    def wake_writer(self) -> None:
        waiting, self._writer = self._writer, None
        if waiting and not waiting.done():
            waiting.set_result(None)

    def _wake_reader(self) -> None:
        waiting, self._reader = self._reader, None
        if waiting and not waiting.done():
            waiting.set_result(None)

    def _stays(self, head: bytes) -> bool:
        """Tells whether the connection outlives this answer, as far as the head does not say so itself."""
        if not self.whole and "expect" in self.headers:
            self.keep_alive = False  # Whether its body will still be sent cannot be known.
        if self.keep_alive and SAYS_CLOSE in head:
            self.keep_alive = False
            return True
        return self.keep_alive


def _promised_length(head: bytes) -> int | None:
    _, separator, rest = head.partition(b"\r\ncontent-length: ")
    return int(rest.partition(b"\r\n")[0]) if separator else None
