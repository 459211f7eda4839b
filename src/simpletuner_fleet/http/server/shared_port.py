"""Serves TLS and plain HTTP on one port: TLS for everybody, plain HTTP only for those it is safe with.

A client's first byte says which of the two it speaks. Nothing else is read before that is decided.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from simpletuner_fleet.http.server.refusals import PLAIN_REFUSED
from simpletuner_fleet.http.server.tls_connection import TlsConnection

ACCEPTED_AT_ONCE = 100
FIRST_BYTE_TIMEOUT_S = 15.0
LINGER_S = 1.0
PAUSE_S = 1.0
"""How long nobody is let in after the process ran out of files."""
TLS_HANDSHAKE = 0x16

MakeProtocol = Callable[[bool], asyncio.Protocol]
"""Makes what reads a connection, told whether that came over TLS."""

log = logging.getLogger(__name__)


class SharedPort:
    """Accepts connections on one listening socket, by TLS and by plain HTTP."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        plain_from: Callable[[str], bool],
        make_protocol: MakeProtocol,
        most_waiting: int,
    ) -> None:
        """Takes `most_waiting`, how many may be connected but not accepted yet; one of them is dropped to make room."""
        self._listener = listener
        self._context = context
        self._plain_from = plain_from
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._most_waiting = most_waiting
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connected, and nothing was said yet."""
        self._handshakes: dict[TlsConnection, None] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._refused: dict[socket.socket, None] = {}
        """Answered, and about to be closed."""
        self._closed = False
        self._open()

    def close(self) -> None:
        """Accepts no further connections; those that were accepted go on."""
        self._closed = True
        self._loop.remove_reader(self._listener.fileno())
        for one in list(self._silent):
            self._hang_up(one)
        for task in self._starting:
            task.cancel()
        for handshake in list(self._handshakes):
            handshake.abort()
        for one in list(self._refused):
            self._close_refused(one)

    def _open(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(PAUSE_S, self._open)
                return
            connected.setblocking(False)
            self._make_room()
            self._silent[connected] = self._loop.call_later(FIRST_BYTE_TIMEOUT_S, self._hang_up, connected)
            self._loop.add_reader(connected.fileno(), self._first_byte, connected, str(address[0]))

    def _first_byte(self, connected: socket.socket, peer: str) -> None:
        try:
            first = connected.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._hang_up(connected)
            return
        self._forget(connected)
        tls = first[0] == TLS_HANDSHAKE
        if not tls and not self._plain_from(peer):
            self._refuse(connected)
            return
        if tls:
            protocol: asyncio.Protocol = self._handshake()
        else:
            protocol = self._make_protocol(False)
        task = self._loop.create_task(self._let_in(connected, protocol))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _handshake(self) -> TlsConnection:
        connection = TlsConnection(self._context, lambda: self._make_protocol(True), self._handshake_over)
        self._handshakes[connection] = None
        return connection

    async def _let_in(self, connected: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connected)
        except (OSError, asyncio.CancelledError):
            connected.close()
            if isinstance(protocol, TlsConnection):
                self._handshake_over(protocol)

    def _handshake_over(self, connection: TlsConnection) -> None:
        """Counts it no longer: its handshake is over, well or not."""
        self._handshakes.pop(connection, None)

    def _refuse(self, connected: socket.socket) -> None:
        """Refuses a plain connection.

        What it sent is read first: unread, closing would destroy the answer under way.
        """
        with suppress(OSError):
            connected.recv(65536)
            connected.send(PLAIN_REFUSED)
            connected.shutdown(socket.SHUT_WR)
        self._refused[connected] = None
        self._loop.call_later(LINGER_S, self._close_refused, connected)

    def _close_refused(self, connected: socket.socket) -> None:
        self._refused.pop(connected, None)
        connected.close()

    def _make_room(self) -> None:
        """Drops a connection that sends nothing or never ends its handshake, so that it takes no file from others."""
        if len(self._silent) + len(self._handshakes) + len(self._refused) < self._most_waiting:
            return
        if self._refused:
            self._close_refused(next(iter(self._refused)))
        elif self._silent:
            self._hang_up(next(iter(self._silent)))
        else:
            handshake = next(iter(self._handshakes))
            del self._handshakes[handshake]
            handshake.abort()

    def _hang_up(self, connected: socket.socket) -> None:
        self._forget(connected)
        connected.close()

    def _forget(self, connected: socket.socket) -> None:
        self._loop.remove_reader(connected.fileno())
        self._silent.pop(connected).cancel()
