"""Runs an application on our own sockets, and stops it within a second, streams or not."""

import asyncio
import logging
import resource
import signal
import socket
import ssl
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from email.utils import formatdate
from typing import Any

from msgspec import Struct

from simpletuner_fleet.http.edge.exchange import Application
from simpletuner_fleet.http.server.connection import BUSY, HEAD, IDLE, NEW, STREAM, HttpConnection
from simpletuner_fleet.http.server.http_exchange import HttpExchange
from simpletuner_fleet.http.server.shared_port import SharedPort
from simpletuner_fleet.http.server.sockets import BACKLOG, allow_many_connections, listen
from simpletuner_fleet.http.server.tls_connection import TlsConnection

IDLE_TIMEOUT_S = 75.0
IDLE_INTERVALS = 2.5
CROWDED_IDLE_TIMEOUT_S = 5.0
FILES_FOR_OTHERS = 256
GRACE_S = 5.0
LEAST_PER_PEER = 4
SWEEP_EVERY_S = 1.0

Hook = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


class Listening(Struct, frozen=True):
    host: str
    port: int
    tls: bool

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


async def serve(
    app: Application,
    host: str = "127.0.0.1",
    port: int = 8001,
    tls: ssl.SSLContext | None = None,
    on_ready: Callable[[Listening], None] | None = None,
    before_shutdown: Hook | None = None,
    *,
    stop: asyncio.Event | None = None,
    on_hangup: Callable[[], None] | None = None,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    plain_from: Callable[[str], bool] | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or `stop`. `before_shutdown` ends the streams; `on_hangup` handles SIGHUP.

    The addresses of `plain_from` may speak plain HTTP on the same port; without it there is TLS only, or none at all.
    """
    allow_many_connections()
    sockets = listen(host, port)
    server = HttpServer(app, idle_timeout_s)
    stopping = StopRequest(stop or asyncio.Event())
    try:
        with signals(stopping, on_hangup):
            acceptors = [await _acceptor(server, one, tls, plain_from) for one in sockets]
            if on_ready:
                on_ready(Listening(host, sockets[0].getsockname()[1], tls is not None))
            await server.sweep_until(stopping.asked)
            if before_shutdown:
                await before_shutdown()  # A stream ends only when it is told to.
            for acceptor in acceptors:
                acceptor.close()
            await server.shut_down(stopping)
    finally:
        for listener in sockets:
            listener.close()


async def _acceptor(
    server: "HttpServer",
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    plain_from: Callable[[str], bool] | None,
) -> "asyncio.Server | SharedPort":
    if tls and plain_from:
        return SharedPort(
            listener,
            tls,
            plain_from,
            lambda came_by_tls: HttpConnection(server, came_by_tls),
            most_connections() // 4,
        )

    def connection() -> asyncio.Protocol:
        return HttpConnection(server, tls is not None)

    def encrypted() -> asyncio.Protocol:
        assert tls
        return TlsConnection(tls, connection)

    return await asyncio.get_running_loop().create_server(
        encrypted if tls else connection, sock=listener, backlog=BACKLOG
    )


def idle_timeout_for(heartbeat_interval_s: float) -> float:
    """Returns how long a connection may be idle: a worker keeps it between heartbeats, even if one comes late.

    A new connection under TLS costs more than ten heartbeats.
    """
    return max(IDLE_TIMEOUT_S, IDLE_INTERVALS * heartbeat_interval_s)


class StopRequest:
    """Records whether the server was asked to stop, and whether it was asked again."""

    def __init__(self, asked: asyncio.Event) -> None:
        self.asked = asked
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """Asks the server to stop; asked a second time, it stops at once."""
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()


class HttpServer:
    """Runs the requests of all connections, and limits how many connections there are."""

    def __init__(self, app: Application, idle_timeout_s: float) -> None:
        self._app = app
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._idle_timeout_s = idle_timeout_s
        self._connections: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.waiting: set[TasklessRequest] = set()
        """Requests that wait for something, to be ended when the server stops."""
        self._most = most_connections()
        self._most_per_peer = max(LEAST_PER_PEER, self._most * 3 // 4)
        """One address never has them all; many workers may share one, behind a proxy or a gateway."""
        self._by_peer: Counter[str] = Counter()
        self._all_gone = asyncio.Event()
        self.date_line = b""
        self._tell_date()

    def admit(self, connection: HttpConnection) -> bool:
        peer = connection.peer
        if len(self._connections) >= self._most or self._by_peer[peer] >= self._most_per_peer:
            return False
        self._by_peer[peer] += 1
        self._connections.add(connection)
        return True

    def forget(self, connection: HttpConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._by_peer[connection.peer] -= 1
            if not self._by_peer[connection.peer]:
                del self._by_peer[connection.peer]
        if not self._connections:
            self._all_gone.set()

    def run(self, exchange: HttpExchange) -> None:
        """Runs a request at once, as far as it goes without waiting."""
        exchange.in_task = False
        request = TasklessRequest(self, self._app(exchange), exchange)
        request.context.run(request.resume)

    def continue_in_task(self, request: "TasklessRequest") -> None:
        self.waiting.discard(request)
        request.exchange.in_task = True
        task = self._loop.create_task(_run_rest(request), context=request.context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sweep_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.sweep_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_EVERY_S):
                    await stop.wait()

    def sweep_once(self) -> None:
        """Ends connections that have taken too long over a head or were idle for too long."""
        self._tell_date()
        now = self.now()
        crowded = len(self._connections) > self._most * 3 // 4
        idle_s = min(self._idle_timeout_s, CROWDED_IDLE_TIMEOUT_S) if crowded else self._idle_timeout_s
        for connection in list(self._connections):
            state = connection.state
            if state in (BUSY, STREAM):
                continue
            if state in (NEW, HEAD):
                if now - connection.since > connection.head_timeout_s:
                    connection.abort()
            elif now - connection.since > idle_s:
                connection.close() if state == IDLE else connection.abort()

    async def shut_down(self, stopping: StopRequest) -> None:
        """Waits for the answers under way, up to a limit."""
        for connection in list(self._connections):
            connection.shut_down()
        self._all_gone.clear()
        if self._connections:
            await _first_of(self._all_gone.wait(), stopping.at_once.wait(), asyncio.sleep(GRACE_S))
        for task in list(self._tasks):
            task.cancel("the server stops")
        for request in list(self.waiting):
            request.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)

    def _tell_date(self) -> None:
        self.date_line = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode("ascii")


class TasklessRequest:
    """Answers a request without a task: a task costs more than the rest of a small answer.

    Whatever it waits for calls it back. Where it needs a task after all, it is given one and goes on there.
    """

    __slots__ = ("_over", "_server", "context", "coroutine", "exchange")

    def __init__(
        self, server: HttpServer, coroutine: Coroutine[Any, Any, None], exchange: HttpExchange
    ) -> None:
        self._server = server
        self.coroutine = coroutine
        self.exchange = exchange
        self.context = copy_context()
        self._over = False

    def resume(self, _awaited: "asyncio.Future[Any] | None" = None) -> None:
        if self._over:
            return  # it was broken off while it waited
        try:
            awaited = self.coroutine.send(None)
        except StopIteration:
            self._finish()
        except Exception:
            log.exception("a request was not answered")
            self._finish()
        else:
            self._wait_for(awaited)

    def cancel(self) -> None:
        """Cancels the request where it waits."""
        with suppress(StopIteration, asyncio.CancelledError):
            self.coroutine.throw(asyncio.CancelledError("the server stops"))
        self._finish()

    def _wait_for(self, awaited: "asyncio.Future[Any] | None") -> None:
        if awaited is None:
            self._server.continue_in_task(self)
            return
        awaited._asyncio_future_blocking = False  # as a task does when it begins to wait
        awaited.add_done_callback(self.resume, context=self.context)
        self._server.waiting.add(self)

    def _finish(self) -> None:
        self._over = True
        self._server.waiting.discard(self)
        if not self.exchange.begun:
            cut_off(self.exchange)


async def _run_rest(request: TasklessRequest) -> None:
    try:
        await _unfinished(request.coroutine)
    finally:
        if not request.exchange.begun:
            cut_off(request.exchange)


@types.coroutine
def _unfinished(coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Continues, within a task, a coroutine that was begun outside of any."""
    awaited: Any = None
    wanted_a_task = True
    try:
        while True:
            try:
                value = None if wanted_a_task else (yield awaited)
            except BaseException as error:
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(value)
            wanted_a_task = False
    except StopIteration:
        return


def cut_off(exchange: HttpExchange) -> None:
    """Closes the connection of a request that nobody will answer any more: its caller must not wait for ever."""
    exchange.cut(at_once=False)


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(one) for one in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def most_connections() -> int:
    """Returns how many connections are allowed, which leaves some files for the store, the logs and the disk."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, soft - FILES_FOR_OTHERS)


@contextmanager
def signals(stopping: StopRequest, on_hangup: Callable[[], None] | None) -> Iterator[None]:
    """Handles signals. It does nothing outside the main thread, where that is not possible."""
    loop = asyncio.get_running_loop()
    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: stopping.ask,
        signal.SIGINT: stopping.ask,
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
