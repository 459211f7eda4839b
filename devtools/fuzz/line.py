"""A line to the real server without a socket: the server's own connection, spoken to in pieces, in this process."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import h11
from msgspec import Struct

from simpletuner_fleet.http.server.connection import HttpConnection
from simpletuner_fleet.http.server.serving import HttpServer

PATIENCE_S = 20.0
PEER = ("127.0.0.1", 50_000)
STREAM_TYPE = b"text/event-stream"


class Unanswered(Exception):
    """A whole request got no answer, or half of one."""


class LineAnswer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes
    stream: bool = False
    """It would have gone on: the caller hung up."""


class MemoryTransport(asyncio.Transport):
    """Takes what the server writes; nothing is ever lost or late here."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.news = asyncio.Event()
        self.closed = False
        self.on_close: Callable[[], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.news.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return PEER if name == "peername" else default

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.news.set()
            if self.on_close:
                asyncio.get_running_loop().call_soon(self.on_close)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Whoever writes here has nothing more to say."""

    def resume_reading(self) -> None:
        """As above."""


class Line:
    """One connection. What is sent in pieces arrives in pieces."""

    def __init__(self, server: HttpServer) -> None:
        self.transport = MemoryTransport()
        self._connection = HttpConnection(server)
        self._lost = False
        self.transport.on_close = self.hang_up
        self._connection.connection_made(self.transport)

    @property
    def state(self) -> int:
        return self._connection.state

    @property
    def wants_more(self) -> bool:
        """The request that is being answered waits for the rest of its body."""
        current = self._connection._current
        return current is not None and current._reader is not None and not current._reader.done()

    async def send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._connection.data_received(piece)
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        if not self._lost:
            self._lost = self.transport.closed = True
            self._connection.connection_lost(None)

    async def answer(
        self, method: str, *, endless: bool = False, patience_s: float = PATIENCE_S
    ) -> LineAnswer:
        """The whole answer, or its beginning where it is a stream without end."""
        reader = AnswerReader(method, endless=endless)
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    self.transport.news.clear()
                    written, self.transport.written = bytes(self.transport.written), bytearray()
                    answer = reader.feed(written, closed=self.transport.closed)
                    if answer is not None:
                        return answer
                    await self.transport.news.wait()
        except TimeoutError:
            raise Unanswered(f"nothing whole within {patience_s:g} s") from None
        finally:
            self.hang_up()


class AnswerReader:
    """Bytes of a server to one answer; a stranger to our own server's code on purpose."""

    def __init__(self, method: str, *, endless: bool = False) -> None:
        self._endless = endless
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        body = [("content-length", "0")] if method not in ("GET", "HEAD") else []
        self._http.send(h11.Request(method=method, target="/", headers=[("host", "x"), *body]))
        self._http.send(h11.EndOfMessage())
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._ended = False

    def feed(self, data: bytes, *, closed: bool) -> LineAnswer | None:
        try:
            if data:
                self._http.receive_data(data)
            if closed and not self._ended:
                self._ended = True
                self._http.receive_data(b"")
            return self._read(closed=closed)
        except h11.RemoteProtocolError as error:
            raise Unanswered(f"not HTTP: {error}") from error

    def _read(self, *, closed: bool) -> LineAnswer | None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return self._made(stream=False)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED or closed:
                raise Unanswered("the connection was closed before the answer was whole")
            elif event is h11.NEED_DATA:
                return self._made(stream=True) if self._goes_on() else None

    def _goes_on(self) -> bool:
        return self._head is not None and any(
            self._endless or (name == b"content-type" and value.startswith(STREAM_TYPE))
            for name, value in self._head.headers
        )

    def _made(self, *, stream: bool) -> LineAnswer:
        assert self._head is not None
        headers = {name.decode(): value.decode("latin-1") for name, value in self._head.headers}
        return LineAnswer(self._head.status_code, headers, bytes(self._body), stream)
