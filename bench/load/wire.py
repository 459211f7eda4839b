"""HTTP/1.1 and event streams as cheaply as Python can speak them: the client must not be the bottleneck."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from simpletuner_fleet.protocol.sse import Decoder

OnEvent = Callable[[bytes], None]
END_OF_HEAD = b"\r\n\r\n"


class BadAnswer(Exception):
    """The server answered with something other than success."""


class Connection(asyncio.Protocol):
    """Requests one after another on one connection; pipelining is left to the caller's restraint."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._unanswered: deque[asyncio.Future[bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> "asyncio.Future[bytes]":
        """Returns a future of the answer's body."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.open:
            future.set_exception(ConnectionError("the connection is closed"))
            return future
        self._unanswered.append(future)
        self._transport.write(request)
        return future

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._take_answer():
            pass

    def _take_answer(self) -> bool:
        end = self._buffer.find(END_OF_HEAD)
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        begin = end + len(END_OF_HEAD)
        length = content_length(head)
        if len(self._buffer) < begin + length:
            return False
        body = bytes(self._buffer[begin : begin + length])
        del self._buffer[: begin + length]
        future = self._unanswered.popleft()
        if not future.done():
            if head[9:10] == b"2":
                future.set_result(body)
            else:
                future.set_exception(BadAnswer((head[:40] + b" " + body).decode(errors="replace")))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for future in self._unanswered:
            if not future.done():
                future.set_exception(ConnectionError("the server closed the connection"))
        self._unanswered.clear()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class EventReader(asyncio.Protocol):
    """An event stream in chunked encoding; hands on the data of every event."""

    def __init__(self, request: bytes, on_event: OnEvent) -> None:
        self._request = request
        self._on_event = on_event
        self._buffer = bytearray()
        self._decoder = Decoder()
        self._in_head = True
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._in_head and not self._take_head():
            return
        while (chunk := self._take_chunk()) is not None:
            for event in self._decoder.feed(chunk):
                self._on_event(event.data)

    def _take_head(self) -> bool:
        end = self._buffer.find(END_OF_HEAD)
        if end < 0:
            return False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + len(END_OF_HEAD)]
        self._in_head = False
        if not self.opened.done():
            if head[9:12] == b"200":
                self.opened.set_result(None)
            else:
                self.opened.set_exception(BadAnswer(head[:40].decode(errors="replace")))
        return True

    def _take_chunk(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        size = int(self._buffer[:end], 16)
        if len(self._buffer) < end + size + 4:
            return None
        chunk = bytes(self._buffer[end + 2 : end + 2 + size])
        del self._buffer[: end + size + 4]
        return chunk

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("the stream was closed"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def content_length(head: bytes) -> int:
    """Reads the length from a head in lower case; an answer without one has no body."""
    at = head.find(b"content-length:")
    if at < 0:
        return 0
    end = head.find(b"\r\n", at)
    return int(head[at + 15 : end if end >= 0 else len(head)])


def post(path: str, headers: str, body: bytes) -> bytes:
    """`headers` are whole lines, each with its end."""
    return f"POST {path} HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str, headers: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode()
