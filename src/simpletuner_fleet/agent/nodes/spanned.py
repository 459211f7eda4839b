"""Runs one attempt over several nodes: the first node controls all parts as if they were one trainer."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.guard.runner import RunningTrainer, TrainerExit
from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.messages import (
    AskRank,
    ForgetRank,
    GoRank,
    NodeRequest,
    PrepareRank,
    Printed,
    PrintedSoFar,
    RankEnded,
    StopRank,
)
from simpletuner_fleet.agent.nodes.verdict import PartEnd, verdict
from simpletuner_fleet.agent.ship.logs.log_stream import left_out
from simpletuner_fleet.agent.ship.logs.output_log import last_lines
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan

log = logging.getLogger(__name__)

OTHERS_END_WITHIN_S = 10.0
"""One part has failed or is lost: so long the others have from SIGTERM to SIGKILL."""
LAST_PARTS_WITHIN_S = 60.0
"""The first node's part has ended well: so long the others may take for their own end."""
NOT_TAKEN = " because the first node's disk took no more"
NOT_SENT = " because they came faster than they were sent"
LOGS = "nodes"
"""The folder, beside what is the job's, of what the other nodes print: a file each, named after its first process."""


class FollowerPart:
    """Represents, on the first node, the part of an attempt that one follower runs."""

    def __init__(self, member: NodeMember, offer: JobSubmit, span: NodeSpan, log_file: Path) -> None:
        self.member, self.offer, self.span = member, offer, span
        self._log_file = log_file
        self.first_process = span.rank * len(offer.gpus)
        self.held = asyncio.Event()
        """Or it has ended before."""
        self.end: PartEnd | None = None
        self.ending: RankEnded | None = None
        self.stop_grace_s: float | None = None
        self.is_prepared = False
        """Or is to be: whoever was told so and does not know of it has lost it."""
        self.goes = False
        self._asked: dict[NodeRequest, int] = {}
        self.printed = log_file.stat().st_size if log_file.exists() else 0
        self._unkept = 0
        """How many bytes of it the disk did not take since the last that it took."""

    def prepare(self) -> None:
        self.is_prepared = True
        self.member.send(PrepareRank(offer=self.offer, span=self.span))

    def go(self) -> None:
        self.goes = True
        self.member.send(GoRank(job_id=self.offer.job_id, epoch=self.offer.epoch))

    def stop(self, grace_s: float) -> None:
        self.stop_grace_s = grace_s if self.stop_grace_s is None else min(grace_s, self.stop_grace_s)
        self.member.send(
            StopRank(job_id=self.offer.job_id, epoch=self.offer.epoch, grace_s=self.stop_grace_s)
        )

    def ask(self, request: NodeRequest, number: int) -> None:
        self._asked[request] = number
        self._say_asked()

    def _say_asked(self) -> None:
        for request, number in self._asked.items():
            self.member.send(
                AskRank(job_id=self.offer.job_id, epoch=self.offer.epoch, request=request, number=number)
            )

    def forget(self) -> None:
        self.member.send(ForgetRank(job_id=self.offer.job_id, epoch=self.offer.epoch))

    def back_again(self) -> None:
        """Says again, after a lost connection, what the node may not have received."""
        if self.stop_grace_s is not None:
            self.stop(self.stop_grace_s)
        elif self.goes and self.end is None:
            self.go()
        if self.end is None:
            self._say_asked()

    def note_printed(self, printed: Printed) -> None:
        """Writes each byte once: what arrives a second time is left out."""
        known = self.printed - printed.offset
        gap, data = max(0, printed.gap - known), printed.data[max(0, known - printed.gap) :]
        if known < 0 or not data:
            return
        self._keep((left_out(gap, NOT_SENT) if gap else b"") + data)
        self.printed += gap + len(data)

    def _keep(self, data: bytes) -> None:
        """Writes what the disk takes. Where it has left out something, that is said in its place."""
        rest = memoryview(data)
        try:
            self._log_file.parent.mkdir(mode=0o700, exist_ok=True)
            with self._log_file.open("ab", buffering=0) as file:
                said = memoryview(left_out(self._unkept, NOT_TAKEN) if self._unkept else b"")
                while said:
                    said = said[file.write(said) :]
                self._unkept = 0
                while rest:
                    rest = rest[file.write(rest) :]
        except OSError as error:
            if not self._unkept:
                log.warning(
                    "job %s: what node %d prints is not kept: %s", self.offer.job_id, self.member.node, error
                )
            self._unkept += len(rest)

    def so_far(self) -> PrintedSoFar:
        return PrintedSoFar(job_id=self.offer.job_id, epoch=self.offer.epoch, offset=self.printed)

    def ended(self, ending: RankEnded | None) -> PartEnd:
        """`ending` is None where the node is lost."""
        self.ending = ending
        if self._unkept:
            self._keep(b"")
        exit = None
        if ending is not None:
            exit = TrainerExit(
                reason=ending.reason,
                exit_code=ending.exit_code,
                signal=ending.signal,
                error=ending.error,
                blame=ending.blame,
                last_lines=last_lines(self._log_file) if self._log_file.exists() else "",
                output=self._log_file,
            )
        self.end = PartEnd(
            rank=self.span.rank, name=self.member.name, first_process=self.first_process, exit=exit
        )
        self.held.set()
        return self.end


class SpannedAttempt:
    """Represents, on the first node, an attempt over several nodes.

    It exists before the attempt runs, and then as long as anything is left of it on another node.
    """

    def __init__(self, offer: JobSubmit, parts: list[FollowerPart], own_name: str) -> None:
        self.turn = turn_of(offer)
        self.parts = parts
        self._own_name = own_name
        self._job_id = offer.job_id
        self._ends: list[PartEnd] = []
        self._local: RunningTrainer | None = None
        self._asked_to_stop = False
        self._stopping = False
        self._requests: Counter[NodeRequest] = Counter()
        """How many of each kind all parts were asked for."""
        self._over: asyncio.Future[TrainerExit] = asyncio.get_running_loop().create_future()
        self._watching: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()

    async def all_held(self) -> None:
        for part in self.parts:
            await part.held.wait()

    def why_not(self) -> AttemptEnding | None:
        """Returns why it cannot start, once every node has prepared its part or said that it could not."""
        for part in self.parts:
            if part.end is None:
                continue
            where = f"node {part.span.rank} ({part.member.name})"
            if part.ending is None:
                return AttemptEnding(reason=EndReason.AGENT_LOST, error=f"{where} of the worker was lost")
            error = f"{where}: {part.ending.error or 'it could not be prepared'}"
            return AttemptEnding(reason=part.ending.reason, error=error, blame=part.ending.blame)
        return None

    def runs(self, local: RunningTrainer) -> "SpannedTrainer":
        """Starts the other parts, since the first node's part runs. It ends with them where one is over already."""
        self._local = local
        for part in self.parts:
            if part.end is None:
                part.go()
        self._watching = asyncio.create_task(self._watch(local))
        if any(not end.went_well for end in self._ends):
            self._end_others()
        return SpannedTrainer(self, local)

    async def _watch(self, local: RunningTrainer) -> None:
        exit = await local.wait()
        self._note(PartEnd(rank=0, name=self._own_name, first_process=0, exit=exit))
        await asyncio.sleep(LAST_PARTS_WITHIN_S)
        self._stop_parts(OTHERS_END_WITHIN_S)

    def part_ended(self, part: FollowerPart, ending: RankEnded | None) -> None:
        if part.end is None:
            self._note(part.ended(ending))

    def _note(self, end: PartEnd) -> None:
        self._ends.append(end)
        if not end.went_well:
            if not self._stopping and self._local is not None:
                how = "is lost" if end.is_lost else "has ended"
                log.info(
                    "job %s: its part on node %d (%s) %s; the others end",
                    self._job_id,
                    end.rank,
                    end.name,
                    how,
                )
            self._end_others()
        has_own = any(one.rank == 0 for one in self._ends)
        if has_own and len(self._ends) == len(self.parts) + 1 and not self._over.done():
            self._over.set_result(verdict(self._ends, asked_to_stop=self._asked_to_stop))

    def _end_others(self) -> None:
        if self._local is None or self._stopping:
            return
        self._stopping = True
        self._local.stop(OTHERS_END_WITHIN_S)
        self._stop_parts(OTHERS_END_WITHIN_S)

    def _stop_parts(self, grace_s: float) -> None:
        for part in self.parts:
            if part.end is None:
                part.stop(grace_s)

    def ask_others(self, request: NodeRequest) -> bool:
        """Asks the other nodes before the first node's own part, and returns whether they were asked: all, or none.

        The first node's file is written in a moment; theirs only once the message has crossed the network. A part that
        does not hear of it would leave the others waiting for it, so nobody is asked while a node is away.
        """
        if any(part.end is not None or part.member.connection is None for part in self.parts):
            return False
        self._requests[request] += 1
        for part in self.parts:
            part.ask(request, self._requests[request])
        return True

    def could_not_ask(self, request: NodeRequest) -> None:
        """Notes that the first node's own part was not asked: the next request is this one, which the others have heard."""
        self._requests[request] -= 1

    def stop(self, grace_s: float, outcome: Outcome) -> None:
        assert self._local is not None
        self._asked_to_stop = self._stopping = True
        self._local.stop(grace_s, outcome=outcome)
        self._stop_parts(grace_s)

    async def wait(self) -> TrainerExit:
        return await asyncio.shield(self._over)

    def forget(self) -> None:
        if self._watching:
            self._watching.cancel()
        for part in self.parts:
            part.forget()


class SpannedTrainer:
    """Controls a trainer that runs on all nodes, in the place of a `RunningTrainer`."""

    def __init__(self, attempt: SpannedAttempt, local: RunningTrainer) -> None:
        self._attempt, self._local = attempt, local

    @property
    def pid(self) -> int | None:
        return self._local.pid

    @property
    def paused(self) -> bool:
        return self._local.paused

    @property
    def out_of_time(self) -> bool:
        return self._local.out_of_time

    @property
    def on_out_of_time(self) -> Callable[[], None]:
        return self._local.on_out_of_time

    @on_out_of_time.setter
    def on_out_of_time(self, call: Callable[[], None]) -> None:
        self._local.on_out_of_time = call

    async def wait(self) -> TrainerExit:
        """Returns when nothing of it runs on any reachable node; the others end what they have by themselves."""
        return await self._attempt.wait()

    def renew(self, lease_s: float, *, since: float | None = None) -> None:
        """Renews the lease of the first node's part. The other nodes ask for theirs."""
        self._local.renew(lease_s, since=since)

    def stop(self, grace_s: float, *, outcome: Outcome = Outcome.LOST) -> None:
        self._attempt.stop(grace_s, outcome)

    async def release(self) -> None:
        await self.wait()
        await self._local.release()


AttemptProcess = RunningTrainer | SpannedTrainer


def part_of(offer: JobSubmit, gpus: list[str]) -> JobSubmit:
    """Returns the order for the node that has these of its GPUs."""
    indices = dict(zip(offer.gpus, offer.gpu_indices, strict=False))
    return replace(offer, gpus=gpus, gpu_indices=[indices[uuid] for uuid in gpus if uuid in indices])
