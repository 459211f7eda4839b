"""Prepares, starts and watches attempts, sends on their output, and finds them again after a restart."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.attempts.preparation import Preparation, blame_for, explain_start_failure
from simpletuner_fleet.agent.attempts.retention import NOT_STORED, KeepLimits, removed, tidy
from simpletuner_fleet.agent.attempts.starts import Starts
from simpletuner_fleet.agent.data.datasets import Datasets, FetchProgress
from simpletuner_fleet.agent.guard import completion
from simpletuner_fleet.agent.guard.orphans import end_group, nothing_left
from simpletuner_fleet.agent.guard.runner import (
    EndedAttempt,
    Runner,
    RunningTrainer,
    TrainerExit,
)
from simpletuner_fleet.agent.guard.shim_client import Order, ReportTo, Wall
from simpletuner_fleet.agent.isolation.cgroups import NO_CGROUPS, Cgroups
from simpletuner_fleet.agent.isolation.named_paths import Named, refuse_path
from simpletuner_fleet.agent.isolation.walls import NO_WALLS, Walls
from simpletuner_fleet.agent.nodes.host import LOST_LINE, NodeHost
from simpletuner_fleet.agent.nodes.messages import NodeRequest
from simpletuner_fleet.agent.nodes.spanned import AttemptProcess
from simpletuner_fleet.agent.senders import (
    AttemptEvents,
    AttemptMaterial,
    AttemptSenders,
    NoEvents,
    mask_of,
)
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits
from simpletuner_fleet.agent.ship.logs.output_log import last_lines
from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import ShimTrust
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.core.training.completion import NOT_CHECKED
from simpletuner_fleet.core.worker_errors import StateDirError
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

ADOPT_GRACE_S = 2.0
SHIM_BEGINS_WITHIN_S = 2.0
SHIM_LOOK_S = 0.02
SAVE_FIRST_GRACE_S = 3.0
"""With less time than this a trainer is stopped at once: a checkpoint would hardly be done."""
SAVE_FIRST_SHARE = 0.6


class FoundAttempt(NamedTuple):
    """Describes an attempt that an earlier agent left, as it is found after a restart."""

    offer: JobSubmit
    running: RunningTrainer | None
    ending: AttemptEnding | None
    """Not judged yet: that may take minutes, and nobody else is to wait for it."""


class Attempts:
    def __init__(
        self,
        state: StateDir,
        runner: Runner,
        trainers: Registry,
        client: OrchestratorClient,
        trust: ShimTrust,
        bandwidth: Bandwidth | None = None,
        log_limits: LogLimits | None = None,
        data: Datasets | None = None,
        events: AttemptEvents | None = None,
        walls: Walls = NO_WALLS,
        adopt_grace_s: float = ADOPT_GRACE_S,
        cgroups: Cgroups = NO_CGROUPS,
        nodes: NodeHost | None = None,
    ) -> None:
        """`adopt_grace_s` is how long a trainer waits for a new agent after this one has died; `nodes` are the others of
        this worker."""
        self._nodes = nodes
        self._parts: dict[Turn, JobSubmit] = {}
        """Of those that run on several nodes, what this one has to do."""
        self._adopt_grace_s = adopt_grace_s
        self._state = state
        self._runner = runner
        self._client = client
        self._trust = trust
        self._walls = walls
        self._cgroups = cgroups
        self.data = data
        self._folders: dict[Turn, str] = {}
        self._masks: dict[Turn, Mask] = {}
        self._running: dict[Turn, AttemptProcess] = {}
        self._offers: dict[Turn, JobSubmit] = {}
        """Of those that run."""
        self._events = events or NoEvents()
        self.senders = AttemptSenders(client, self._events, bandwidth or Bandwidth(), log_limits)
        self.preparation = Preparation(state, trainers, client, data, walls.clean, self._must_see)
        self._starts = Starts(state, runner, self.preparation, walls, data, self._order)
        self._stopping: dict[Turn, asyncio.Task[None]] = {}

    def prepare(self, offer: JobSubmit) -> None:
        """Makes folder, config and wall while the acceptance is on its way; nothing of the job runs yet."""
        turn = turn_of(offer)
        self._folders[turn] = offer.attempt_id
        self._masks[turn] = mask_of(offer)
        if offer.nodes == 1:
            self._starts.prepare(offer)
            return
        begun = self._nodes.begin(offer, self._state.attempt(offer.attempt_id).path) if self._nodes else None
        if begun is not None:
            self._parts[turn], self.preparation.spans[offer.attempt_id] = begun
            self._starts.prepare(self._parts[turn])

    async def put_in_place(
        self, offer: JobSubmit, is_wanted: Callable[[], bool], tell: Callable[[FetchProgress], None]
    ) -> AttemptEnding | None:
        """Does what `Preparation.put_in_place` does, on every node of the attempt."""
        if offer.nodes == 1:
            return await self.preparation.put_in_place(offer, is_wanted, tell)
        turn = turn_of(offer)
        if self._nodes is None or turn not in self._parts:
            return LOST_LINE
        ending = await self.preparation.put_in_place(self._parts[turn], is_wanted, tell)
        return ending or await self._nodes.hold(turn, is_wanted)

    async def start(self, offer: JobSubmit, lease_s: float, leased_at: float) -> AttemptEnding | None:
        """Returns None once the trainer runs, else why it does not."""
        turn = turn_of(offer)
        running: AttemptProcess
        try:
            running = await self._starts.start(self._parts.get(turn, offer), lease_s, leased_at)
            spanned = self._nodes.attempt(turn) if self._nodes else None
            if spanned and running.pid is not None:
                running = spanned.runs(running)
        except Exception as error:  # half an upgrade, anybody's plug-in: whatever it is, the attempt must end
            await self._starts.forget(turn)
            return self._not_started(turn, error)
        try:
            self._watch(offer, running)
        except Exception as error:  # as above; nobody would hear how it goes on
            running.stop(0.0)
            await running.wait()
            return self._not_started(turn, error)
        if running.pid is None:
            return self._ending(turn, await running.wait())
        return None

    def _not_started(self, turn: Turn, error: Exception) -> AttemptEnding:
        explanation = self._masks.get(turn, NO_MASK).text(explain_start_failure(error))
        return AttemptEnding(reason=EndReason.START_FAILED, error=explanation, blame=blame_for(error))

    def _must_see(self, where: str, path: str, own: list[Path]) -> None:
        access = self._walls.path_access()
        if access:
            refuse_path(Named(where, path, made_by_job=False), access, own, self._walls.home)

    async def ended(self, turn: Turn) -> AttemptEnding:
        """Returns when the process tree is gone."""
        ending = self._ending(turn, await self._running[turn].wait())
        return await self.judged(self._offers[turn], ending)

    async def left(self, offer: JobSubmit) -> None:
        """Returns when nothing lives any more of an attempt that was found ended."""
        await nothing_left(self._state.attempt(offer.attempt_id).path)

    async def judged(self, offer: JobSubmit, ending: AttemptEnding) -> AttemptEnding:
        """Returns how it is to be reported: the trainer's exit code counts unless the watchdog overrides it."""
        turn = turn_of(offer)
        try:
            material = self._material(offer)
            ending = await completion.checked(
                ending, offer, material.habits, material.paths, material.output_log
            )
            return await self.senders.watchdogs.last_word(turn, ending)
        except Exception:  # what a job has written, anybody's plug-in: whatever it is, the attempt must end
            log.exception("job %s: whether its training is complete could not be checked", turn[0])
            return ending if ending.shortfall else replace(ending, shortfall=NOT_CHECKED)

    def stop(self, turn: Turn, grace_s: float, outcome: Outcome, save_s: float | None = None) -> None:
        """Asks for a checkpoint first where the trainer can make one and there is time.

        `save_s` is time of its own for that; without it the grace covers both, and what was to be saved by an earlier
        call is waited for no longer.
        """
        running = self._running.get(turn)
        if running is None:
            return
        if outcome is Outcome.RELEASED:
            self.senders.uploads.goes_on_elsewhere(turn)
        earlier = self._stopping.pop(turn, None)
        if earlier:
            earlier.cancel()
        if save_s is None and (earlier or grace_s < SAVE_FIRST_GRACE_S):
            running.stop(grace_s, outcome=outcome)
            return
        wait_s, stop_by_s = (save_s, save_s + grace_s) if save_s else (grace_s * SAVE_FIRST_SHARE, grace_s)
        self._stopping[turn] = asyncio.create_task(
            self._save_and_stop(turn, running, outcome, wait_s, grace_s, stop_by_s)
        )

    async def _save_and_stop(
        self,
        turn: Turn,
        running: AttemptProcess,
        outcome: Outcome,
        wait_s: float,
        grace_s: float,
        stop_by_s: float,
    ) -> None:
        """Gives the trainer `wait_s` for its checkpoint, then `grace_s` to end, and `stop_by_s` for both."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(wait_s):
                if not running.paused and self._ask_other_nodes(turn, "checkpoint"):
                    await self.senders.uploads.checkpoint_now(turn, running.wait())
        except TimeoutError:
            log.info("job %s: no checkpoint was made in time; it is stopped without one", turn[0])
        except Exception:  # anybody's plug-in: the trainer is stopped whatever it does
            log.exception("job %s: a checkpoint could not be asked for", turn[0])
        running.stop(max(0.0, min(grace_s, stop_by_s - (clock() - began))), outcome=outcome)

    async def ask_for_checkpoint(self, turn: Turn) -> bool:
        """Returns whether its trainer was asked; it trains on, and what it saves is stored as every checkpoint is."""
        return await self._ask(turn, "checkpoint", self.senders.uploads.ask_for_checkpoint)

    async def ask_to_validate(self, turn: Turn) -> bool:
        """Returns whether its trainer was asked; it trains on, and what it draws is stored as every sample is."""
        return await self._ask(turn, "validation", self.senders.uploads.ask_to_validate)

    async def _ask(self, turn: Turn, request: NodeRequest, ask: Callable[[Turn], Awaitable[bool]]) -> bool:
        if not self._ask_other_nodes(turn, request):
            return False
        heard = False
        try:
            heard = await ask(turn)
        except Exception:  # anybody's plug-in
            log.exception("job %s: a %s could not be asked for", turn[0], request)
        spanned = self._nodes.attempt(turn) if self._nodes else None
        if spanned and not heard:
            spanned.could_not_ask(request)
        return heard

    def _ask_other_nodes(self, turn: Turn, request: NodeRequest) -> bool:
        """Returns whether all other nodes of the attempt were asked; it may have none."""
        spanned = self._nodes.attempt(turn) if self._nodes else None
        return spanned is None or spanned.ask_others(request)

    def is_out_of_time(self, turn: Turn) -> bool:
        return turn in self._running and self._running[turn].out_of_time

    def paused(self) -> set[Turn]:
        """Returns what stands still because its lease has ended."""
        return {turn for turn, running in self._running.items() if running.paused}

    def renew(self, lease_s: float, since: float) -> None:
        for running in self._running.values():
            running.renew(lease_s, since=since)

    async def forget(self, turn: Turn) -> None:
        """Lets the shim go, because nothing is owed any more; the job's output stays on the disk."""
        await self._starts.forget(turn)
        stopping = self._stopping.pop(turn, None)
        if stopping:
            stopping.cancel()
        unstored = self.senders.left_something(turn)
        self.senders.forget(turn)
        self._masks.pop(turn, None)
        attempt_id = self._folders.pop(turn, None)
        if attempt_id:
            await self.preparation.release_data(attempt_id)
            await asyncio.to_thread(self._put_away, attempt_id, unstored)
        self._offers.pop(turn, None)
        running = self._running.pop(turn, None)
        if running:
            await running.release()
        self._parts.pop(turn, None)
        if self._nodes:
            self._nodes.forget(turn)
        if attempt_id:
            self._walls.lower(attempt_id)
            await asyncio.to_thread(self._leave_no_group, attempt_id)

    def _leave_no_group(self, attempt_id: str) -> None:
        with suppress(StateDirError):
            end_group(self._state.attempt(attempt_id).path)

    def _put_away(self, attempt_id: str, unstored: bool) -> None:
        """Makes the attempt's caches available to others, and retires its folder.

        It blocks: call it in a thread, and only once, since each thread call costs. A full disk keeps nobody from going on.
        """
        self.preparation.release_kept(attempt_id)
        with suppress(StateDirError):  # an id that cannot name a folder never had one
            self._retire(self._state.attempt(attempt_id), unstored=unstored)

    @staticmethod
    def _retire(attempt: AttemptDir, *, unstored: bool = False) -> None:
        """Retires a folder, once it is marked where something is in it alone: others are removed.

        What a full disk kept from being written is tried again at the next start.
        """
        try:
            if unstored:
                (attempt.path / NOT_STORED).touch()
            attempt.retire()
        except OSError as error:
            log.warning("attempt %s could not be marked as done: %s", attempt.attempt_id, error)

    async def tidy(self, limits: KeepLimits) -> list[str]:
        """Removes folders that are kept for nobody any more."""
        return await asyncio.to_thread(tidy, self._state, limits, set(self._folders.values()))

    async def find_again(self) -> list[FoundAttempt]:
        """Takes up the trainers that still run after a restart, and tells of those that ended."""
        left = []
        for attempt in self._state.attempts():
            offer = attempt.load_order()
            if offer is None and not attempt.was_begun:
                # The process before this one ended while it prepared it. It may be offered anew.
                await asyncio.to_thread(removed, self._state, attempt.attempt_id)
            elif offer is None or attempt.retired:
                await asyncio.to_thread(end_group, attempt.path)
                self._retire(attempt)  # again: the process before this one may have ended half-way
            else:
                self._folders[turn_of(offer)] = offer.attempt_id
                left.append((attempt, offer))
        # Side by side: a shim that does not answer would make the leases of the others run out.
        finding = (self._find_or_end(attempt, offer) for attempt, offer in left)
        attempts = [one for taken_up in await asyncio.gather(*finding) for one in taken_up]
        running = [one.offer for one in attempts if one.running]
        await self.preparation.take_up(running)
        # Only now it is known whose users the running ones are.
        await asyncio.to_thread(self._walls.forget_spares)
        self._runner.warm_up()
        return attempts

    async def _find_or_end(self, attempt: AttemptDir, offer: JobSubmit) -> list[FoundAttempt]:
        try:
            return await self._find(attempt, offer)
        except Exception:  # as above; and one attempt must not keep the worker from starting
            log.exception("attempt %s cannot be taken up: it is ended", attempt.attempt_id)
            await self._runner.end(attempt.path)
            return [FoundAttempt(offer, None, AttemptEnding(reason=EndReason.AGENT_LOST))]

    async def _find(self, attempt: AttemptDir, offer: JobSubmit) -> list[FoundAttempt]:
        if not await self._was_begun(attempt):
            return [
                FoundAttempt(
                    offer,
                    None,
                    AttemptEnding(
                        reason=EndReason.AGENT_LOST, error="the worker stopped before the job started"
                    ),
                )
            ]
        match await self._runner.adopt(attempt.path):
            case RunningTrainer() as running:
                if offer.nodes > 1:
                    return [FoundAttempt(offer, None, await _end_alone(running))]
                self._walls.take_up(attempt)
                log.info("took up job %s again, attempt %d", offer.job_id, offer.attempt)
                self._masks[turn_of(offer)] = Mask.of(running.hidden)
                self._watch(offer, running)
                return [FoundAttempt(offer, running, None)]
            case EndedAttempt(exit=exit, reported=reported, lives_on=lives_on):
                if exit.reason is EndReason.SHIM_LOST and lives_on:
                    ending = AttemptEnding(reason=EndReason.AGENT_LOST, error=exit.error)
                    return [FoundAttempt(offer, None, ending)]
                if exit.reason is EndReason.SHIM_LOST:
                    self._retire(attempt)
                    return []
                if reported and not lives_on:
                    self._send_leftovers(offer, attempt, exit)
                    return []
                ending = _unmasked(exit, "" if offer.secrets else exit.last_lines)
                self._send(offer, ending)
                return [FoundAttempt(offer, None, ending)]

    async def _was_begun(self, attempt: AttemptDir) -> bool:
        """Returns whether the shim has begun. It may hold an order that it has not carried out yet.

        Whoever claims the attempt first has it.
        """
        if not attempt.has_trainer and await asyncio.to_thread(attempt.claim):
            return False
        for _ in range(int(SHIM_BEGINS_WITHIN_S / SHIM_LOOK_S)):
            if attempt.has_trainer:
                break
            await asyncio.sleep(SHIM_LOOK_S)
        return True

    def _order(self, offer: JobSubmit, launch: Launch, wall: Wall | None) -> Order:
        """Makes the attempt's control group as well. Blocks: it is called in a thread."""
        attempt = self._state.attempt(offer.attempt_id)
        report = None
        if isinstance(offer.upload_token, str):
            report = ReportTo(
                url=self._client.url,
                job_id=offer.job_id,
                epoch=offer.epoch,
                upload_token=offer.upload_token,
                attempt=offer.attempt,
                cafile=self._trust.cafile,
                pinned_certfile=self._trust.pinned_certfile,
                no_verify=self._trust.no_verify,
            )
        return Order(
            attempt_id=offer.attempt_id,
            attempt_dir=str(attempt.path),
            argv=launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            output=str(attempt.output_log),
            on_partition=offer.on_partition,
            adopt_grace_s=self._adopt_grace_s,
            time_limit_s=offer.time_limit_s,
            time_limit_save_s=offer.checkpoint_wait_s if offer.on_time_limit == "requeue" else None,
            report=report,
            exit_tells=self.preparation.habits(offer).exit_tells(offer),
            hidden=[value.decode() for value in self._masks.get(turn_of(offer), NO_MASK).values],
            wall=wall,
            cgroup=self._cgroups.group_for(attempt),
        )

    def _watch(self, offer: JobSubmit, running: AttemptProcess) -> None:
        turn = turn_of(offer)
        self._running[turn] = running
        self._offers[turn] = offer
        running.on_out_of_time = lambda: self._events.out_of_time(turn)
        self._send(offer, running)

    def _send(self, offer: JobSubmit, until: AttemptProcess | AttemptEnding) -> None:
        self.senders.begin(offer, self._material(offer), until)

    def _material(self, offer: JobSubmit) -> AttemptMaterial:
        attempt = self._state.attempt(offer.attempt_id)
        return AttemptMaterial(
            folder=attempt.path,
            output_log=attempt.output_log,
            paths=self.preparation.paths(attempt),
            habits=self.preparation.habits(offer),
            mask=self._masks.get(turn_of(offer)),
        )

    def _send_leftovers(self, offer: JobSubmit, attempt: AttemptDir, exit: TrainerExit) -> None:
        """Sends the log and the results of an attempt whose end the shim has reported while there was no agent."""

        def over(unstored: bool) -> None:
            self._retire(attempt, unstored=unstored)

        self.senders.send_leftovers(offer, self._material(offer), exit.reason, over)

    def _ending(self, turn: Turn, exit: TrainerExit) -> AttemptEnding:
        """Returns the ending. Its last lines are read again where secrets are masked: a cut may have split one."""
        mask = self._masks.get(turn, NO_MASK)
        if not mask.values:
            return _unmasked(exit, exit.last_lines)
        log_file = exit.output or self._state.attempt(self._folders[turn]).output_log
        ending = _unmasked(exit, last_lines(log_file, mask=mask))
        return replace(ending, error=mask.text(exit.error)) if exit.error else ending


async def _end_alone(running: RunningTrainer) -> AttemptEnding:
    """Ends this node's own part: the other nodes followed the earlier agent and have ended theirs, or will."""
    await running.end_now()
    return AttemptEnding(
        reason=EndReason.AGENT_LOST,
        error="the worker's agent ended, and a training over several nodes ends with it",
    )


def _unmasked(exit: TrainerExit, lines: str) -> AttemptEnding:
    return AttemptEnding(
        reason=exit.reason,
        exit_code=exit.exit_code,
        exit_signal=exit.signal,
        error=exit.error,
        blame=exit.blame,
        last_lines=lines,
    )
