"""Prepares, holds, runs and ends the parts of attempts that a follower has, as the first node says."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.attempts.preparation import Preparation, blame_for, explain_start_failure
from simpletuner_fleet.agent.attempts.starts import Starts
from simpletuner_fleet.agent.data.datasets import Datasets
from simpletuner_fleet.agent.data.downloads import ContentSource
from simpletuner_fleet.agent.guard.orphans import end_group, nothing_left
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import Order, Wall, boottime
from simpletuner_fleet.agent.isolation.cgroups import Cgroups
from simpletuner_fleet.agent.isolation.named_paths import Named, refuse_path
from simpletuner_fleet.agent.isolation.walls import Walls
from simpletuner_fleet.agent.nodes.messages import (
    Beat,
    FromFollower,
    NodeRequest,
    PrepareRank,
    Printed,
    PrintedSoFar,
    RankEnded,
    RankHeld,
)
from simpletuner_fleet.agent.nodes.part_output import PartOutput
from simpletuner_fleet.agent.ship.masking import Mask
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.worker_errors import StateDirError
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

ADOPT_GRACE_S = 2.0
"""Nobody takes up a part again: what the guardian waits for is only that this process ends in order."""
LOOK_EVERY_S = 0.2
ASK_AGAIN_S = 1.0


class NodePart(Struct, eq=False):
    offer: JobSubmit
    output: PartOutput
    may_go: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: bool = True
    held: bool = False
    running: RunningTrainer | None = None
    over: bool = False
    """Its process tree is gone, or never was."""
    ended: RankEnded | None = None
    printed: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    """How many of each kind its trainer was asked for."""
    task: asyncio.Task[None] | None = None

    @property
    def turn(self) -> Turn:
        return turn_of(self.offer)


class NodeParts:
    def __init__(
        self,
        state: StateDir,
        runner: Runner,
        trainers: Registry,
        source: ContentSource,
        data: Datasets,
        walls: Walls,
        cgroups: Cgroups,
        tell: Callable[[FromFollower], bool],
    ) -> None:
        """Takes `tell` to send to the first node; it returns False while there is no connection."""
        self._state, self._runner, self._walls, self._cgroups = state, runner, walls, cgroups
        self._tell = tell
        self._preparation = Preparation(state, trainers, source, data, walls.clean, self._must_see)
        self._starts = Starts(state, runner, self._preparation, walls, data, self._order)
        self._ranks: dict[Turn, NodePart] = {}
        self._leased = (0.0, 0.0)
        """Since when, and for how long."""
        self._renewed = asyncio.Event()

    async def clean_up(self) -> None:
        """Ends whatever a process before this one has left here. Until it is gone, this node has no free GPUs to bring."""
        for attempt in self._state.attempts():
            match await self._runner.adopt(attempt.path):
                case RunningTrainer() as running:
                    try:
                        await running.end_now()
                    except TimeoutError:
                        log.error(
                            "a part that an earlier process has left does not die: %s", attempt.attempt_id
                        )
                        await self._runner.end(attempt.path)
            await nothing_left(attempt.path)
            await asyncio.to_thread(self._state.remove_attempt, attempt.attempt_id)
        await self._preparation.take_up([])
        await asyncio.to_thread(self._walls.forget_spares)
        self._runner.warm_up()

    def held(self) -> list[Turn]:
        return list(self._ranks)

    def welcomed(self, printed: Sequence[PrintedSoFar]) -> None:
        """Says again, on a new connection, what the first node may not have received."""
        offsets = {one.turn: one.offset for one in printed}
        for turn, rank in self._ranks.items():
            rank.printed = offsets.get(turn, rank.printed)
            if rank.ended is not None:
                if rank.task:
                    rank.task.cancel()  # it was saying the same on the connection before
                rank.task = asyncio.create_task(self._tell_end(rank, rank.ended))
            elif rank.held:
                self._tell(RankHeld(job_id=turn.job_id, epoch=turn.epoch))

    def prepare(self, order: PrepareRank) -> None:
        turn = turn_of(order.offer)
        if turn in self._ranks:
            return
        output = PartOutput(self._state.attempt(order.offer.attempt_id).output_log)
        rank = NodePart(order.offer, output)
        self._ranks[turn] = rank
        self._preparation.spans[order.offer.attempt_id] = order.span
        rank.task = asyncio.create_task(self._live(rank))

    def go(self, turn: Turn) -> None:
        rank = self._ranks.get(turn)
        if rank:
            rank.may_go.set()

    def stop(self, turn: Turn, grace_s: float) -> None:
        rank = self._ranks.get(turn)
        if rank is None:
            return
        if rank.running is not None:
            rank.running.stop(grace_s)
        else:
            rank.wanted = False
            rank.may_go.set()

    async def ask(self, turn: Turn, request: NodeRequest, number: int) -> None:
        """Asks the trainer once it runs, unless it was asked for that one before.

        The others count on it, so it is tried until it is done or the part is over. What it saves or draws is not looked
        for here: what counts is on the first node.
        """
        rank = self._ranks.get(turn)
        if rank is None or number <= rank.asked.get(request, 0):
            return
        rank.asked[request] = number
        habits, paths = self._preparation.files_of(rank.offer)
        asks = habits.request_checkpoint if request == "checkpoint" else habits.request_validation
        try:
            while self._ranks.get(turn) is rank and not rank.over:
                if rank.running is None:
                    await asyncio.sleep(LOOK_EVERY_S)
                elif await asyncio.to_thread(asks, paths):
                    return
                else:
                    await asyncio.sleep(ASK_AGAIN_S)
        except Exception:  # anybody's plug-in
            log.exception("job %s: a %s could not be asked for", turn.job_id, request)

    def stop_all(self) -> None:
        for turn in self._ranks:
            self.stop(turn, 0.0)

    def renew(self, since: float, lease_s: float) -> None:
        self._leased = (since, lease_s)
        self._renewed.set()
        for rank in self._ranks.values():
            if rank.running is not None:
                rank.running.renew(lease_s, since=since)

    async def forget(self, turn: Turn) -> None:
        """Ends it if it runs, and removes what it has left here: what counts is on the first node."""
        rank = self._ranks.get(turn)
        if rank is None:
            return
        self.stop(turn, 0.0)
        if rank.running is not None:
            await rank.running.wait()
        if rank.task:
            rank.task.cancel()
            with suppress(asyncio.CancelledError):
                await rank.task
        await self._starts.forget(turn)
        if rank.running is not None:
            await rank.running.release()
        await self._remove(rank.offer.attempt_id)
        self._ranks.pop(turn, None)

    async def forget_all(self) -> None:
        for turn in list(self._ranks):
            await self.forget(turn)

    # One part's life

    async def _live(self, rank: NodePart) -> None:
        try:
            ending = await self._run(rank)
        except Exception as error:  # half an upgrade, anybody's plug-in: whatever it is, the part must end
            ending = AttemptEnding(
                reason=EndReason.START_FAILED, error=explain_start_failure(error), blame=blame_for(error)
            )
        if rank.running is None:
            await self._starts.forget(rank.turn)
        rank.over = True
        log.info("job %s: its part here ended (%s, code %s)", rank.turn[0], ending.reason, ending.exit_code)
        rank.ended = RankEnded(
            job_id=rank.offer.job_id,
            epoch=rank.offer.epoch,
            reason=ending.reason,
            exit_code=ending.exit_code,
            signal=ending.exit_signal,
            error=self._masked(rank.offer, ending.error),
            blame=ending.blame,
        )
        await self._tell_end(rank, rank.ended)

    async def _run(self, rank: NodePart) -> AttemptEnding:
        offer = rank.offer
        self._starts.prepare(offer)
        ending = await self._preparation.put_in_place(offer, lambda: rank.wanted)
        if ending is not None:
            return ending
        await self._starts.hold(offer)
        rank.held = True
        self._tell(RankHeld(job_id=offer.job_id, epoch=offer.epoch))
        await rank.may_go.wait()
        await self._await_lease(rank)
        if self._is_unwanted(rank):
            return AttemptEnding(reason=EndReason.STOPPED)
        since, lease_s = self._leased
        running = await self._starts.start(offer, lease_s, since)
        rank.running = running
        since, lease_s = self._leased
        running.renew(lease_s, since=since)
        if self._is_unwanted(rank):  # meanwhile
            running.stop(0.0)
        log.info("job %s: its part runs here, attempt %d", offer.job_id, offer.attempt)
        printing = asyncio.create_task(self._print(rank))
        exit = await running.wait()
        rank.over = True
        await printing
        return AttemptEnding(
            reason=exit.reason,
            exit_code=exit.exit_code,
            exit_signal=exit.signal,
            error=exit.error,
            blame=exit.blame,
        )

    async def _await_lease(self, rank: NodePart) -> None:
        """Waits for a lease. The last answer may be from before the worker had one."""
        while rank.wanted and lease_is_over(*self._leased):
            self._renewed.clear()
            self._tell(Beat(sent=boottime()))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._renewed.wait(), LOOK_EVERY_S)

    @staticmethod
    def _is_unwanted(rank: NodePart) -> bool:
        return not rank.wanted

    async def _print(self, rank: NodePart) -> None:
        """Sends what it prints, until it is over and all of it is sent but the middle of a flood."""
        while True:
            was_over, offset = rank.over, rank.printed
            gap, data = await asyncio.to_thread(rank.output.piece, offset)
            if offset != rank.printed:
                continue  # a new connection begins elsewhere
            if data and self._tell(
                Printed(job_id=rank.offer.job_id, epoch=rank.offer.epoch, offset=offset, data=data, gap=gap)
            ):
                rank.printed = offset + gap + len(data)
                await asyncio.to_thread(rank.output.give_back, rank.printed)
            elif was_over and data == b"":
                return
            else:
                await asyncio.sleep(LOOK_EVERY_S)

    async def _tell_end(self, rank: NodePart, ended: RankEnded) -> None:
        await self._print(rank)
        self._tell(ended)

    def _masked(self, offer: JobSubmit, text: str | None) -> str | None:
        return Mask.of([*(offer.secrets or {}).values()]).text(text) if text else text

    def _must_see(self, where: str, path: str, own: list[Path]) -> None:
        access = self._walls.path_access()
        if access:
            refuse_path(Named(where, path, made_by_job=False), access, own, self._walls.home)

    def _order(self, offer: JobSubmit, launch: Launch, wall: Wall | None) -> Order:
        """Makes the order, without a time limit and a place to report to: the first node sees to both."""
        attempt = self._state.attempt(offer.attempt_id)
        return Order(
            attempt_id=offer.attempt_id,
            attempt_dir=str(attempt.path),
            argv=launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            output=str(attempt.output_log),
            on_partition=offer.on_partition,
            adopt_grace_s=ADOPT_GRACE_S,
            hidden=[*(offer.secrets or {}).values()],
            wall=wall,
            cgroup=self._cgroups.group_for(attempt),
        )

    async def _remove(self, attempt_id: str) -> None:
        await self._preparation.release_data(attempt_id)
        await asyncio.to_thread(self._preparation.release_kept, attempt_id)
        self._walls.lower(attempt_id)
        with suppress(StateDirError, OSError):
            await asyncio.to_thread(end_group, self._state.attempt(attempt_id).path)
            await asyncio.to_thread(self._state.remove_attempt, attempt_id)


def lease_is_over(since: float, length_s: float) -> bool:
    return boottime() >= since + length_s
