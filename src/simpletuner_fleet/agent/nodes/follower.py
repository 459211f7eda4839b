"""Runs a follower node: it obeys the first node, and ends its parts when that has been silent for a whole lease."""

import asyncio
import logging
import math
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Literal

from simpletuner_fleet.agent.gpus.gpu_probe import with_age
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.nodes.messages import (
    AskRank,
    Beat,
    ContentEnd,
    ContentPiece,
    FetchContent,
    ForgetRank,
    FromFollower,
    GoRank,
    JoinNode,
    LeaseLeft,
    LeaveNow,
    NodeEnds,
    NotWelcome,
    PrepareRank,
    Printed,
    StopRank,
    ToFollower,
    Welcome,
)
from simpletuner_fleet.agent.nodes.node_connection import ConnectionLost, NodeConnection, dial
from simpletuner_fleet.agent.nodes.ranks import NodeParts, lease_is_over
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.worker_errors import NotANode
from simpletuner_fleet.protocol.messages import GpuSample

log = logging.getLogger(__name__)

FIRST_BEAT_S = 0.2
SAMPLE_EVERY_S = 10.0
FIRST_LENGTH_S = 10.0
LOOK_EVERY_S = 0.1
SILENT_SHARE = 0.5
"""Of a lease: after so long without an answer the connection is given up, and another one dialled."""
SAID_AGAIN_S = 60.0
GREETED_WITHIN_S = 15.0
CONTENT_WITHIN_S = 120.0
"""Between two pieces of a file: longer than the first node waits for the orchestrator. A line that is dead says nothing."""


class FirstNode:
    """Knows the address of the first node, and fetches from it what attempts need."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        self.host, self.port, self._context = host, port, context

    async def dial(self) -> NodeConnection[ToFollower]:
        return await dial(self.host, self.port, self._context)

    @asynccontextmanager
    async def fetch_object(
        self, job_id: str, sha256: str, offset: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._fetch("object", job_id, sha256, offset) as chunks:
            yield chunks

    @asynccontextmanager
    async def fetch_data(self, job_id: str, sha256: str, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._fetch("data", job_id, sha256, offset) as chunks:
            yield chunks

    @asynccontextmanager
    async def _fetch(
        self, kind: Literal["object", "data"], job_id: str, sha256: str, offset: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            connection = await self.dial()
        except ConnectionLost as error:
            raise Unreachable(error, refused=False) from error
        try:
            connection.send(FetchContent(kind=kind, job_id=job_id, sha256=sha256, offset=offset))
            yield _chunks(connection)
        finally:
            connection.close()


async def _chunks(connection: NodeConnection[ToFollower]) -> AsyncIterator[bytes]:
    try:
        while True:
            async with asyncio.timeout(CONTENT_WITHIN_S):
                message = await connection.receive()
            match message:
                case ContentPiece(data=data):
                    yield data
                case ContentEnd(trouble=trouble, passing=passing):
                    if trouble and passing:
                        raise Unreachable(ConnectionError(trouble), refused=False)
                    if trouble:
                        raise Refused(HTTPStatus.CONFLICT, "not_found", trouble)
                    return
    except ConnectionLost as error:
        raise Unreachable(error, refused=False) from error
    except TimeoutError as error:
        raise Unreachable(TimeoutError("the first node sends no more of it"), refused=False) from error


class Follower:
    def __init__(self, first: FirstNode, introduce: Callable[[list[Turn]], JoinNode]) -> None:
        """Follows the first node; `introduce` makes the first message, with the parts that this node has."""
        self._first, self._introduce = first, introduce
        self._connection: NodeConnection[ToFollower] | None = None
        self._answered_at = boottime()
        """When the newest beat that was answered was sent."""
        self._length_s, self._every_s = FIRST_LENGTH_S, FIRST_BEAT_S
        self._ends: NodeEnds | None = None
        self.samples: list[GpuSample] = []
        self.samples_read_at = -math.inf
        self.leaving = asyncio.Event()
        self.ranks: NodeParts | None = None
        self._doing: set[asyncio.Task[None]] = set()

    def tell(self, message: FromFollower) -> bool:
        """Returns False where it was not sent: there is no connection, or output must wait on a slow one."""
        if self._connection is None or (isinstance(message, Printed) and not self._connection.has_room):
            return False
        self._connection.send(message)
        return True

    @property
    def silent_s(self) -> float:
        return boottime() - self._answered_at

    def machine_ends(self, source: str, in_s: float) -> None:
        """Tells the first node that this machine ends, and leaves when it says so, or when the time is over.

        The first node gives back what runs before that. Without a connection to it this node leaves at once.
        """
        if self._connection is None or self._ends is not None:
            self.leaving.set()
            return
        self._ends = NodeEnds(source=source, in_s=in_s)
        self.tell(self._ends)
        asyncio.get_running_loop().call_later(in_s, self.leaving.set)

    async def follow(self) -> None:
        """Returns when it is to leave. Raises NotANode."""
        minding = asyncio.create_task(self._mind())
        leaving = asyncio.create_task(self.leaving.wait())
        speaking = asyncio.create_task(self._keep_line())
        try:
            await asyncio.wait({leaving, speaking, minding}, return_when=asyncio.FIRST_COMPLETED)
            for task in (speaking, minding):
                if task.done():
                    task.result()
        finally:
            leaving.cancel()
            minding.cancel()
            speaking.cancel()
            await asyncio.gather(minding, leaving, speaking, return_exceptions=True)
            if self._connection is not None:
                self._connection.close()

    async def _keep_line(self) -> None:
        backoff, said_at = Backoff(0.1, 2.0), 0.0
        while not self.leaving.is_set():
            try:
                await self._speak(await self._first.dial())
                backoff.reset()
            except ConnectionLost as error:
                if boottime() >= said_at + SAID_AGAIN_S:
                    said_at = boottime()
                    log.warning(
                        "no line to the first node %s:%d: %s", self._first.host, self._first.port, error
                    )
            await asyncio.sleep(backoff.next_s())

    async def _speak(self, connection: NodeConnection[ToFollower]) -> None:
        assert self.ranks is not None
        beating: asyncio.Task[None] | None = None
        try:
            connection.send(self._introduce(self.ranks.held()))
            match await _greeting(connection):
                case Welcome(node=node, printed=printed):
                    log.info("this is node %d of the worker of %s", node, self._first.host)
                case NotWelcome(reason=reason):
                    raise NotANode(f"The first node does not take this one in: {reason}.")
                case _:
                    raise ConnectionLost("it does not greet")
            self._connection = connection
            self.ranks.welcomed(printed)
            if self._ends is not None:
                connection.send(self._ends)
            beating = asyncio.create_task(self._beat(connection))
            while not self.leaving.is_set():
                self._obey(self.ranks, await connection.receive())
        finally:
            self._connection = None
            connection.close()
            if beating is not None:
                beating.cancel()

    async def _beat(self, connection: NodeConnection[ToFollower]) -> None:
        asked_at = boottime()
        while True:
            now = boottime()
            if self._answered_at >= asked_at:
                asked_at = now
            elif now >= asked_at + SILENT_SHARE * self._length_s:
                log.warning("the first node does not answer: the line is dialled anew")
                connection.cut()
                return
            samples = with_age(self.samples, now - self.samples_read_at, SAMPLE_EVERY_S)
            connection.send(Beat(sent=now, samples=samples))
            await asyncio.sleep(self._every_s)

    def _obey(self, ranks: NodeParts, message: ToFollower) -> None:
        match message:
            case LeaseLeft(sent=sent, left_s=left_s, length_s=length_s, every_s=every_s):
                self._answered_at = max(self._answered_at, sent)
                self._length_s, self._every_s = length_s, every_s
                ranks.renew(sent, left_s)
            case PrepareRank():
                ranks.prepare(message)
            case GoRank():
                ranks.go(message.turn)
            case StopRank(grace_s=grace_s):
                ranks.stop(message.turn, grace_s)
            case AskRank(request=request, number=number):
                self._do(ranks.ask(message.turn, request, number))
            case ForgetRank():
                self._do(ranks.forget(message.turn))
            case LeaveNow(reason=reason):
                log.info("leaving: %s", reason)
                self.leaving.set()
            case _:
                log.debug("the first node says %s", type(message).__name__)

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _mind(self) -> None:
        """Stops all parts after a whole lease without an answer: the first node has given this node up by then."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if (
                self.ranks is not None
                and self.ranks.held()
                and lease_is_over(self._answered_at, self._length_s)
            ):
                self.ranks.stop_all()


async def _greeting(connection: NodeConnection[ToFollower]) -> ToFollower:
    """Waits only so long: a first node that dies after it took the call leaves a line on which nothing ever comes."""
    try:
        async with asyncio.timeout(GREETED_WITHIN_S):
            return await connection.receive()
    except TimeoutError as error:
        raise ConnectionLost("it does not greet") from error


async def leave_if_alone(follower: Follower, leave_after_s: float | None) -> None:
    if leave_after_s is None:
        return
    while follower.silent_s < leave_after_s:
        with suppress(TimeoutError):
            await asyncio.wait_for(follower.leaving.wait(), max(0.1, leave_after_s - follower.silent_s))
            return
    log.error("no first node has answered for %g s: this node leaves", leave_after_s)
    follower.leaving.set()
