"""Runs trainers through shims: one per attempt, and a spare behind a ready wall, so that a start costs no wait."""

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.guard.orphans import end_rest, left_record, nothing_left
from simpletuner_fleet.agent.guard.shim_client import (
    AskStatus,
    Build,
    Built,
    Exited,
    ExitRecord,
    Go,
    Greet,
    Hello,
    Order,
    OutOfTime,
    Paused,
    ReadyWall,
    ReadyWalls,
    Release,
    Renew,
    Resumed,
    ShimGone,
    ShimLink,
    ShimReady,
    Started,
    Stop,
    TrainerHeld,
    boottime,
)
from simpletuner_fleet.agent.guard.shim_starts import ShimChild, ShimProcess, ShimStarter, killed, reap
from simpletuner_fleet.agent.lease import Deadlines, Late
from simpletuner_fleet.agent.ship.courier import pause
from simpletuner_fleet.agent.ship.logs.output_log import last_lines
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.core.worker_errors import ShimUnavailable
from simpletuner_fleet.core.workers.start_trouble import Blame

log = logging.getLogger(__name__)

SHIM_ANSWERS_WITHIN_S = 10.0
DIES_WITHIN_S = 30.0
STARTS_WITHIN_S = 120.0
"""A shim that has not taken the next step of a start by then hangs with what it waits for, such as a disk: it is ended."""
ENDED_WITH_ITS_GUARDIAN = "the trainer's guardian did not answer, and was ended with it"
SIGNS_ASKED_FOR, SIGNS_WITHIN_S = 2, 8.0
"""A lease ends ten seconds before its job may be given away: what its guardian does not end is ended before that."""
LONGEST_NAP_S = 5.0
"""A timer stands still while the machine is suspended, and no deadline does."""
GREETINGS, GREETING_PAUSE_S = 3, 0.2
"""A shim gives up a new agent that does not read what it is told, and meets the next one."""


class TrainerExit(Struct, frozen=True, kw_only=True):
    """Describes how an attempt's process tree ended."""

    reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    blame: Blame = Blame.UNCLEAR
    """Of a start that failed: whose fault that may be."""
    last_lines: str = ""
    output: Path | None = None
    """Where they are from, if that is not the attempt's own log."""


class EndedAttempt(Struct, frozen=True, kw_only=True):
    """Describes an attempt whose shim is gone; `reported` tells that the shim has reported it by itself."""

    exit: TrainerExit
    reported: bool
    lives_on: bool
    """Something of it does not die: `orphans.nothing_left` tells when it has."""


class RunningTrainer:
    """Controls an attempt whose shim is alive. Its methods return at once; `wait` tells how it ended."""

    def __init__(
        self, attempt_id: str, output: Path, shim: ShimProcess, deadlines: Deadlines, pid: int | None
    ) -> None:
        self.attempt_id = attempt_id
        self.pid = pid
        """The trainer's; None where it could not be started."""
        self.paused = False
        """Whether the shim has stopped the tree because its lease ran out."""
        self.hidden: list[str] = []
        """As the shim that was found again has told: values to keep out of what is sent."""
        self.out_of_time = False
        """The time limit is reached, and the shim waits for a checkpoint to be saved."""
        self.on_out_of_time: Callable[[], None] = lambda: None
        self._output = output
        self._shim = shim
        self._exit: asyncio.Future[TrainerExit] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.Event()
        self._deadlines = deadlines
        self._deadlines_changed = asyncio.Event()
        self._hung: EndReason | None = None
        """As what it ends, because its shim was late, did not answer, and was ended."""
        self._listening = asyncio.create_task(self._listen())
        self._watching = asyncio.create_task(self._watch_shim())

    async def wait(self) -> TrainerExit:
        """Returns when the tree is gone to its last process and the shim has recorded it. May be awaited again."""
        return await asyncio.shield(self._exit)

    def renew(self, lease_s: float, *, since: float | None = None) -> None:
        """`since` is the `boottime` from which the orchestrator counts at the latest: when the heartbeat was sent."""
        now = boottime()
        until = (now if since is None else since) + lease_s
        self._shim.link.send(Renew(until))
        self._deadlines.renewed(until, now, paused=self.paused)
        self._deadlines_changed.set()

    def stop(self, grace_s: float, *, outcome: Outcome = Outcome.LOST) -> None:
        """Sends SIGTERM to the tree, and SIGKILL after the grace.

        `outcome` is what the shim reports if the agent dies meanwhile. One that hangs is ended, and its tree with it.
        """
        self._shim.link.send(Stop(grace_s, outcome))
        self._deadlines.stop_asked(boottime() + grace_s)
        self._deadlines_changed.set()

    async def release(self) -> None:
        """Ends the shim once the outcome is delivered. Until then it would report that, were the agent to die."""
        await self.wait()
        self._shim.link.send(Release())
        try:
            async with asyncio.timeout(SHIM_ANSWERS_WITHIN_S):
                await asyncio.shield(self._listening)  # who gives up waiting must not end the listening
        except TimeoutError:
            self._shim.end(self._output.parent)
            await asyncio.shield(self._listening)

    async def end_now(self) -> None:
        """Kills the tree. Raises TimeoutError where it does not die, as one that hangs in a driver: who starts goes on."""
        self.stop(0.0)
        async with asyncio.timeout(DIES_WITHIN_S):
            await self.wait()
            await self.release()

    @property
    def is_over(self) -> bool:
        """Returns whether its shim has left and was reaped."""
        return self._listening.done() and not self._listening.cancelled()

    def leave_alone(self) -> None:
        """Closes the connection; the shim goes on by its lease."""
        self._watching.cancel()
        if not self.is_over:
            self._listening.cancel()
            self._shim.leave_alone()

    async def _watch_shim(self) -> None:
        """Ends the shim where it hangs and is late. One that answers sees to its tree itself, however long that takes:
        nobody else could end what it does not."""
        answered_at = -math.inf
        while True:
            self._deadlines_changed.clear()
            late = self._late()
            look_in_s = max(late.since, answered_at + SHIM_ANSWERS_WITHIN_S) - boottime() if late else None
            if look_in_s is None or look_in_s > 0:
                nap_s = None if look_in_s is None else min(look_in_s, LONGEST_NAP_S)
                await pause(nap_s, self._deadlines_changed)
            elif await self._shim_answers():
                answered_at = boottime()
            elif (late := self._late()) and late.since <= boottime() and not self._may_save(late):
                self._hung = late.reason
                self._shim.end(self._output.parent)
                return

    def _late(self) -> Late | None:
        return self._deadlines.late(paused=self.paused)

    async def _shim_answers(self) -> bool:
        """Asks the shim for a sign of life, twice: this process may have stood still itself while it waited."""
        for _ in range(SIGNS_ASKED_FOR):
            self._heard.clear()
            self._shim.link.send(AskStatus())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SIGNS_WITHIN_S / SIGNS_ASKED_FOR):
                    await self._heard.wait()
                    return True
        return False

    def _may_save(self, late: Late) -> bool:
        """Returns whether a checkpoint is saved before it is ended: the agent needs no shim for that."""
        if late.reason is not EndReason.TIME_LIMIT or not self._deadlines.time_limit_save_s:
            return False
        if self.out_of_time or self.paused:
            return False
        self._out_of_time()
        return True

    def _out_of_time(self) -> None:
        self.out_of_time = True
        self._deadlines.saves(boottime())
        self.on_out_of_time()

    async def _listen(self) -> None:
        try:
            while True:
                await self._hear()
        except ShimGone:
            self._watching.cancel()
            if not self._exit.done():
                log.error("the shim of attempt %s is gone; its processes are swept up", self.attempt_id)
                record, _ = await asyncio.to_thread(left_record, self._output.parent)
                await nothing_left(self._output.parent)
                if record.reason is EndReason.SHIM_LOST and self._hung:
                    record = ExitRecord(reason=self._hung, error=ENDED_WITH_ITS_GUARDIAN)
                await self._conclude(record)
        self._shim.link.close()
        if self._shim.child is not None:
            await asyncio.to_thread(reap, self._shim.child)

    async def _hear(self) -> None:
        message = await self._shim.link.receive()
        self._heard.set()
        match message:
            case Exited() as ended:
                await self._conclude(ended)
            case Hello(exit=ExitRecord() as ended):
                await self._conclude(ended)
            case Paused():
                self.paused = True
                self._deadlines.is_paused(boottime())
                self._deadlines_changed.set()
            case Resumed():
                self.paused = False
                self._deadlines.is_resumed()
            case OutOfTime():
                self._out_of_time()

    async def _conclude(self, ended: ExitRecord) -> None:
        self.paused = False
        self._watching.cancel()
        if not self._exit.done():
            self._exit.set_result(await asyncio.to_thread(_exit_of, ended, self._output))


class HeldTrainer(Struct, frozen=True):
    """Represents an attempt that is prepared up to its last step, unless its shim is `gone`."""

    order: Order
    shim: ShimProcess
    gone: bool


class Runner:
    """Runs trainers through shims, and keeps a spare shim ready.

    Use it as an async context manager. Leaving it ends the spare, and disconnects from what runs without stopping it.
    """

    def __init__(self, python: str = sys.executable, key: str = "", walls: ReadyWalls | None = None) -> None:
        """Takes the `key` that the next agent of this worker will know, and no job: shims admit nobody else."""
        self._starter = ShimStarter(python)
        self._key = key
        self._walls = walls
        self._spare: asyncio.Task[ShimProcess] | None = None
        self._unwanted: set[asyncio.Task[None]] = set()
        """Each ends a shim for a start that was cancelled meanwhile."""
        self._taken: list[ShimProcess] = []
        """Which do not run a trainer yet."""
        self._running: list[RunningTrainer] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        spare, self._spare = self._spare, None
        for running in self._running:
            running.leave_alone()
        for shim in [*self._taken]:
            await self.dismiss(shim)
        if spare is not None:
            await self._dismiss_when_there(spare)
        await asyncio.gather(*self._unwanted)
        await asyncio.to_thread(self._starter.close)

    def warm_up(self) -> None:
        """Starts the spare shim, if there is none."""
        if self._spare is None:
            self._spare = asyncio.create_task(self._start_shim(self._walls))

    async def take(self) -> ShimProcess:
        """Returns the spare, behind its wall where it has one. Whoever takes it holds an order in it, or dismisses it.

        Raises ShimUnavailable where there is none to be had.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            with contextlib.suppress(ShimUnavailable):
                shim = await self._shim_of(spare)
                if shim.child is not None and shim.child.poll() is None:
                    self._taken.append(shim)
                    return shim
                await self.dismiss(shim)
        return await self.take_bare()

    async def take_bare(self) -> ShimProcess:
        """Returns a shim that has built no wall yet, at the cost of starting one."""
        shim = await self._shim_of(asyncio.create_task(self._start_shim(None)))
        self._taken.append(shim)
        return shim

    async def dismiss(self, shim: ShimProcess) -> None:
        """Ends a shim that runs no trainer, and what it has prepared."""
        self._taken = [one for one in self._taken if one is not shim]
        shim.link.close()
        if shim.child is not None:
            await asyncio.to_thread(reap, shim.child)
        if shim.ready is not None and self._walls is not None:
            await asyncio.to_thread(self._walls.discard, shim.ready)

    async def hold(self, shim: ShimProcess, order: Order) -> HeldTrainer:
        """Returns when everything but the last step is under way; what goes wrong is told by `go`.

        Raises ShimUnavailable where the shim hangs; nothing of the attempt lives then.
        """
        shim.link.send(replace(order, key=self._key))
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                await shim.link.expect(TrainerHeld)
        except ShimGone:
            return HeldTrainer(order, shim, gone=True)
        except TimeoutError as error:
            raise await self._ended_silent(shim, order) from error
        return HeldTrainer(order, shim, gone=False)

    async def go(
        self, held: HeldTrainer, lease_s: float | None = None, leased_at: float | None = None
    ) -> RunningTrainer:
        """Returns when the trainer has been executed, or could not be: then `wait` gives `start_failed` at once.

        `leased_at` is by `boottime`; None is now. Raises as `hold` does.
        """
        shim, order = held.shim, held.order
        self._taken = [one for one in self._taken if one is not shim]
        answer = None
        try:
            if not held.gone:
                shim.link.send(Go(lease_s=lease_s, leased_at=leased_at))
                async with asyncio.timeout(STARTS_WITHIN_S):
                    answer = await shim.link.receive()
        except ShimGone:
            pass
        except TimeoutError as error:
            raise await self._ended_silent(shim, order) from error
        except asyncio.CancelledError:
            shim.leave_alone()
            raise
        self.warm_up()
        pid = answer.pid if isinstance(answer, Started) else None
        deadlines = order.deadlines(lease_s, leased_at, boottime())
        running = RunningTrainer(order.attempt_id, Path(order.output), shim, deadlines, pid)
        self._watch(running)
        if isinstance(answer, Exited):
            await running._conclude(answer)
        return running

    async def adopt(self, attempt_dir: Path) -> RunningTrainer | EndedAttempt:
        """Takes up an attempt of an agent before this one, or tells how it ended and ends what is left of it."""
        output = attempt_dir / "output.log"
        try:
            async with asyncio.timeout(SHIM_ANSWERS_WITHIN_S):
                link, greeting = await self._greet(attempt_dir)
        except (ShimGone, TimeoutError):
            await self._end_shim(attempt_dir)
            return await asyncio.to_thread(_ended, attempt_dir, output)
        shim = ShimProcess(link, None)
        running = RunningTrainer(attempt_dir.name, output, shim, greeting.deadlines, greeting.pid)
        self._watch(running)
        running.paused = greeting.paused
        running.hidden = greeting.hidden
        running.out_of_time = greeting.out_of_time
        if greeting.exit is not None:
            await running._conclude(greeting.exit)
        return running

    async def end(self, attempt_dir: Path) -> None:
        """Ends an attempt that cannot be taken up, its shim included; `orphans.nothing_left` tells when it is over."""
        await self._end_shim(attempt_dir)
        await asyncio.to_thread(end_rest, attempt_dir)

    async def _ended_silent(self, shim: ShimProcess, order: Order) -> ShimUnavailable:
        """Ends a shim that hangs in a start, and returns what to raise for it once nothing of the attempt lives."""
        attempt_dir = Path(order.attempt_dir)
        shim.end(attempt_dir)
        while shim.child is not None and not await asyncio.to_thread(killed, shim.child):
            pass
        await nothing_left(attempt_dir)
        return ShimUnavailable(
            f"The trainer's guardian did not answer for {STARTS_WITHIN_S:g} s and was ended."
        )

    async def _greet(self, attempt_dir: Path) -> tuple[ShimLink, Hello]:
        """Raises ShimGone where no shim listens, or where one does not answer though it was asked again."""
        for _ in range(GREETINGS - 1):
            link = await ShimLink.to(attempt_dir)
            with contextlib.suppress(ShimGone):
                return link, await self._greeting(link)
            await asyncio.sleep(GREETING_PAUSE_S)
        link = await ShimLink.to(attempt_dir)
        return link, await self._greeting(link)

    async def _greeting(self, link: ShimLink) -> Hello:
        if self._key:
            link.send(Greet(self._key))
        return await link.expect(Hello)

    async def _end_shim(self, attempt_dir: Path) -> None:
        """Kills a shim that does not answer: it would report what is done to its trainer as the trainer's own failure."""
        with contextlib.suppress(ShimGone, TimeoutError):
            async with asyncio.timeout(SHIM_ANSWERS_WITHIN_S):
                ShimProcess(await ShimLink.to(attempt_dir), None).end(attempt_dir)

    def _watch(self, running: RunningTrainer) -> None:
        self._running = [*(one for one in self._running if not one.is_over), running]

    async def _shim_of(self, starting: asyncio.Task[ShimProcess]) -> ShimProcess:
        """Returns the shim. A start that is cancelled must not lose one that is there, or will be in a moment."""
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            unwanted = asyncio.create_task(self._dismiss_when_there(starting))
            self._unwanted.add(unwanted)
            unwanted.add_done_callback(self._unwanted.discard)
            raise

    async def _dismiss_when_there(self, starting: asyncio.Task[ShimProcess]) -> None:
        with contextlib.suppress(ShimUnavailable):
            await self.dismiss(await starting)

    async def _start_shim(self, walls: ReadyWalls | None) -> ShimProcess:
        try:
            child, line = await asyncio.to_thread(self._starter.start)
        except OSError as error:
            raise ShimUnavailable(f"No process could be started: {error}.") from error
        line.setblocking(False)
        link = await ShimLink.over(line)
        try:
            async with asyncio.timeout(SHIM_ANSWERS_WITHIN_S):
                await link.expect(ShimReady)
        except (ShimGone, TimeoutError) as error:
            await asyncio.to_thread(reap, child)
            raise ShimUnavailable("The trainer's guardian ended before its work.") from error
        ready = None if walls is None else await asyncio.to_thread(walls.ready)
        return await self._behind_wall(link, child, ready)

    async def _behind_wall(self, link: ShimLink, child: ShimChild, ready: ReadyWall | None) -> ShimProcess:
        """Has the shim build its wall.

        Where the wall cannot be built now, it is tried again with the attempt, which tells why if it fails.
        """
        shim = ShimProcess(link, child, ready)
        if ready is None:
            return shim
        link.send(Build(ready.wall, ready.cgroup))
        try:
            async with asyncio.timeout(SHIM_ANSWERS_WITHIN_S):
                await link.expect(Built)
        except (ShimGone, TimeoutError):
            log.warning("no wall could be built for the next job: it is tried again when there is one")
            await self.dismiss(shim)
            return await self._start_shim(None)
        return shim


def _exit_of(ended: ExitRecord, output: Path) -> TrainerExit:
    return TrainerExit(
        reason=ended.reason,
        exit_code=ended.exit_code,
        signal=ended.signal,
        error=ended.error,
        blame=ended.blame,
        last_lines=last_lines(output),
    )


def _ended(attempt_dir: Path, output: Path) -> EndedAttempt:
    record, lives_on = left_record(attempt_dir)
    reported = (attempt_dir / "reported.json").exists()
    return EndedAttempt(exit=_exit_of(record, output), reported=reported, lives_on=lives_on)
