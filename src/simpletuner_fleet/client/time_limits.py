"""Limits how long an answer may take as a whole: a peer that drips it would outlast every timeout of a single read."""

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore2
import httpx2

from simpletuner_fleet.client import interruption
from simpletuner_fleet.client.troubles import EndlessAnswer, TooSlow

TIMEOUT_S = 30.0
"""How long an answer may be silent."""
COMING_S = 90.0
"""How much longer all of an answer may take, where whoever asks has set no time of their own."""
SLOWEST_BYTES_PER_S, SLOW_FOR_S = 1000.0, 300.0
"""After so much waiting at less than the slowest rate, a transfer of any length is given up."""
LEAST_S = 0.01
"""What a socket is given when the time is up: zero would mean not to wait at all, and another error."""
PIECE_BYTES = 16 * 1024
MOST_BYTES = 256 * 1024 * 1024
"""Of an answer that is read as a whole: more than the list of all files of a hundred large checkpoints."""
OF_PACKING = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that say nothing any more about content that was unpacked."""
WHOLE_S = "whole_s"
"""The extension of a request that says how long the whole call may take."""


class _Limit:
    """Counts the time of one call; a limit of the answer alone begins when the first of it is waited for."""

    def __init__(self, whole_s: float, answer_alone: bool) -> None:
        self._whole_s = whole_s
        self._until = None if answer_alone else time.monotonic() + whole_s
        self._has_heard = False
        self._is_shorter = False
        """Whether the last timeout was what this limit has left."""

    def sending(self, timeout: float | None) -> float | None:
        return timeout if self._until is None else self._left(timeout, self._until)

    def receiving(self, timeout: float | None) -> float:
        if self._until is None:
            self._until = time.monotonic() + self._whole_s
        return self._left(timeout, self._until)

    def heard(self, data: bytes) -> None:
        self._has_heard = self._has_heard or bool(data)

    def is_over_though_heard(self) -> bool:
        is_over = self._until is not None and time.monotonic() >= self._until
        return is_over and self._has_heard

    def has_ended_the_silence(self) -> bool:
        """Tells whether it was this limit that ended a read, after something had come before."""
        return self._is_shorter and self._has_heard

    def _left(self, timeout: float | None, until: float) -> float:
        left_s = max(LEAST_S, until - time.monotonic())
        if timeout is not None and timeout <= left_s:
            self._is_shorter = False
            return timeout
        self._is_shorter = True
        return left_s


_present: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@contextmanager
def within(whole_s: float | None, *, answer_alone: bool = False) -> Iterator[None]:
    """Limits all that is sent and received meanwhile over the connections of a `LimitedClient`, in this thread."""
    token = _present.set(None if whole_s is None else _Limit(whole_s, answer_alone))
    try:
        yield
    finally:
        _present.reset(token)


class LimitedClient(httpx2.Client):
    """Ends each call in bounded time. An answer that is streamed is limited until its head is there; see `pieces`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for transport in (self._transport, *self._mounts.values()):
            if isinstance(transport, httpx2.HTTPTransport):
                # There is no public way that keeps the proxies of the environment; tests with a server that drips
                # fail where this is not so any more.
                pool: Any = transport._pool
                pool._network_backend = _LimitedBackend(pool._network_backend)

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        silent_s: float = request.extensions["timeout"]["read"] or TIMEOUT_S
        whole_s = request.extensions.get(WHOLE_S) or silent_s + (0.0 if stream else COMING_S)
        with within(whole_s, answer_alone=not isinstance(request.stream, httpx2.ByteStream)):
            answer = super().send(request, stream=True, **options)
            return answer if stream else read_whole(answer)


def read_whole(answer: httpx2.Response) -> httpx2.Response:
    """Returns the answer with all of its content. It has a bound, since a little that is packed may become very much."""
    with closing(answer):
        content = joined(answer.iter_bytes())
    return httpx2.Response(
        answer.status_code, headers=unpacked_headers(answer), content=content, request=answer.request
    )


def unpacked_headers(answer: httpx2.Response) -> list[tuple[str, str]]:
    return [one for one in answer.headers.multi_items() if one[0].lower() not in OF_PACKING]


def joined(pieces: Iterable[bytes]) -> bytes:
    whole = BoundedContent()
    for piece in pieces:
        whole.add(piece)
    return whole.joined()


class BoundedContent:
    """Collects the pieces of an answer up to the most that an orchestrator sends as one."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes > MOST_BYTES:
            raise httpx2.ReadError("too large") from EndlessAnswer(MOST_BYTES)
        self._pieces.append(piece)

    def joined(self) -> bytes:
        return b"".join(self._pieces)


def extensions(whole_s: float | None) -> dict[str, Any]:
    """Returns what a request says where whoever asks has set a time."""
    return {} if whole_s is None else {WHOLE_S: whole_s}


class Pace:
    """Raises once a transfer was waited for too long at less than the slowest rate; time in between is not counted."""

    def __init__(self, slow_for_s: float = SLOW_FOR_S) -> None:
        self._slow_for_s = slow_for_s
        self._bytes, self._waited_s = 0, 0.0

    def moved(self, count: int, waited_s: float) -> None:
        self._bytes += count
        self._waited_s += waited_s
        if self._waited_s < self._slow_for_s:
            return
        if self._bytes < self._waited_s * SLOWEST_BYTES_PER_S:
            raise httpx2.ReadTimeout("too slow") from TooSlow()
        self._bytes, self._waited_s = 0, 0.0


def pieces(source: Iterator[bytes], silent_s: float | None, pace: Pace | None = None) -> Iterator[bytes]:
    """Yields the pieces of an open answer. The next one must be complete within that time, and all keep the pace."""
    while True:
        began_at = time.monotonic()
        with within(silent_s):
            piece = next(source, None)
        if piece is None:
            return
        if pace:
            pace.moved(len(piece), time.monotonic() - began_at)
        yield piece


def sent(source: Iterator[bytes], pace: Pace) -> Iterator[bytes]:
    """Yields the pieces of what is sent; raises where they are taken too slowly."""
    for piece in source:
        began_at = time.monotonic()
        yield piece
        pace.moved(len(piece), time.monotonic() - began_at)


def is_in_vain(error: BaseException | None) -> bool:
    """Tells whether the peer drips its answer, or it has no end: to ask again would take as long again."""
    while error is not None and not isinstance(error, TooSlow | EndlessAnswer):
        error = error.__cause__
    return error is not None


class _DrippedAnswer(TooSlow, httpcore2.ReadTimeout):
    """As `TooSlow`, in the family of errors that httpx2 turns into its own; it drops their causes."""


class _LimitedBackend(httpcore2.NetworkBackend):
    """Makes connections whose reads and writes keep the present limit."""

    def __init__(self, inner: httpcore2.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.NetworkStream:
        interruption.check()
        limit = _present.get()
        timeout = limit.sending(timeout) if limit else timeout
        return _LimitedStream(
            self._inner.connect_tcp(host, port, timeout, local_address, socket_options=socket_options)
        )

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore2.NetworkStream:
        return _LimitedStream(self._inner.connect_unix_socket(path, timeout, socket_options=socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _LimitedStream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        limit = _present.get()
        if limit is None:
            return self._read(max_bytes, timeout)
        try:
            data = self._read(max_bytes, limit.receiving(timeout))
        except httpcore2.ReadTimeout as error:
            if not limit.has_ended_the_silence():
                raise
            raise _DrippedAnswer("too slow") from error
        limit.heard(data)
        if limit.is_over_though_heard():
            raise _DrippedAnswer("too slow")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes in small pieces, since the stream below begins the time anew whenever some bytes were taken."""
        limit = _present.get()
        with interruption.hanging_up(self._socket):
            if limit is None:
                self._inner.write(buffer, timeout)
                return
            for begin in range(0, len(buffer), PIECE_BYTES):
                self._inner.write(buffer[begin : begin + PIECE_BYTES], limit.sending(timeout))

    def _read(self, max_bytes: int, timeout: float | None) -> bytes:
        with interruption.hanging_up(self._socket):
            return self._inner.read(max_bytes, timeout)

    @property
    def _socket(self) -> socket.socket:
        line: socket.socket = self._inner.get_extra_info("socket")
        return line

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        limit = _present.get()
        timeout = limit.sending(timeout) if limit else timeout
        with interruption.hanging_up_copy(self._socket):
            return _LimitedStream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
