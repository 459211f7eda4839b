"""Runs the application on sockets of our own making, and stops it within a second, streams or not."""

import asyncio
import errno
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httptools
import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.http.sse_response import ABORT_EXTENSION

BACKLOG = 4096
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3
USER_TIMEOUT_MS = 15_000
IDLE_TIMEOUT_S = 20
HEAD_TIMEOUT_S = 15.0
MAX_HEAD_BYTES = 64 * 1024
GRACE_S = 5
DATE_HEADER_EVERY_S = 1.0

Hook = Callable[[], Awaitable[None]]


class CannotListen(FleetError):
    """The server cannot listen on this address."""

    code = "cannot_listen"


class AddressInUse(CannotListen):
    """Another program listens on this port already."""

    code = "address_in_use"


class Listening(Struct, frozen=True):
    host: str
    port: int
    tls: bool

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


async def serve(
    app: ASGIApp,
    host: str = "127.0.0.1",
    port: int = 8001,
    tls: ssl.SSLContext | None = None,
    on_ready: Callable[[Listening], None] | None = None,
    before_shutdown: Hook | None = None,
    *,
    stop: asyncio.Event | None = None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Returns after SIGTERM, SIGINT or `stop`. `before_shutdown` ends the streams; `on_hangup` answers SIGHUP."""
    allow_many_connections()
    sockets = listen(host, port)
    stop = stop or asyncio.Event()
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_TIMEOUT_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    config.load()
    config.ssl = tls

    def ready() -> None:
        if on_ready:
            on_ready(Listening(host, sockets[0].getsockname()[1], tls is not None))

    server = FleetServer(config, stop, ready, before_shutdown)
    try:
        with signals(server, on_hangup):
            await server.serve(sockets)
    finally:
        for listener in sockets:
            listener.close()


class FleetServer(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        stop: asyncio.Event,
        ready: Callable[[], None],
        before_shutdown: Hook | None,
    ) -> None:
        super().__init__(config)
        self._stop = stop
        self._ready = ready
        self._before_shutdown = before_shutdown

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours come through the loop, and a clean stop exits with 0 instead of dying of the signal after all."""
        yield

    def ask_to_stop(self) -> None:
        """A second time means now."""
        self.force_exit = self._stop.is_set()
        self._stop.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_HEADER_EVERY_S):
                    await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams first: uvicorn waits for every open connection, and a stream ends only when it is told to."""
        if self._before_shutdown:
            await self._before_shutdown()
        await super().shutdown(sockets)


class GuardedProtocol(HttpToolsProtocol):
    """Bounds what uvicorn leaves open: how long and how large a request's head may be. Lends streams an abort."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _head_fields = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self.scope is not None:
            self.scope.get(
                "extensions", {}
            ).clear()  # it leads back here, and would keep us until the next collection
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._guard_head()

    def _guard_head(self) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop_head_timer()
            self.send_400_response("The request's head is too large.")
        elif self._head_timer is None:
            self._start_head_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_fields += len(name) + len(value)
        if self._head_fields > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("the request's head is too large")
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_fields = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self._abort}}
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _abort(self) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()


def listen(host: str, port: int) -> list[socket.socket]:
    """One socket per address of the host, all on one port. Accepted sockets inherit the options."""
    sockets: list[socket.socket] = []
    try:
        for family, address in resolve(host, port):
            sockets.append(_bound(family, (address[0], port or _port_of(sockets), *address[2:]), host))
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise cannot_listen(host, port, error) from error
    return sockets


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(
            f"The host '{host}' is not known: {error.strerror}.",
            next_step="Use an address of this machine, 127.0.0.1 for this machine alone, or 0.0.0.0 for all.",
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found if usable(family)))


def usable(family: socket.AddressFamily) -> bool:
    """A host name may have an IPv6 address on a machine whose kernel has none."""
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0


def _bound(family: socket.AddressFamily, address: tuple[Any, ...], host: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        notice_dead_peers(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def notice_dead_peers(listener: socket.socket) -> None:
    """A peer that vanished says nothing, and pings into the void raise no error for minutes: the kernel must ask."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    match error.errno:
        case errno.EADDRINUSE:
            return AddressInUse(
                f"Port {port} on {host} is in use by another program.",
                next_step=f"Stop that program ('ss -ltnp sport = :{port}' names it) or choose another '--port'.",
            )
        case errno.EACCES | errno.EPERM:
            return CannotListen(
                f"This user may not listen on port {port}.", next_step="Choose a '--port' above 1023."
            )
        case errno.EADDRNOTAVAIL:
            return CannotListen(
                f"{host} is no address of this machine.",
                next_step="Use 0.0.0.0 to listen on every address of this machine.",
            )
    return CannotListen(f"The server cannot listen on {host} port {port}: {error.strerror}.")


@contextmanager
def signals(server: FleetServer, on_hangup: Callable[[], None] | None) -> Iterator[None]:
    """Does nothing outside the main thread, where signals cannot be had."""
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: server.ask_to_stop,
        signal.SIGINT: server.ask_to_stop,
    }
    if on_hangup:
        handlers[signal.SIGHUP] = on_hangup
    with suppress(ValueError, RuntimeError):
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for number in handlers:
                loop.remove_signal_handler(number)


def allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
