"""Speaks TLS over a plain connection, between the event loop and whatever reads the requests.

The event loop could do so itself, but for each connection it would keep a buffer of 256 KiB, of which a page is used and
stays in memory, and some ten objects more; a worker has two connections for as long as it lives (ADR 41).
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HANDSHAKE_TIMEOUT_S = 15.0
READ_BYTES = 16 * 1024
"""A record holds no more, and no more is read at once."""


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """Encrypts one connection: it is the protocol of a plain transport, and the transport of the protocol above it.

    The protocol above is made once the handshake is done, and not at all where that fails.
    """

    __slots__ = (
        "_closing",
        "_incoming",
        "_make_protocol",
        "_on_handshake_over",
        "_outgoing",
        "_protocol",
        "_session",
        "_timer",
        "_transport",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        on_handshake_over: "Callable[[TlsConnection], None]" = lambda connection: None,
    ) -> None:
        """Calls `on_handshake_over` once, when the handshake is done or the connection is lost before that."""
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_protocol = make_protocol
        self._protocol: asyncio.Protocol | None = None
        self._on_handshake_over: Callable[[TlsConnection], None] | None = on_handshake_over
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    # As the protocol of the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._closing:
            self.abort()  # it had to make room before it was there
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._end_handshake()
        protocol, self._protocol, self._transport = self._protocol, None, None
        if protocol is not None:
            protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._incoming.write(data)
        if self._protocol is not None or self._continue_handshake():
            self._read()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def _continue_handshake(self) -> bool:
        """Goes on with the handshake, and returns whether it is done."""
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except OSError:  # a failed handshake is the caller's affair
            self._flush()  # it is told what was wrong
            self._closing = True
            if self._transport is not None:
                self._transport.close()
            return False
        self._flush()
        self._end_handshake()
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        return not self._closing

    def _read(self) -> None:
        """Hands on all that can be read: nothing may be left here, since reading is paused below, at the socket."""
        pieces: list[bytes] = []
        is_over = False
        try:
            while piece := self._session.read(READ_BYTES):
                pieces.append(piece)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except OSError:
            self.abort()
            return
        self._flush()  # what TLS itself has to answer
        if pieces and self._protocol is not None:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_over:
            self.close()

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        on_handshake_over, self._on_handshake_over = self._on_handshake_over, None
        if on_handshake_over is not None:
            on_handshake_over(self)

    # As the transport of the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        try:
            self._session.write(data)  # into memory: all of it, or an error
        except OSError:
            self.abort()
            return
        self._flush()

    def close(self) -> None:
        """Says that nothing follows, and closes once everything is sent; the other side's word is not waited for."""
        if self._closing:
            return
        self._closing = True
        if self._protocol is not None:
            with suppress(OSError):
                self._session.unwrap()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Returns also whether the other side has left: a plain transport that closes must not be paused any more."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default) if self._transport is not None else default

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())
