"""Turns the bytes of one connection into exchanges and back, with a limit on everything a stranger could stretch."""

import asyncio
from collections import deque
from typing import Protocol

import httptools

from simpletuner_fleet.http.edge.streams import EventStream
from simpletuner_fleet.http.server.head_reader import MAX_HEAD_BYTES, HeadReader
from simpletuner_fleet.http.server.http_exchange import HttpExchange
from simpletuner_fleet.http.server.refusals import HEAD_TOO_LARGE, UNREADABLE
from simpletuner_fleet.http.server.repeated_head import RepeatedHead
from simpletuner_fleet.protocol.paths import ends_of

HEAD_TIMEOUT_S = 15.0
LAST_CHUNK = b"0\r\n\r\n"
MAX_SENT_AHEAD = 64
"""Requests that may wait on one connection: they are walked through one after the other, and others wait meanwhile."""

NEW, HEAD, BUSY, IDLE, DISCARDING, STREAM, CLOSING = range(7)
"""What a connection is about. `NEW`: nothing was ever said. `DISCARDING`: its request was answered before its body came.
`CLOSING`: the last bytes of its last answer wait for the reader."""


class Owner(Protocol):
    """An owner is the server that a connection belongs to: it provides what all of its connections share."""

    date_line: bytes

    def now(self) -> float: ...
    def admit(self, connection: "HttpConnection") -> bool: ...
    def forget(self, connection: "HttpConnection") -> None: ...
    def run(self, exchange: HttpExchange) -> None: ...


class HttpConnection(HeadReader, asyncio.Protocol):
    """Reads requests from one connection and runs them one after the other, however they are sent.

    It keeps no timer of its own: `since` says when its present state began, and the server's sweep ends connections
    that stay in one too long.
    """

    head_timeout_s = HEAD_TIMEOUT_S

    __slots__ = (
        "_arriving",
        "_chunked",
        "_closing",
        "_current",
        "_parser",
        "_peer",
        "_refusal",
        "_repeated",
        "_server",
        "_starting",
        "_stream",
        "_tls",
        "_transport",
        "_unparsed_bytes",
        "_waiting",
        "reading_paused",
        "since",
        "state",
        "writing_paused",
    )

    def __init__(self, server: Owner, tls: bool = False) -> None:
        super().__init__()
        self._server = server
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._peer = ""
        self._unparsed_bytes = 0
        """Received since the last piece of a body or end of a request: a head or chunk sizes without end."""
        self._arriving: HttpExchange | None = None
        """The request whose body is being read."""
        self._current: HttpExchange | None = None
        """The request that is being answered."""
        self._waiting: deque[HttpExchange] | None = None
        self._stream: EventStream | None = None
        self._refusal: bytes | None = None
        self._repeated: RepeatedHead | None = None
        self._starting = self._closing = self._chunked = False
        self.reading_paused = self.writing_paused = False
        self.state = NEW
        self.since = server.now()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        if not self._server.admit(self):
            self.abort()
            return
        self._parser = httptools.HttpRequestParser(self)
        # What follows a last request is left unread, not refused: its answer must not be spoiled.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._closing = True
        for exchange in (self._current, self._arriving, *(self._waiting or ())):
            if exchange:
                exchange.lost()
        stream, self._stream = self._stream, None
        if stream:
            stream.lost()
        self._parser = self._transport = self._current = self._arriving = self._waiting = None

    def data_received(self, data: bytes) -> None:
        if self._closing or self._parser is None:
            return
        at_rest = not (self._arriving or self._headers is not None or self._unparsed_bytes or self._waiting)
        if at_rest and (exchange := self._repeated_request(data)):
            self._run_at_once(exchange)
            return
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._take_as_last()
        except httptools.HttpParserError:
            self._refuse(HEAD_TOO_LARGE if self.head_is_too_large else UNREADABLE)
        else:
            if self._unparsed_bytes > MAX_HEAD_BYTES:
                self._refuse(HEAD_TOO_LARGE)
            elif self.state == DISCARDING:
                self.since = self._server.now()
            elif at_rest and self._waiting and len(self._waiting) == 1:
                self._learn(data, self._waiting[0])
        self._start_next()

    def _learn(self, data: bytes, exchange: HttpExchange) -> None:
        """Remembers the headers of this request.

        `data` holds it alone: nothing came before it, and no other began after it.
        """
        if exchange.whole and exchange.keep_alive and not self.in_head:
            self._repeated = RepeatedHead.of(data, exchange.headers)

    def _repeated_request(self, data: bytes) -> HttpExchange | None:
        """Returns a request with the same headers as the last one without using the parser; None if it is another."""
        repeated = self._repeated
        request = repeated.read(data) if repeated else None
        if request is None or repeated is None:
            return None
        method, path, query, headers, body = request
        exchange = HttpExchange(
            self, method, path, query, headers, self._peer, self._tls, "1.1", True, repeated.memory
        )
        exchange.feed_whole(body)
        return exchange

    def _run_at_once(self, exchange: HttpExchange) -> None:
        """Runs a request that came alone, unless another is still being answered."""
        if self._current is None and not self.writing_paused and not self._starting:
            self._current = exchange
            self.state = BUSY
            self._server.run(exchange)
            return
        self._waiting = self._waiting or deque()
        self._waiting.append(exchange)
        self._start_next()

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._stream:
            self._stream.resume()
        elif self._current:
            self._current.wake_writer()
        else:
            self._start_next()

    # What the parser calls

    def on_message_begin(self) -> None:
        self.begin_head()
        self._arriving = None
        if self._current is None:
            self.state, self.since = HEAD, self._server.now()

    def on_headers_complete(self) -> None:
        parser = self._parser
        if not self.in_head or parser is None or self._closing:
            return
        path, query, headers = self.take_head()
        exchange = HttpExchange(
            self,
            parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            self._peer,
            self._tls,
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
        if self._waiting is None:
            self._waiting = deque()
        if len(self._waiting) >= MAX_SENT_AHEAD:
            raise httptools.HttpParserError("too many requests were sent ahead")
        self._waiting.append(exchange)
        self._arriving = exchange

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._arriving:
            self._arriving.feed(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        exchange, self._arriving = self._arriving, None
        if exchange is None:
            return
        exchange.complete()
        if not exchange.keep_alive:
            self._closing = True
        elif self.state == DISCARDING:
            self._rest()

    # What exchanges call

    def answered(self, exchange: HttpExchange) -> None:
        """Starts the next request, since the answer of the current one is written."""
        self._current = None
        if self._transport is None:
            return
        if not exchange.keep_alive:
            self.close()
        elif exchange.whole:
            self._rest()
            if self._waiting or self._refusal:
                self._start_next()
        else:
            self.state, self.since = DISCARDING, self._server.now()
            self.resume_reading()

    def carry(self, stream: EventStream, *, chunked: bool) -> None:
        """Gives the connection to the stream alone: no request is read from it any more."""
        self._chunked = chunked
        self._current = self._arriving = self._waiting = self._parser = None
        self._stream = stream
        self.state = STREAM
        self.resume_reading()  # or nobody would notice that the reader has left
        stream.attach(self)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def ends(self) -> str:
        return ends_of(self._transport, client=False) if self._transport else ""

    def date_line(self) -> bytes:
        return self._server.date_line

    def pause_reading(self) -> None:
        if not self.reading_paused and self._transport is not None and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused and self._transport is not None and not self._transport.is_closing():
            self.reading_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes the connection after sending what is buffered."""
        self._closing = True
        if self.state != CLOSING:
            self.state, self.since = CLOSING, self._server.now()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    # What streams call

    def send(self, chunk: bytes) -> bool:
        self.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)
        return not self.writing_paused

    def end_stream(self) -> None:
        self._stream = None
        if self._chunked:
            self.write(LAST_CHUNK)
        self.close()

    # What the server calls

    def shut_down(self) -> None:
        """Closes the connection at once if it waits for a request, or else after its answer."""
        if self._current is None and self._stream is None:
            self.close()
        elif self._current is not None:
            self._current.keep_alive = False

    def _rest(self) -> None:
        self.state = IDLE if self._headers is None else HEAD
        self.since = self._server.now()
        if self.reading_paused and not self._waiting:
            self.resume_reading()

    def _start_next(self) -> None:
        if self._starting:
            return
        self._starting = True
        while self._waiting and self._current is None and not self.writing_paused and self._transport:
            exchange = self._current = self._waiting.popleft()
            self.state = BUSY
            self._server.run(exchange)
        self._starting = False
        if self._waiting:
            self.pause_reading()
        elif self._refusal and self._current is None:
            self._say_refusal(self._refusal)

    def _take_as_last(self) -> None:
        """Makes this request the last one: it asks for another protocol, which is not supported here."""
        self._closing = True
        if self._waiting:
            self._waiting[-1].complete()
            self._waiting[-1].keep_alive = False

    def _refuse(self, answer: bytes) -> None:
        """Refuses what cannot be read; the requests before it are still answered."""
        self._closing = True
        self._refusal = answer
        if self._arriving:
            self._arriving.spoil()

    def _say_refusal(self, answer: bytes) -> None:
        self._refusal = None
        line, _, rest = answer.partition(b"\r\n")
        self.write(b"%b\r\n%b%b" % (line, self._server.date_line, rest))
        self.close()
