"""Forwards requests to the orchestrator that leads, and its answers back, as they come."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from simpletuner_fleet.client.trust import Choices, TrustError, context_for_async
from simpletuner_fleet.core.errors import FleetError, NotLeader
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, head_of
from simpletuner_fleet.http.edge.route_table import WORKER_PATHS
from simpletuner_fleet.http.edge.streams import WRITE_TIMEOUT_S
from simpletuner_fleet.http.peers.proof import PASSED_ON, PeerProof
from simpletuner_fleet.http.peers.upstream import (
    BROKEN,
    CONNECT_TIMEOUT_S,
    LeaderConnections,
    Upstream,
    head_bytes,
)

log = logging.getLogger(__name__)

OF_ONE_CONNECTION = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that say something about a connection, not about what it carries."""
NOT_PASSED_BACK = frozenset(name.encode() for name in OF_ONE_CONNECTION) | {b"date"}
WITHOUT_BODY = (204, 304)
READING = ("GET", "HEAD")
JOIN_PATH = "/api/workers/join"
LAST_CHUNK = b"0\r\n\r\n"
TRUST_TIMEOUT_S = 2 * CONNECT_TIMEOUT_S
"""To see whether a leader shows the certificate that its lease names takes up to two connections."""


class Forwarder:
    def __init__(self, proof: PeerProof, leader: Callable[[], Lease | None], own_holder: str) -> None:
        self._proof = proof
        self._leader = leader
        self._own_holder = own_holder
        self._connections: LeaderConnections | None = None
        self._term = 0
        self._connecting = asyncio.Lock()
        self._is_over = False

    def leader_changed(self) -> None:
        """Ends requests to a former leader: their callers are answered now, and ask again."""
        lease = self._leader()
        if self._connections and (lease is None or lease.term != self._term):
            self._connections.close()
            self._connections = None

    def stop(self) -> None:
        """Ends what is being forwarded, streams too: callers come again, and find another server."""
        self._is_over = True
        if self._connections:
            self._connections.close()

    async def __call__(self, exchange: Exchange) -> None:
        """Forwards the request. Raises NotLeader as long as nothing was answered yet."""
        lease = self._lease()
        if PASSED_ON in exchange.headers:
            raise NotLeader(leader=lease.url)  # it was passed on once: never in a circle
        try:
            lease, connections = await self._reached()
            await self._exchange_with(connections, exchange, lease.term)
        except (*BROKEN, TrustError) as error:
            if exchange.begun:
                exchange.cut(at_once=False)
                return
            log.info("the leader at %s does not answer: %s", lease.url, str(error) or type(error).__name__)
            raise NotLeader(
                f"The leading orchestrator does not respond at {lease.url}.", leader=lease.url
            ) from error

    def _lease(self) -> Lease:
        lease = None if self._is_over else self._leader()
        if lease is None or lease.holder == self._own_holder:
            raise NotLeader("No orchestrator is leading right now; nothing was changed.")
        return lease

    async def _reached(self) -> tuple[Lease, LeaderConnections]:
        """Returns who leads, and the connections to it.

        Another may lead by the time that its turn has come, or that a certificate was shown: a leader that was frozen
        would otherwise be asked by everybody who waits, one after another.
        """
        async with self._connecting:
            while True:
                lease = self._lease()
                if self._connections is not None and self._term == lease.term:
                    return lease, self._connections
                if self._connections:
                    self._connections.close()
                    self._connections = None
                trust = Choices(fingerprint=lease.fingerprint or None)
                async with asyncio.timeout(TRUST_TIMEOUT_S):
                    context = await context_for_async(lease.url, trust, log.debug)
                if self._lease().term == lease.term:
                    self._connections, self._term = LeaderConnections(lease.url, context), lease.term

    async def _exchange_with(self, connections: LeaderConnections, exchange: Exchange, term: int) -> None:
        head, body = self._head(exchange, term), exchange.whole_body()
        may_repeat = body is not None and may_be_repeated(exchange.method, exchange.path)
        # The leader may just be closing a kept connection, as servers do, and nobody could tell whether it saw the request.
        upstream = await connections.take(fresh=not may_repeat)
        try:
            await _relay(connections, upstream, exchange, head, body)
        except BROKEN:
            if not may_repeat or not upstream.was_closed_before:
                raise
            await _relay(connections, await connections.take(fresh=True), exchange, head, body)

    def _head(self, exchange: Exchange, term: int) -> bytes:
        query = exchange.query.decode("latin-1")
        target = f"{exchange.path}?{query}" if query else exchange.path
        headers = [(name, value) for name, value in exchange.headers.items() if name not in OF_ONE_CONNECTION]
        if _comes_in_chunks(exchange.headers):
            headers.append(("transfer-encoding", "chunked"))
        return head_bytes(
            exchange.method, target, [*headers, (PASSED_ON, self._proof.header(exchange, term))]
        )


def _comes_in_chunks(headers: Mapping[str, str]) -> bool:
    return "content-length" not in headers and "transfer-encoding" in headers


def may_be_repeated(method: str, path: str) -> bool:
    """Tells whether a request does no harm where it arrives twice: reading does none, and a worker's messages do none.

    A machine joins with a token that works once.
    """
    return method in READING or (path.startswith(WORKER_PATHS) and path != JOIN_PATH)


async def _relay(
    connections: LeaderConnections, upstream: Upstream, exchange: Exchange, head: bytes, body: bytes | None
) -> None:
    """Sends the request and passes the answer back. The connection is kept where both were whole, and else dropped."""
    exchange.on_lost(upstream.give_up)
    sending = asyncio.create_task(_send(upstream, exchange, head, body))
    is_whole = without_body = False
    try:
        await upstream.read_head()
        without_body = await _pass_back(upstream, exchange)
        is_whole = sending.done() and sending.exception() is None
    except BROKEN:
        failure = sending.exception() if sending.done() else None
        if failure and not isinstance(failure, BROKEN):
            raise failure from None
        raise
    finally:
        sending.cancel()
        if is_whole:
            connections.give_back(upstream, without_body=without_body)
        else:
            connections.drop(upstream)
            await asyncio.gather(sending, return_exceptions=True)


async def _send(upstream: Upstream, exchange: Exchange, head: bytes, body: bytes | None) -> None:
    in_chunks = _comes_in_chunks(exchange.headers)
    if body is not None:
        await upstream.send(head + (_chunk(body, more=False) if in_chunks else body))
        return
    await upstream.send(head)
    more = True
    try:
        while more:
            piece, more = await exchange.receive()
            await upstream.send(_chunk(piece, more=more) if in_chunks else piece)
    except (CallerGone, FleetError):
        upstream.give_up()  # The leader would wait for the rest.
        raise


def _chunk(piece: bytes, *, more: bool) -> bytes:
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return chunk if more else chunk + LAST_CHUNK


async def _pass_back(upstream: Upstream, exchange: Exchange) -> bool:
    """Sends the answer back; returns whether its head says that no body follows."""
    status = upstream.status
    headers = [(name, value) for name, value in upstream.headers if name not in NOT_PASSED_BACK]
    if (b"connection", b"close") in upstream.headers:
        headers.append(
            (b"connection", b"close")
        )  # a caller who is refused in the middle of a body is not read to its end
    if status in WITHOUT_BODY:
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        exchange.respond(head_of(status, headers), b"")
        return True
    exchange.begin(head_of(status, headers))
    if exchange.method == "HEAD":
        exchange.finish()  # Its head has the length that a GET would have, and nothing follows.
        return False
    async for piece in upstream.body():
        await _write_in_time(exchange, piece)
    exchange.finish()
    return False


async def _write_in_time(exchange: Exchange, piece: bytes) -> None:
    """Sends a piece back. A caller who does not read is dropped, as the leader would: it keeps two connections busy."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await exchange.write(piece)
    except TimeoutError:
        exchange.cut(at_once=True)
        raise CallerGone from None
