"""Forwards requests to the orchestrator that leads, and its answers back, as they come."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from simpletuner_fleet.client.trust import Choices, TrustError, context_for_async
from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, head_of
from simpletuner_fleet.http.peers.proof import PASSED_ON, PeerProof
from simpletuner_fleet.http.peers.upstream import BROKEN, LeaderConnections, Upstream, head_bytes

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
        lease = None if self._is_over else self._leader()
        if lease is None or lease.holder == self._own_holder:
            raise NotLeader("No orchestrator is leading right now; nothing was changed.")
        if PASSED_ON in exchange.headers:
            raise NotLeader(leader=lease.url)  # it was passed on once: never in a circle
        try:
            connections = await self._connections_to(lease)
            await self._exchange_with(connections, exchange, lease.term)
        except (*BROKEN, TrustError) as error:
            if exchange.begun:
                exchange.cut(at_once=False)
                return
            log.info("the leader at %s does not answer: %s", lease.url, str(error) or type(error).__name__)
            raise NotLeader(
                f"The leading orchestrator does not respond at {lease.url}.", leader=lease.url
            ) from error

    async def _connections_to(self, lease: Lease) -> LeaderConnections:
        async with self._connecting:
            if self._connections is None or self._term != lease.term:
                if self._connections:
                    self._connections.close()
                trust = Choices(fingerprint=lease.fingerprint or None)
                context = await context_for_async(lease.url, trust, log.debug)
                self._connections = LeaderConnections(lease.url, context)
                self._term = lease.term
            return self._connections

    async def _exchange_with(self, connections: LeaderConnections, exchange: Exchange, term: int) -> None:
        head = self._head(exchange, term)
        upstream = await connections.take(fresh=False)
        try:
            await self._relay(connections, upstream, exchange, head)
        except BROKEN:
            # The leader may have closed it just before, as servers do; a request may always be made again.
            if exchange.begun or not upstream.is_reused or upstream.was_answered:
                raise
            if exchange.whole_body() is None:
                raise
            upstream = await connections.take(fresh=True)
            await self._relay(connections, upstream, exchange, head)

    async def _relay(
        self, connections: LeaderConnections, upstream: Upstream, exchange: Exchange, head: bytes
    ) -> None:
        exchange.on_lost(upstream.abort)
        sending = asyncio.create_task(_send(upstream, exchange, head))
        try:
            await upstream.read_head()
            without_body = await _pass_back(upstream, exchange)
            if sending.done() and sending.exception() is None:
                connections.give_back(upstream, without_body=without_body)
                return
        except BROKEN:
            if sending.done() and isinstance(sending.exception(), CallerGone):
                raise CallerGone from None
            raise
        finally:
            if not sending.done():
                sending.cancel()
            with suppress(asyncio.CancelledError, CallerGone, *BROKEN):
                await sending
            connections.drop(upstream)

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


async def _send(upstream: Upstream, exchange: Exchange, head: bytes) -> None:
    whole = exchange.whole_body()
    in_chunks = _comes_in_chunks(exchange.headers)
    if whole is not None and not in_chunks:
        await upstream.send(head + whole)
        return
    await upstream.send(head)
    more = True
    while more:
        piece, more = await exchange.receive()
        if in_chunks:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            piece += b"" if more else b"0\r\n\r\n"
        await upstream.send(piece)


async def _pass_back(upstream: Upstream, exchange: Exchange) -> bool:
    """Sends the answer back; returns whether its head says that no body follows."""
    status = upstream.status
    headers = [(name, value) for name, value in upstream.headers if name not in NOT_PASSED_BACK]
    if (b"connection", b"close") in upstream.headers:
        headers.append(
            (b"connection", b"close")
        )  # a caller who is refused in the middle of a body is not read to its end
    without_body = status in WITHOUT_BODY or exchange.method == "HEAD"
    if without_body:
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        exchange.respond(head_of(status, headers), b"")
        return status in WITHOUT_BODY
    exchange.begin(head_of(status, headers))
    async for piece in upstream.body():
        await exchange.write(piece)
    exchange.finish()
    return False
