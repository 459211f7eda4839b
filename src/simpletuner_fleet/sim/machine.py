"""Simulates a GPU machine: what is on its disk, the shims that guard its trainers, and its power."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.core.errors import FleetError, StoreUnavailable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import FINISHING, EndReason
from simpletuner_fleet.core.jobs.reconcile import incarnation_of
from simpletuner_fleet.protocol.messages import (
    GpuReport,
    JobSubmit,
    ReportStatus,
    StatusReport,
    StreamMessage,
)
from simpletuner_fleet.sim.checks.truth import Run, Truth
from simpletuner_fleet.sim.network import Link, LinkDown
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.server.streams import Stream
from simpletuner_fleet.sim.world import World

ADOPT_GRACE_S = 2.0
REPORTS_ALONE_FOR_S = 60.0
KILL_GRACE_S = 30.0
HURRIED_S = (0.5, 4.0)


class MachineKind(Struct, frozen=True, kw_only=True):
    """Describes a simulated machine: its GPUs, its agent's age, its way to the orchestrator."""

    name: str
    persistent: bool = True
    gpus: int = 1
    vram_gb: float = 80.0
    max_jobs: int = 1
    older: bool = False
    labels: dict[str, str] = {}
    host: str = ""
    """Whose GPUs it shares; '' has its own."""
    price_micros: int | None = None
    """What its agent says of an hour of one GPU."""
    forwarded: bool = False
    """A forwarder stands between it and the orchestrator, and refuses for itself where it is dead."""


class AgentProgram(Protocol):
    """Represents the agent program of a simulated machine, of today's kind or of an older one."""

    stream: Stream | None
    paused: bool

    def boot(self) -> None: ...
    def die(self, *, machine_lives: bool) -> None: ...
    def pause(self) -> None: ...
    def wake_up(self) -> None: ...
    def hurry(self) -> None: ...
    def terminate(self) -> None: ...
    def out_of_time(self, turn: Turn) -> None: ...
    def store_checkpoint(self, turn: Turn, step: int) -> None: ...
    def trainer_ended(self, turn: Turn, ending: AttemptEnding) -> None: ...
    def stream_dropped(self, stream: Stream) -> None: ...
    def hear_again(self, message: StreamMessage) -> None: ...


class SimulatedMachine:
    def __init__(
        self,
        world: World,
        orchestrator: Orchestrator,
        truth: Truth,
        kind: MachineKind,
        link: Link,
        token: str,
    ) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.truth = truth
        self.kind = kind
        self.link = link
        self.token = token
        self.worker_id = ""
        self.home = f"h_{kind.name}"
        self.powered = True
        self.agent: AgentProgram | None = None
        self.make_agent: Callable[[SimulatedMachine], AgentProgram]
        self.shims: dict[Turn, SimulatedShim] = {}
        self.orders: dict[Turn, JobSubmit] = {}
        self.exits: dict[Turn, AttemptEnding] = {}
        self.reported: set[Turn] = set()
        self.spool: dict[Turn, StatusReport] = {}
        self.unstored: dict[tuple[Turn, int], None] = {}
        """Checkpoints on its disk, by their step, of which nobody has said that they arrived."""
        self.broken = False
        """Its disk is full, or half of its package is missing: it can start nothing."""
        self.retired = False
        """An ephemeral machine that has done its work is gone for good."""
        self.told_end: float | None = None
        """When it is to be taken away, as its agent wrote down."""
        self._agents_made = 0

    def boot(self) -> None:
        """Starts the agent, unless it runs or never will again."""
        if not self.powered or self.retired or self.agent is not None:
            return
        self._agents_made += 1
        self.agent = self.make_agent(self)
        self.world.note(f"{self.kind.name}: agent {self._agents_made} starts")
        self.agent.boot()

    def next_incarnation(self) -> str:
        return incarnation_of(self._agents_made, self.kind.name)

    def paused(self) -> set[Turn]:
        return {turn for turn, shim in self.shims.items() if shim.is_paused}

    def kill_agent(self) -> None:
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.die(machine_lives=True)
            for shim in list(self.shims.values()):
                shim.lose_agent()

    def power_off(self) -> None:
        if not self.powered:
            return
        self.powered = False
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.die(machine_lives=False)
        for shim in list(self.shims.values()):
            shim.vanish()
        self.shims.clear()

    def fall_over(self) -> None:
        """Powers the machine off, and on again after a while."""
        self.power_off()
        down_s = (5.0, 20.0) if self.world.hurries else (20.0, 200.0)
        self.world.after(self.world.chance.uniform(*down_s), self.power_on)

    def power_on(self) -> None:
        self.powered = True
        self.boot()

    def hurry(self) -> None:
        """Shortens what is left of each training."""
        for shim in self.shims.values():
            shim.hurry()
        if self.agent is not None:
            self.agent.hurry()

    def gpu_reports(self) -> list[GpuReport]:
        return [
            GpuReport(
                index=at,
                uuid=f"GPU-{self.kind.host or self.kind.name}-{at}",
                name="A100",
                vram_gb=self.kind.vram_gb,
            )
            for at in range(self.kind.gpus)
        ]

    def forget(self, turn: Turn) -> None:
        self.shims.pop(turn, None)
        self.orders.pop(turn, None)
        self.exits.pop(turn, None)
        self.reported.discard(turn)
        self.spool.pop(turn, None)


class SimulatedShim:
    """Guards one attempt: it holds the lease, and ends the trainer when no agent comes back for it."""

    def __init__(self, machine: SimulatedMachine, offer: JobSubmit, lease_until: float) -> None:
        self.machine = machine
        self.offer = offer
        self.turn = Turn(offer.job_id, offer.epoch)
        self.lease_until = lease_until
        self.alone = False
        self.done = False
        self._plan: dict[str, Any] = offer.config
        self._run_s = float(self._plan.get("run_s", 30.0))
        begun_at_step = offer.resume["step"] if offer.resume else 0
        self._left_s = max(0.5, self._run_s - begun_at_step)
        if machine.world.hurries:
            self._left_s = min(self._left_s, machine.world.chance.uniform(*HURRIED_S))
        self._gone_on_at = machine.world.now
        self._change = 0
        self._stopping: str | None = None
        self.out_of_time = False
        fenced = offer.on_partition != "continue"
        self.run: Run = machine.truth.begins(
            *self.turn,
            machine.kind.name,
            fenced=fenced,
            now=machine.world.now,
            gpus=frozenset(offer.gpus),
        )
        self._plan_end()
        self._watch_lease()
        if offer.time_limit_s is not None:
            machine.world.after(offer.time_limit_s, self._time_is_up)
        if self._plan.get("keeps"):
            machine.world.after(self._left_s / 2, lambda: self._save("checkpoint saved on the way"))
        if self._plan.get("poison"):
            machine.world.after(self._left_s / 2, self._poison)

    @property
    def world(self) -> World:
        return self.machine.world

    @property
    def is_paused(self) -> bool:
        return not self.done and not self.run.running

    def renew(self, lease_until: float) -> None:
        self.lease_until = max(self.lease_until, lease_until)
        if self.is_paused and self.world.now < self.lease_until:
            self.world.note(f"{self.machine.kind.name}: {self.turn} goes on")
            self.world.counts["trainer resumed"] += 1
            self.machine.truth.goes_on(self.run, self.world.now)
            self._gone_on_at = self.world.now
            self._plan_end()
            self._watch_lease()

    def stop(self, grace_s: float, outcome: str, save_s: float | None = None) -> None:
        if self.done:
            return
        self._stopping = outcome
        if save_s is not None:
            self._save_and_stop(grace_s, save_s)
            return
        if grace_s <= 0:
            self._end(AttemptEnding(reason=EndReason.STOPPED, exit_signal=9))
            return
        took_s = self.world.chance.uniform(0.0, grace_s)
        self.world.after(took_s, lambda: self._end(AttemptEnding(reason=EndReason.STOPPED, exit_signal=15)))

    def _save_and_stop(self, grace_s: float, save_s: float) -> None:
        """Stops the trainer, mostly after it has saved in time, or else without a checkpoint."""
        took_s = self.world.chance.uniform(0.0, 1.3 * save_s)
        if took_s < save_s:
            self.world.after(took_s, lambda: self._save("checkpoint saved before a stop"))
        ends_in_s = min(took_s, save_s) + self.world.chance.uniform(0.0, grace_s)
        self.world.after(
            ends_in_s, lambda: self._end(AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))
        )

    def save_soon(self) -> None:
        """Somebody has asked for a checkpoint: the trainer saves within a moment, and trains on."""
        self.world.after(
            self.world.chance.uniform(0.1, 3.0), lambda: self._save("checkpoint saved on request")
        )

    def _save(self, counted_as: str) -> None:
        agent = self.machine.agent
        if self.done or not self.run.running or agent is None or self.alone:
            return
        self.world.counts[counted_as] += 1
        trained_s = self._run_s - self._left_s + self.world.now - self._gone_on_at
        agent.store_checkpoint(self.turn, int(trained_s))

    def hurry(self) -> None:
        soon_s = self.world.chance.uniform(*HURRIED_S)
        if self.done or not self.run.running:
            self._left_s = min(self._left_s, soon_s)
        elif self._left_s - (self.world.now - self._gone_on_at) > soon_s:
            self._left_s, self._gone_on_at = soon_s, self.world.now
            self._plan_end()

    def vanish(self) -> None:
        """Ends the shim as a power cut does: nothing is written, nobody is told."""
        self.done = True
        self.machine.truth.ends(self.run, "vanished")

    def lose_agent(self) -> None:
        self.alone = True
        self.world.after(ADOPT_GRACE_S, self._still_alone)

    def meet_agent(self) -> None:
        self.alone = False

    def _still_alone(self) -> None:
        if not self.alone or self.machine.shims.get(self.turn) is not self:
            return
        if not self.done:
            self._end(AttemptEnding(reason=EndReason.AGENT_LOST, exit_signal=9))
        self.machine.shims.pop(self.turn, None)
        self._report_alone(self.world.now + REPORTS_ALONE_FOR_S)

    def _report_alone(self, until: float) -> None:
        if not self.machine.powered or self.turn not in self.machine.exits:
            return
        message = self._own_report(self.machine.exits[self.turn])
        orchestrator, token = self.machine.orchestrator, self.offer.upload_token
        assert isinstance(token, str)
        self.world.counts["shim reports by itself"] += 1

        def answered(outcome: Any) -> None:
            was_answered = not isinstance(outcome, LinkDown | StoreUnavailable)
            if was_answered:
                if self.turn in self.machine.exits and message.status is not ReportStatus.RUNNING:
                    self.machine.reported.add(self.turn)
            elif self.world.now + 5.0 < until:
                self.world.after(5.0, lambda: self._report_alone(until))

        self.machine.link.call(
            lambda reply: orchestrator.receive(
                lambda: orchestrator.report_of_shim(token, self.turn[0], message), reply, self.machine.link
            ),
            answered,
        )

    def _own_report(self, ending: AttemptEnding) -> StatusReport:
        status = ReportStatus.LOST
        if ending.reason is EndReason.EXITED and ending.exit_code == 0:
            return StatusReport(
                status=ReportStatus.RUNNING, epoch=self.turn[1], progress={"phase": FINISHING}
            )
        if ending.reason is EndReason.EXITED:
            status = ReportStatus.FAILED
        elif ending.reason is EndReason.TIME_LIMIT:
            status = ReportStatus.RELEASED if self.out_of_time else ReportStatus.FAILED
        elif ending.reason is EndReason.STOPPED and self._stopping:
            status = ReportStatus(self._stopping)
        return StatusReport(
            status=status,
            epoch=self.turn[1],
            exit_code=ending.exit_code,
            exit_signal=ending.exit_signal,
            reason=EndReason.TIME_LIMIT if self.out_of_time and status is ReportStatus.RELEASED else "",
        )

    def _plan_end(self) -> None:
        self._change += 1
        change = self._change
        self.world.after(self._left_s, lambda: self._run_out(change))

    def _run_out(self, change: int) -> None:
        if self._change != change or self.done or not self.run.running:
            return
        exit_code = int(self._plan.get("exit", 0))
        if exit_code and self.offer.attempt % 2 and not self.alone:
            self._condemn()
        else:
            self._end(AttemptEnding(reason=EndReason.EXITED, exit_code=exit_code))

    def _condemn(self) -> None:
        """Ends the trainer as a watchdog does that found its last half spoiled; the job resumes before that."""
        self.world.counts["watchdog restart"] += 1
        self._end(
            AttemptEnding(
                reason=EndReason.WATCHDOG,
                exit_signal=15,
                error="watchdog: the loss was NaN",
                restart=True,
                resume_below=int(self._run_s / 2),
            )
        )

    def _watch_lease(self) -> None:
        if self.offer.on_partition != "continue":
            self.world.after(max(0.0, self.lease_until - self.world.now), self._mind_lease)

    def _mind_lease(self) -> None:
        if self.done or not self.run.running:
            return
        if self.world.now < self.lease_until:
            self._watch_lease()
        elif self.offer.on_partition == "stop":
            self.world.counts["trainer fenced"] += 1
            self._end(AttemptEnding(reason=EndReason.FENCED, exit_signal=9))
        else:
            self.world.note(f"{self.machine.kind.name}: {self.turn} pauses")
            self.world.counts["trainer paused"] += 1
            self._change += 1
            self._left_s -= self.world.now - self._gone_on_at
            self.machine.truth.pauses(self.run)

    def _time_is_up(self) -> None:
        if self.done:
            return
        agent = self.machine.agent
        may_save = self.offer.on_time_limit == "requeue" and self.run.running and not self.out_of_time
        self.out_of_time = self.out_of_time or may_save
        if may_save:
            self.world.counts["time limit reached, a checkpoint first"] += 1
            self.world.after(self.offer.checkpoint_wait_s + KILL_GRACE_S, self._time_is_up)
            if agent is not None and not self.alone:
                agent.out_of_time(self.turn)
            return
        self.world.counts["time limit reached"] += 1
        self._end(AttemptEnding(reason=EndReason.TIME_LIMIT, exit_signal=9))

    def _poison(self) -> None:
        if not self.done and self.machine.powered and self.machine.shims.get(self.turn) is self:
            self.world.fault("poison job", f"{self.turn} takes {self.machine.kind.name} down")
            self.machine.fall_over()

    def _end(self, ending: AttemptEnding) -> None:
        if self.done or not self.machine.powered:
            return
        self.done = True
        how = {0: "completed"}.get(ending.exit_code if ending.exit_code is not None else -1, "failed")
        how = how if ending.reason in (EndReason.EXITED, EndReason.TIME_LIMIT) else "ended"
        self.machine.truth.ends(self.run, how)
        self.world.note(f"{self.machine.kind.name}: {self.turn} ends {ending.reason} {ending.exit_code}")
        self.machine.exits[self.turn] = ending
        agent = self.machine.agent
        if agent is not None and not self.alone:
            agent.trainer_ended(self.turn, ending)


def is_final_answer(outcome: Any) -> bool:
    """Tells whether a report need not be sent again after this answer."""
    if isinstance(outcome, LinkDown | StoreUnavailable):
        return False
    return not (isinstance(outcome, FleetError) and outcome.code in ("invalid_token", "unauthenticated"))
