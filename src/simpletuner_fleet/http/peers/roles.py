"""Runs the application on one of several servers: it answers while it leads, and else forwards requests."""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.errors import FleetError, NotLeader
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.access.auth import ANONYMOUS
from simpletuner_fleet.http.edge import problems
from simpletuner_fleet.http.edge.edge import Edge, ProblemPage
from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, head_of, into_task
from simpletuner_fleet.http.edge.heads import Heads
from simpletuner_fleet.http.peers.forwarder import Forwarder
from simpletuner_fleet.http.peers.proof import PASSED_ON, PeerProof
from simpletuner_fleet.protocol.problems import CONTENT_TYPE

LIVE, READY = "/health/live", "/health/ready"
JSON = "application/json"


class Standing(Struct, frozen=True, kw_only=True):
    """Tells who leads, and whether this server does, from what the keeper of the lease knows."""

    may_promise: Callable[[int], bool]
    """Whether it leads for sure in this term."""
    leader: Callable[[], Lease | None]
    is_connected: Callable[[], bool]
    """Whether the database was heard of lately."""
    holder: str


class FollowerReady(Struct, kw_only=True):
    status: str = "ready"
    version: str = __version__
    role: Literal["follower"] = "follower"
    leader: str
    """Where the other orchestrators reach the one that leads."""


class Roles:
    def __init__(
        self, standing: Standing, proof: PeerProof, *, tls: bool, problem_page: ProblemPage | None
    ) -> None:
        self._standing = standing
        self._proof = proof
        self._heads = Heads(tls)
        self._problem_page = problem_page
        self._edge: Edge | None = None
        self._term = 0
        self._forwarder = Forwarder(proof, standing.leader, standing.holder)

    def lead(self, edge: Edge, term: int) -> None:
        self._edge, self._term = edge, term

    def follow(self) -> None:
        self._edge = None

    def stop(self) -> None:
        """Stops forwarding, since the server is about to stop: nothing that another one answers delays it."""
        self._forwarder.stop()

    def leader_changed(self) -> None:
        self._forwarder.leader_changed()

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path == LIVE:
            self._answer(exchange, 200, {"status": "live", "version": __version__})
            return
        try:
            await self._walk(exchange)
        except CallerGone:
            return
        except FleetError as error:
            self._send_problem(problems.problem_of(error), exchange)

    async def _walk(self, exchange: Exchange) -> None:
        edge = self._edge
        if edge is not None:
            self._know_caller(exchange)
            if not self._standing.may_promise(self._term):
                raise NotLeader("This orchestrator is not sure it still leads; nothing was changed.")
            await edge(exchange)
        elif exchange.path == READY:
            self._say_ready(exchange)
        else:
            if not exchange.in_task:
                await into_task()
            await self._forwarder(exchange)

    def _know_caller(self, exchange: Exchange) -> None:
        """Treats a request that another orchestrator forwarded as if it had come here."""
        if PASSED_ON not in exchange.headers:
            return
        caller = self._proof.caller(exchange, self._term)
        del exchange.headers[PASSED_ON]
        if caller is not None:
            exchange.peer, exchange.secure = caller.peer, caller.secure

    def _say_ready(self, exchange: Exchange) -> None:
        if not self._standing.is_connected():
            raise NotLeader("The database is not responding, so it is unknown who leads.")
        lease = self._standing.leader()
        if lease is None or lease.holder == self._standing.holder:
            raise NotLeader("No orchestrator is leading right now, or this one is about to.")
        answer = FollowerReady(leader=lease.url)
        self._answer(exchange, 200, msgspec.to_builtins(answer))

    def _answer(self, exchange: Exchange, status: int, document: object) -> None:
        exchange.respond(self._heads.plain(status, exchange.path, JSON), msgspec.json.encode(document))

    def _send_problem(self, problem: problems.ProblemAnswer, exchange: Exchange) -> None:
        if exchange.begun:
            exchange.cut(at_once=False)
            return
        wants_page = exchange.method in ("GET", "HEAD") and "text/html" in exchange.headers.get("accept", "")
        if self._problem_page and wants_page and not exchange.path.startswith("/api/"):
            page = self._problem_page(problem, exchange.headers, exchange.path, ANONYMOUS)
            if page is not None:
                head = self._heads.with_more(
                    problem.status, exchange.path, page.content_type, page.headers, list(problem.headers)
                )
                exchange.respond(head, page.body if isinstance(page.body, bytes) else b"")
                return
        kind = (b"content-type", CONTENT_TYPE.encode())
        exchange.respond(head_of(problem.status, [*self._heads.of_api, *problem.headers, kind]), problem.body)
