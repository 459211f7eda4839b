"""Makes short calls over HTTP/1.1 connections that stay open: one call at a time on each, no proxy, no redirect.

A general client spends a millisecond on a call; the few that a job's start and end wait for should cost less.
"""

import asyncio
import errno
import ipaddress
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import h11
from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.protocol.messages import TERM_HEADER
from simpletuner_fleet.protocol.paths import ends_of

MAX_CONNECTIONS = 32
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_PROBLEM_BYTES = 1024 * 1024
"""Of what is no success: whoever answers in the orchestrator's place must not fill our memory."""
READ_BYTES = 64 * 1024
NEXT_ADDRESS_AFTER_S = 0.25
"""A host with several addresses is tried at the next one while the first does not answer."""
TERM = TERM_HEADER.encode()
BROKEN = (OSError, EOFError, h11.ProtocolError)


class CallFailed(Exception):
    """No connection, a broken one, or an answer that is not HTTP; the cause is its `__cause__`."""


class CallAnswer(NamedTuple):
    status: int
    content: bytes
    ends: str = ""
    """Of the connection: `protocol.paths.ends_of`."""
    term: str | None = None
    """What its header says of the leader's term."""


class CallTimeouts(Struct, frozen=True, kw_only=True):
    connect_s: float
    silence_s: float
    """Without the smallest progress, while sending or while receiving."""
    whole_s: float
    """From the call to the last byte of its answer: who sends a byte now and then must not hold it for ever."""


class CallConnections:
    """Keeps connections to one server, all with the same TLS context; `context` is None for plain HTTP."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/")
        self._address = _Address(
            host=parts.hostname or "",
            port=parts.port or (443 if parts.scheme == "https" else 80),
            context=context if parts.scheme == "https" else None,
        )
        self._headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "User-Agent": f"simpletuner-fleet/{__version__}",
            "Accept": "*/*",
        }
        self._idle: list[_Connection] = []
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self.keep_idle_s = 60.0
        """A connection that was idle for longer is not used again: a firewall may have forgotten it."""

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes, timeouts: CallTimeouts
    ) -> CallAnswer:
        """Raises CallFailed.

        A kept connection may have been closed at the other end in this very moment; the call is then made once more,
        on a new one. Whoever calls would repeat it too: no call of a worker does harm when it arrives twice.
        """
        lines = [*self._headers.items(), *headers.items(), ("Content-Length", str(len(content)))]
        with _raising_call_failed():
            message = h11.Request(method=method, target=self._path + target, headers=lines)
        async with self._places:
            with _raising_call_failed():
                async with asyncio.timeout(timeouts.whole_s):
                    return await self._request(message, content, timeouts)

    async def _request(self, message: h11.Request, content: bytes, timeouts: CallTimeouts) -> CallAnswer:
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._exchange(connection, message, content, timeouts)
            except CallFailed:
                if connection.answered or not connection.was_closed:
                    raise
        connection = await _connect(self._address, timeouts.connect_s)
        return await self._exchange(connection, message, content, timeouts)

    def _take_idle(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.idle_s < self.keep_idle_s:
                return connection
            connection.close()
        return None

    async def _exchange(
        self, connection: "_Connection", message: h11.Request, content: bytes, timeouts: CallTimeouts
    ) -> CallAnswer:
        try:
            with _raising_call_failed():
                answer = await connection.exchange(message, content, timeouts.silence_s)
        except BaseException:
            connection.abort()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer


class _Address(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    context: ssl.SSLContext | None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self._ends = ends_of(writer.transport, client=True)
        self._used_at = time.monotonic()
        self.answered = False
        """Whether a byte of the answer to the newest call came."""
        self.was_closed = False
        """Whether the other end closed it before that."""

    @property
    def is_usable(self) -> bool:
        closed = self._reader.at_eof() or self._writer.is_closing()
        return not closed and self._http.our_state is h11.IDLE

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._used_at

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Closes it at once: what is not sent yet is not sent."""
        self._writer.transport.abort()

    async def exchange(self, message: h11.Request, content: bytes, silence_s: float) -> CallAnswer:
        self.answered = False
        # Not waited for until it is sent: who takes no such call says so before it has read all of it, and hangs up.
        self._writer.write(self._encoded(message, content))
        answer = await self._receive(silence_s)
        self._used_at = time.monotonic()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return answer

    def _encoded(self, message: h11.Request, content: bytes) -> bytes:
        parts = (message, h11.Data(data=content), h11.EndOfMessage())
        return b"".join(self._http.send(part) or b"" for part in parts)

    async def _receive(self, silence_s: float) -> CallAnswer:
        status, content, term = 0, bytearray(), None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._read(silence_s))
            elif isinstance(event, h11.Response):
                status = event.status_code
                term = next((value.decode("latin-1") for name, value in event.headers if name == TERM), None)
            elif isinstance(event, h11.Data):
                content += event.data
                most_bytes = MAX_ANSWER_BYTES if 200 <= status < 300 else MAX_PROBLEM_BYTES
                if len(content) > most_bytes:
                    raise h11.RemoteProtocolError(f"an answer of more than {most_bytes} bytes")
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return CallAnswer(status, bytes(content), self._ends, term)

    async def _read(self, silence_s: float) -> bytes:
        try:
            data = await self._read_patiently(silence_s)
        except ConnectionError:
            self.was_closed = True
            raise
        self.was_closed = not data
        self.answered = self.answered or bool(data)
        return data

    async def _read_patiently(self, silence_s: float) -> bytes:
        """Waits for bytes. While a part of the call is still being sent, a missing answer does not count as silence."""
        while True:
            unsent = self._writer.transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(silence_s):
                    return await self._reader.read(READ_BYTES)
            except TimeoutError:
                if self._writer.transport.get_write_buffer_size() >= unsent:
                    raise


def _is_ip_address(host: str) -> bool:
    """Returns whether the host is an address, where there is nothing to race.

    asyncio's race of addresses drops its socket unclosed if it is cancelled just as it is won.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _connect(address: _Address, connect_s: float) -> _Connection:
    with _raising_call_failed():
        async with asyncio.timeout(connect_s):
            reader, writer = await asyncio.open_connection(
                address.host,
                address.port,
                ssl=address.context,
                server_hostname=address.host if address.context else None,
                happy_eyeballs_delay=None if _is_ip_address(address.host) else NEXT_ADDRESS_AFTER_S,
            )
    return _Connection(reader, writer)


@contextmanager
def _raising_call_failed() -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        cause = _refused_everywhere(error) or error
        raise CallFailed(str(cause) or type(cause).__name__) from cause


def _refused_everywhere(error: BaseException) -> ConnectionRefusedError | None:
    """Returns the error if every address refused: where several failed, asyncio keeps only their messages."""
    if not isinstance(error, OSError) or error.errno is not None:
        return None
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    if numbers and all(int(number) == errno.ECONNREFUSED for number in numbers):
        return ConnectionRefusedError(errno.ECONNREFUSED, str(error))
    return None
