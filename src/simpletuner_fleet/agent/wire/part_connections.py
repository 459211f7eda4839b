"""Sends parts of files straight from the page cache, each in a thread and over a connection of its own.

A part is given to the kernel as a file, an offset and a count: the agent neither reads nor copies it, so its memory stays
as it is, however large the file, and the machine's cores stay with the trainer. Only TLS has to see the bytes.
"""

import asyncio
import errno
import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer
from typing import BinaryIO
from urllib.parse import urlsplit

from msgspec import Struct

from simpletuner_fleet.trainers.job_files import open_job_file

THREADS = 8
"""Parts under way at once, of all attempts together."""
MOST_IDLE_S = 10.0
"""The orchestrator hangs up on a line that was idle for longer; it is not met half-way."""
MAX_ANSWER_BYTES = 1024 * 1024
TLS_CHUNK_BYTES = 256 * 1024
BROKEN_WHILE_SENDING = (BrokenPipeError, ConnectionResetError)
FILE_TROUBLE = frozenset({errno.EIO, errno.ESTALE})


class NoAnswer(Exception):
    """The line broke, or nothing came that is HTTP."""


class FileShrunk(Exception):
    """The file is shorter than it was."""


class Part(Struct, frozen=True, kw_only=True):
    file: Path
    offset: int
    count: int


class PartTimeouts(Struct, frozen=True, kw_only=True):
    connect_s: float
    step_s: float
    """Without the smallest progress while it is sent."""
    answer_s: float
    """Without the smallest progress of the answer. The whole takes at most twice as long, whoever drips it."""


class PartConnections:
    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._url = urlsplit(url)
        self._context = context
        self._idle: list[_PartConnection] = []
        self._threads = ThreadPoolExecutor(THREADS, "parts")

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def put(
        self, target: str, headers: Mapping[str, str], part: Part, timeouts: PartTimeouts
    ) -> tuple[int, bytes]:
        """Returns status and content of the answer. A call that is cancelled ends its connection at once."""
        connection = self._take_connection(timeouts)
        whole_target = self._url.path.rstrip("/") + target
        sending = self._threads.submit(connection.put, whole_target, headers, part, timeouts)
        try:
            answer = await asyncio.wrap_future(sending)
        except asyncio.CancelledError:
            if not sending.cancelled():
                connection.abort()
            sending.add_done_callback(lambda ended: connection.close())
            raise
        if connection.usable:
            self._idle.append(connection)
        return answer

    def _take_connection(self, timeouts: PartTimeouts) -> "_PartConnection":
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_s < MOST_IDLE_S:
                return connection
            connection.close()
        host, port = self._url.hostname or "", self._url.port
        if self._context is None:
            return _PartConnection(http.client.HTTPConnection(host, port, timeout=timeouts.connect_s))
        return _PartConnection(
            http.client.HTTPSConnection(host, port, timeout=timeouts.connect_s, context=self._context)
        )


class _PartConnection:
    """Sends parts over one connection, in one thread at a time."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._used_at = time.monotonic()
        self._is_aborted = False
        self._line: socket.socket | None = None
        """Remembered, for who answers that it will hang up is read to the end without the connection knowing of it."""

    @property
    def usable(self) -> bool:
        return self._connection.sock is not None

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._used_at

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        """Ends it, from any thread, so that whoever waits on it stops waiting."""
        self._is_aborted = True
        if self._line is not None:
            with suppress(OSError):
                # Not TLS's own, which would take its state away from the thread that reads.
                socket.socket.shutdown(self._line, socket.SHUT_RDWR)

    def put(
        self, target: str, headers: Mapping[str, str], part: Part, timeouts: PartTimeouts
    ) -> tuple[int, bytes]:
        try:
            with open_job_file(part.file) as file:
                return self._exchange(target, headers, file, part, timeouts)
        except BaseException:
            self._connection.close()
            raise
        finally:
            self._used_at = time.monotonic()

    def _exchange(
        self, target: str, headers: Mapping[str, str], file: BinaryIO, part: Part, timeouts: PartTimeouts
    ) -> tuple[int, bytes]:
        try:
            self._begin(target, headers, part.count, timeouts)
            whole = self._send(file, part)
            return self._answer(timeouts, keep=whole)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in FILE_TROUBLE:
                raise
            raise NoAnswer(str(error) or type(error).__name__) from error

    def _begin(self, target: str, headers: Mapping[str, str], count: int, timeouts: PartTimeouts) -> None:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        self._line = connection.sock
        connection.sock.settimeout(timeouts.step_s)
        connection.putrequest("PUT", target, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(count))
        connection.endheaders()

    def _send(self, file: BinaryIO, part: Part) -> bool:
        """Returns False where the other side has closed the connection: it may have answered why before it did."""
        try:
            sent = self._send_bytes(file, part)
        except BROKEN_WHILE_SENDING:
            return False
        if sent < part.count:
            raise FileShrunk
        return True

    def _send_bytes(self, file: BinaryIO, part: Part) -> int:
        sock = self._connection.sock
        if part.count == 0:
            return 0
        if not isinstance(sock, ssl.SSLSocket):
            return int(sock.sendfile(file, part.offset, part.count))
        file.seek(part.offset)
        left = part.count
        while left and (chunk := file.read(min(TLS_CHUNK_BYTES, left))):
            sock.sendall(chunk)
            left -= len(chunk)
        return part.count - left

    def _answer(self, timeouts: PartTimeouts, keep: bool) -> tuple[int, bytes]:
        sock = self._connection.sock
        sock.settimeout(timeouts.answer_s)
        too_late = Timer(2 * timeouts.answer_s, self.abort)
        too_late.daemon = True
        too_late.start()
        try:
            with closing(self._connection.getresponse()) as response:
                content = response.read(MAX_ANSWER_BYTES)
                is_whole = response.isclosed()
        finally:
            too_late.cancel()
        if self._is_aborted:
            raise TimeoutError("the answer took too long")
        if not keep or not is_whole:
            self._connection.close()
        return response.status, content
