"""Servers of one fleet in one process, over real sockets; who leads is said by the test."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from msgspec import Struct

from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.edge.bodies import Incoming
from simpletuner_fleet.http.edge.edge import EdgeSettings, build_app
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.http.peers.proof import PeerProof
from simpletuner_fleet.http.peers.roles import Roles, Standing
from simpletuner_fleet.http.server.serving import Listening, serve
from tests.http.edge_kit import MemoryCredentials

SECRET = b"k" * 32
TERM = 7


class Seen(Struct):
    ip: str
    secure: bool
    digest: str = ""
    ends: str = ""
    """Of the connection over which the request came here."""


looks: list[str] = []


async def look(call: Call[None]) -> Seen:
    looks.append(call.ip)
    return Seen(ip=call.ip, secure=call.secure, ends=call.ends())


async def take(call: Call[Incoming]) -> Seen:
    digest = hashlib.sha256()
    async for piece in call.body.pieces(65536):
        digest.update(piece)
    return Seen(ip=call.ip, secure=call.secure, digest=digest.hexdigest(), ends=call.ends())


async def give(call: Call[None]) -> Reply:
    return Reply(body=b"x" * 3_000_000, content_type="application/octet-stream")


async def hang(call: Call[None]) -> Seen:
    await asyncio.Event().wait()
    raise AssertionError


ROUTES = [
    Route("GET", "/look", look, PUBLIC, answer=Seen),
    Route("PUT", "/take", take, PUBLIC, body=bytes, pieces=True, max_body_bytes=10_000_000, answer=Seen),
    Route("GET", "/give", give, PUBLIC),
    Route("GET", "/hang", hang, PUBLIC, answer=Seen),
]


class Peer:
    """One server; who leads, and whether that is sure, is said by the test."""

    def __init__(self, name: str, secret: bytes = SECRET) -> None:
        self.lease: Lease | None = None
        self.is_sure = True
        self.is_connected = True
        self.listening: Listening | None = None
        standing = Standing(
            may_promise=lambda term: self.is_sure and term == TERM,
            leader=lambda: self.lease,
            is_connected=lambda: self.is_connected,
            holder=name,
        )
        self.name = name
        self.roles = Roles(standing, PeerProof(secret), tls=False, problem_page=None)
        self.edge = build_app(
            ROUTES,
            None,
            credentials=MemoryCredentials(),
            settings=EdgeSettings(term=TERM, may_promise=lambda: self.is_sure),
        )

    @property
    def at(self) -> Listening:
        assert self.listening is not None
        return self.listening

    @property
    def url(self) -> str:
        return self.at.url


@asynccontextmanager
async def served(peer: Peer) -> AsyncIterator[Peer]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve(peer.roles, "127.0.0.1", 0, None, ready.set_result, peer.edge.end_streams, stop=stop)
    )
    peer.listening = await ready
    try:
        yield peer
    finally:
        peer.roles.stop()
        stop.set()
        await asyncio.wait_for(server, 15)


@asynccontextmanager
async def pair(secret: bytes = SECRET) -> AsyncIterator[tuple[Peer, Peer, httpx2.AsyncClient]]:
    """A leader, a follower, and a client of the follower."""
    async with served(Peer("leader")) as leader, served(Peer("follower", secret)) as follower:
        leader.lease = follower.lease = Lease(term=TERM, holder="leader", url=leader.url)
        leader.roles.lead(leader.edge, TERM)
        async with httpx2.AsyncClient(base_url=follower.url, trust_env=False, timeout=20) as client:
            yield leader, follower, client
