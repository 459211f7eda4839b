"""Simulates an agent of the older kind: no acceptance, no epochs, one try per report, `drain` ignored.

Fleets run such agents already.
"""

from collections.abc import Callable
from typing import Any

from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import (
    Goodbye,
    GpuInfo,
    Heartbeat,
    JobCancel,
    JobSubmit,
    Register,
    Registered,
    ReportStatus,
    StatusReport,
    StreamMessage,
)
from simpletuner_fleet.sim.checks.truth import Run
from simpletuner_fleet.sim.machine import HURRIED_S, SimulatedMachine
from simpletuner_fleet.sim.network import DEAD_PEER_S, Answered, LinkDown
from simpletuner_fleet.sim.server.streams import Stream

RECONNECT_S = 10.0


class OlderAgent:
    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.world = machine.world
        self.alive = True
        self.paused = False
        self.stream: Stream | None = None
        self.registered = False
        self._connecting = False
        self._offer: JobSubmit | None = None
        self._run: Run | None = None
        self._prints = True
        self._reporting = False
        self._missed: list[Callable[[], None]] = []

    def boot(self) -> None:
        self._connect()
        self._later(self.machine.orchestrator.policy.heartbeat_interval_s, self._beat)

    def die(self, *, machine_lives: bool) -> None:
        self.alive = False
        if self._run is not None:
            self.machine.truth.ends(self._run, "vanished")
        if machine_lives:
            self._close_stream()
        elif self.stream is not None:
            self.stream.listener = None

    def pause(self) -> None:
        self.paused = True

    def wake_up(self) -> None:
        self.paused = False
        missed, self._missed = self._missed, []
        for act in missed:
            self._when_awake(act)

    def hurry(self) -> None:
        run = self._run
        if run is not None:
            self._later(HURRIED_S[1], lambda: self._done(run))

    def terminate(self) -> None:
        """Ends at once; a real one would see its shutdown only when a line arrives."""
        self.machine.kill_agent()

    def out_of_time(self, turn: Turn) -> None:
        """Does nothing: it has no shims that could report this."""

    def store_checkpoint(self, turn: Turn, step: int) -> None:
        """Does nothing: it sends no checkpoints."""

    def trainer_ended(self, turn: Turn, ending: AttemptEnding) -> None:
        """Does nothing: its trainers have no shim that could report this."""

    def _when_awake(self, act: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.paused:
            self._missed.append(act)
        else:
            act()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.world.after(delay_s, lambda: self._when_awake(act))

    def _call(self, work: Callable[[], Any], answered: Answered) -> None:
        orchestrator = self.machine.orchestrator
        self.machine.link.call(
            lambda reply: orchestrator.receive(work, reply, self.machine.link),
            lambda outcome: self._when_awake(lambda: self._answered(outcome, answered)),
        )

    def _answered(self, outcome: Any, answered: Answered) -> None:
        if isinstance(outcome, InvalidToken):
            self.world.counts["older agent exits on 401"] += 1
            self.machine.kill_agent()
            self.world.after(self.world.chance.uniform(5.0, 40.0), self.machine.boot)
            return
        answered(outcome)

    def _connect(self) -> None:
        if self._connecting or self.stream is not None:
            return
        self._connecting = True
        kind, token = self.machine.kind, self.machine.token
        message = Register(
            name=kind.name,
            gpu_info=GpuInfo(name="A100", vram_gb=kind.vram_gb, count=kind.gpus, accelerator="cuda"),
            persistent=kind.persistent,
            current_job_id=self._offer.job_id if self._offer else None,
        )
        self._call(lambda: self.machine.orchestrator.register(token, message), self._registered)

    def _registered(self, outcome: Any) -> None:
        if not isinstance(outcome, Registered):
            self._connecting = False
            self._later(RECONNECT_S, self._connect)
            return
        self.registered = True
        if self._offer is not None and outcome.abandon_job == self._offer.job_id:
            self._end("abandoned", report=None)
        machine, token = self.machine, self.machine.token
        self._call(
            lambda: machine.orchestrator.open_stream(token, machine.link, self, ""), self._stream_opened
        )

    def _stream_opened(self, outcome: Any) -> None:
        self._connecting = False
        if isinstance(outcome, Stream) and outcome.listener is self:
            self.stream = outcome
        else:
            self._later(RECONNECT_S, self._connect)

    def stream_said(self, stream: Stream, message: StreamMessage) -> None:
        self._when_awake(lambda: self._hear(message))

    def hear_again(self, message: StreamMessage) -> None:
        """Does nothing: without epochs it takes what comes again for something new."""

    def _hear(self, message: StreamMessage) -> None:
        if isinstance(message, JobSubmit):
            self._begin(message)
        elif isinstance(message, JobCancel) and self._offer is not None:
            self._end("cancelled", report=ReportStatus.CANCELLED)

    def stream_dropped(self, stream: Stream) -> None:
        self._when_awake(lambda: self._lost_stream(stream))

    def _lost_stream(self, stream: Stream) -> None:
        if self.stream is stream:
            self.stream = None
            self._later(RECONNECT_S, self._connect)

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is None or stream.listener is None:
            return
        stream.listener = None
        if self.machine.link.up and not stream.frozen:
            self.world.after(0.01, lambda: self.machine.orchestrator.peer_closed(stream))

    def _beat(self) -> None:
        self._later(self.machine.orchestrator.policy.heartbeat_interval_s, self._beat)
        if self.stream is not None and self.world.now - self.stream.heard_at > DEAD_PEER_S:
            self._close_stream()
            self._later(RECONNECT_S, self._connect)
        if not self.registered or (self._offer is not None and not self._prints):
            return
        token = self.machine.token
        busy = self._offer is not None
        message = Heartbeat(
            worker_id=self.machine.worker_id,
            status="busy" if busy else "idle",
            current_job_id=self._offer.job_id if self._offer else None,
        )
        self._call(lambda: self.machine.orchestrator.heartbeat(token, message), lambda _: None)

    def _begin(self, offer: JobSubmit) -> None:
        if self._offer is not None or self._reporting:
            return
        self._offer = offer
        self._prints = self.world.chance.random() < 0.5
        self._run = self.machine.truth.begins(
            offer.job_id, offer.epoch, self.machine.kind.name, fenced=False, now=self.world.now
        )
        self.world.note(f"{self.machine.kind.name}: ({offer.job_id}, {offer.epoch}) starts")
        self._say(offer.job_id, ReportStatus.STARTING)
        self._later(0.5, lambda: self._say_if_running(offer))
        run = self._run
        run_s = float(offer.config.get("run_s", 30.0))
        if self.world.hurries:
            run_s = min(run_s, HURRIED_S[1])
        self.world.after(run_s, lambda: self._when_awake(lambda: self._done(run)))

    def _say_if_running(self, offer: JobSubmit) -> None:
        if self._offer is offer:
            self._say(offer.job_id, ReportStatus.TRAINING)

    def _done(self, run: Run) -> None:
        if self._run is not run or self._offer is None:
            return
        if self._offer.config.get("poison"):
            self.world.fault("poison job", f"{self._offer.job_id} takes {self.machine.kind.name} down")
            self.machine.fall_over()
        elif self._offer.config.get("exit", 0) == 0:
            self._end("completed", report=ReportStatus.COMPLETED)
        else:
            self._end("failed", report=ReportStatus.FAILED)

    def _end(self, how: str, *, report: ReportStatus | None) -> None:
        offer, run = self._offer, self._run
        assert offer is not None
        assert run is not None
        self._offer = self._run = None
        self.machine.truth.ends(run, how)
        self.world.note(f"{self.machine.kind.name}: ({offer.job_id}, {offer.epoch}) ends {how}")
        if report is None:
            return
        self._reporting = True
        self._say(offer.job_id, report, self._reported)
        if self.world.chance.random() < 0.5:
            self.world.counts["older agent reports two finals"] += 1
            self._later(0.3, lambda: self._say(offer.job_id, report))

    def _reported(self, outcome: Any) -> None:
        self._reporting = False
        if isinstance(outcome, LinkDown) or self.machine.kind.persistent:
            return
        token = self.machine.token
        self._call(lambda: self.machine.orchestrator.has_jobs(token), self._leave_if_idle)

    def _leave_if_idle(self, has_jobs: Any) -> None:
        if has_jobs is not False:
            return
        token = self.machine.token
        message = Goodbye(worker_id=self.machine.worker_id)
        self._call(lambda: self.machine.orchestrator.goodbye(token, message), lambda _: self._exit())

    def _exit(self) -> None:
        self.machine.retired = True
        self.machine.kill_agent()

    def _say(self, job_id: str, status: ReportStatus, answered: Answered = lambda outcome: None) -> None:
        token = self.machine.token
        message = StatusReport(status=status, exit_code=0 if status is ReportStatus.COMPLETED else None)
        self._call(lambda: self.machine.orchestrator.report(token, job_id, message), answered)
