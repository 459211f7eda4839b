"""Runs the first node of a worker: it admits the others, gives them their parts, and shares the lease with them."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import UNSET, Struct
from msgspec.structs import replace

from simpletuner_fleet import __version__
from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.data.downloads import ContentSource
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.nodes.members import NodeMember, complaint_about, member_of
from simpletuner_fleet.agent.nodes.messages import (
    Beat,
    ContentEnd,
    ContentPiece,
    FetchContent,
    ForgetRank,
    FromFollower,
    JoinNode,
    LeaseLeft,
    LeaveNow,
    NodeEnds,
    NotWelcome,
    Printed,
    RankEnded,
    RankHeld,
    Welcome,
)
from simpletuner_fleet.agent.nodes.node_connection import FROM_FOLLOWER, ConnectionLost, NodeConnection
from simpletuner_fleet.agent.nodes.spanned import LOGS, FollowerPart, SpannedAttempt, part_of
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuSample, JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan
from simpletuner_fleet.trainers.launchers.launcher import free_port

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 8
SLOWEST_BEAT_S = 1.0
LOOKS_PER_LEASE = 10
HELLO_WITHIN_S = 15.0
NOBODY_YET_S = 60.0
"""How long a node may be silent while there is no lease that it could share."""
WANTED_LOOK_S = 0.2
REMIND_EVERY_S = 60.0
LOST_LINE = AttemptEnding(reason=EndReason.AGENT_LOST, error="a node of the worker is not connected")


class WorkerLease(Struct, frozen=True):
    """Tells how long trainers may run, by this node's clock."""

    until: float
    length_s: float


class NodeHost:
    """Accepts connections from the other nodes of the worker, on its first node.

    Use it as an async context manager: it listens while it is open.
    """

    def __init__(
        self,
        nodes: int,
        address: tuple[str, int],
        context: ssl.SSLContext,
        source: ContentSource,
        own_name: str,
        own: Sequence[Gpu],
    ) -> None:
        """`own` are the GPUs that this node has, and `source` is asked for what the others need."""
        self._count = nodes - 1
        self._address, self._context, self._source, self._own_name = address, context, source, own_name
        self._own = tuple(own)
        self._members: list[NodeMember] = []
        self._attempts: dict[Turn, SpannedAttempt] = {}
        self._all_here = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.lease: Callable[[], WorkerLease] = lambda: WorkerLease(boottime(), NOBODY_YET_S)
        self.on_change: Callable[[], None] = lambda: None
        """A node came or went."""
        self.on_end: Callable[[str, float], None] = lambda source, in_s: None
        """A node's machine is taken away: who says so, and in how many seconds."""

    async def __aenter__(self) -> Self:
        host, port = self._address
        self._server = await asyncio.start_server(self._take, host or None, port, ssl=self._context)
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tells all nodes to leave, since their worker has left."""
        if self._looking:
            self._looking.cancel()
        if self._server:
            self._server.close()
        for member in self._members:
            if member.connection is not None:
                member.send(LeaveNow(reason="the worker has left"))
                await member.connection.finish()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def gathered(self) -> Sequence[NodeMember]:
        """Returns the others once all of them have joined."""
        while True:
            missing = self._count - len(self._members)
            log.info("waiting for %d more node(s) of this worker", missing)
            with suppress(TimeoutError):
                async with asyncio.timeout(REMIND_EVERY_S):
                    await self._all_here.wait()
                    return sorted(self._members, key=lambda member: member.node)

    def samples(self) -> list[GpuSample]:
        """Returns how the GPUs of the other nodes are doing."""
        return [sample for member in self._members for sample in member.health()]

    # Attempts

    def begin(self, offer: JobSubmit, folder: Path) -> tuple[JobSubmit, NodeSpan] | None:
        """Returns this node's own part of an attempt; None where a node of it is away."""
        shares = self._shares(offer)
        if shares is None:
            return None
        address = shares[0][0].connection.own_address if shares[0][0].connection else ""
        port = free_port()
        own_uuids = {gpu.uuid for gpu in self._own}
        own = [uuid for uuid in offer.gpus if uuid in own_uuids]
        parts = []
        for rank, (member, uuids) in enumerate(shares, start=1):
            span = NodeSpan(nodes=offer.nodes, rank=rank, address=_address_for(member, address), port=port)
            named = part_of(offer, uuids)
            part = replace(named, gpus=[member.own_names[uuid] for uuid in uuids], upload_token=UNSET)
            log_file = folder / LOGS / f"rank-{rank * len(uuids)}.log"
            parts.append(FollowerPart(member, part, span, log_file))
        self._attempts[turn_of(offer)] = SpannedAttempt(offer, parts, self._own_name)
        return part_of(offer, own), NodeSpan(nodes=offer.nodes, rank=0, address=address, port=port)

    def _shares(self, offer: JobSubmit) -> list[tuple[NodeMember, list[str]]] | None:
        shares = []
        for member in sorted(self._members, key=lambda member: member.node):
            uuids = [uuid for uuid in offer.gpus if uuid in member.own_names]
            if uuids:
                shares.append((member, uuids))
        is_whole = len(shares) == offer.nodes - 1 and all(
            member.connection is not None for member, _ in shares
        )
        return shares if is_whole else None

    async def hold(self, turn: Turn, is_wanted: Callable[[], bool]) -> AttemptEnding | None:
        """Has the other nodes prepare their parts up to the last step.

        Returns None once they have, else why it cannot start.
        """
        attempt = self._attempts.get(turn)
        if attempt is None:
            return LOST_LINE
        attempt.prepare()
        holding = asyncio.create_task(attempt.all_held())
        try:
            while not holding.done():
                await asyncio.wait({holding}, timeout=WANTED_LOOK_S)
                if not is_wanted():
                    return AttemptEnding(reason=EndReason.STOPPED)
        finally:
            holding.cancel()
        return attempt.why_not()

    def attempt(self, turn: Turn) -> SpannedAttempt | None:
        return self._attempts.get(turn)

    def forget(self, turn: Turn) -> None:
        attempt = self._attempts.pop(turn, None)
        if attempt:
            attempt.forget()

    # Connections

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = NodeConnection(reader, writer, FROM_FOLLOWER)
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                first = await connection.receive()
            match first:
                case JoinNode():
                    await self._serve(connection, first)
                case FetchContent():
                    await self._fetch(connection, first)
                case _:
                    pass
        except (ConnectionLost, TimeoutError) as error:
            log.debug("a line of a node ended: %s", error)
        finally:
            self._connections.discard(task)
            connection.close()

    async def _serve(self, connection: NodeConnection[FromFollower], join: JoinNode) -> None:
        member = self._joined(join)
        if isinstance(member, str):
            log.warning("node %s is not taken in: %s", join.name, member)
            connection.send(NotWelcome(reason=member))
            await connection.finish()
            return
        if member.connection is not None:
            member.connection.close()
        member.connection, member.heard_at = connection, boottime()
        log.info("node %d (%s) is connected from %s", member.node, member.name, connection.other_address)
        self._greet(member, join)
        if len(self._members) == self._count:
            self._all_here.set()
        self.on_change()
        try:
            while True:
                self._hear(member, await connection.receive())
        finally:
            if member.connection is connection:
                member.connection = None
                log.warning("node %d (%s) is not connected any more", member.node, member.name)
                self.on_change()

    def _joined(self, join: JoinNode) -> NodeMember | str:
        complaint = complaint_about(join, __version__, self._own, self._members)
        known = next((one for one in self._members if one.home == join.home), None)
        if complaint or known:
            return complaint or known or ""
        if len(self._members) >= self._count:
            return "the worker has all its nodes; start the first node anew to take another in"
        member = member_of(join, len(self._members) + 1)
        self._members.append(member)
        return member

    def _greet(self, member: NodeMember, join: JoinNode) -> None:
        parts = [(attempt, part) for attempt in self._attempts.values() for part in attempt.parts]
        own = [(attempt, part) for attempt, part in parts if part.member is member]
        member.send(Welcome(node=member.node, printed=[part.so_far() for _, part in own]))
        for turn in join.holds:
            if turn not in self._attempts:
                member.send(ForgetRank(job_id=turn.job_id, epoch=turn.epoch))
        for attempt, part in own:
            if attempt.turn in join.holds:
                part.back_again()
            elif part.end is None and part.is_prepared:
                attempt.part_ended(part, None)

    def _hear(self, member: NodeMember, message: FromFollower) -> None:
        member.heard_at = boottime()
        match message:
            case Beat(sent=sent, samples=samples):
                member.samples = member.samples if samples is None else tuple(samples)
                lease = self.lease()
                member.send(
                    LeaseLeft(
                        sent=sent,
                        # Before the first answer of the orchestrator it is minus infinity, which JSON cannot say.
                        left_s=max(-lease.length_s, lease.until - boottime()),
                        length_s=lease.length_s,
                        every_s=min(SLOWEST_BEAT_S, lease.length_s / BEATS_PER_LEASE),
                    )
                )
            case NodeEnds(source=source, in_s=in_s):
                log.warning("node %d (%s) ends in %.0f s, says %s", member.node, member.name, in_s, source)
                self.on_end(source, in_s)
            case RankHeld() | RankEnded() | Printed():
                self._hear_of_rank(member, message)
            case _:
                log.debug("node %d says %s", member.node, type(message).__name__)

    def _hear_of_rank(self, member: NodeMember, message: RankHeld | RankEnded | Printed) -> None:
        attempt = self._attempts.get(message.turn)
        part = next((one for one in attempt.parts if one.member is member), None) if attempt else None
        if attempt is None or part is None:
            member.send(ForgetRank(job_id=message.job_id, epoch=message.epoch))
            return
        match message:
            case RankHeld():
                part.held.set()
            case RankEnded():
                attempt.part_ended(part, message)
            case Printed():
                part.note_printed(message)

    async def _fetch(self, connection: NodeConnection[FromFollower], wanted: FetchContent) -> None:
        """Passes on what a node's part needs, while an attempt of its job is under way: a node has no token."""
        if not any(turn.job_id == wanted.job_id for turn in self._attempts):
            connection.send(ContentEnd(trouble="no attempt of this job is under way", passing=False))
            await connection.finish()
            return
        opened = self._source.fetch_object if wanted.kind == "object" else self._source.fetch_data
        end = ContentEnd()
        try:
            async with opened(wanted.job_id, wanted.sha256, wanted.offset) as chunks:
                async for chunk in chunks:
                    connection.send(ContentPiece(data=chunk))
                    await connection.sent()
        except Refused as problem:
            end = ContentEnd(trouble=problem.detail, passing=problem.passing)
        except Unreachable as error:
            end = ContentEnd(trouble=str(error))
        connection.send(end)
        await connection.finish()

    async def _look(self) -> None:
        """Counts parts as lost whose node was silent for a whole lease: it has ended them by itself by now.

        Its connection is cut, or jobs would be given to its GPUs: one that is dead looks like one that is quiet.
        """
        while True:
            length_s = self.lease().length_s
            await asyncio.sleep(min(1.0, length_s / LOOKS_PER_LEASE))
            for attempt in self._attempts.values():
                for part in attempt.parts:
                    if (
                        boottime() >= part.member.heard_at + length_s
                        and part.end is None
                        and part.is_prepared
                    ):
                        attempt.part_ended(part, None)
            for member in self._members:
                if member.connection is not None and boottime() >= member.heard_at + length_s:
                    member.connection.cut()


def _address_for(member: NodeMember, usual: str) -> str:
    """Returns where this node reaches the first one, which may have several addresses."""
    return member.connection.own_address if member.connection else usual
