"""The agent's shell on virtual time, around the real inbox: registers, listens, beats, accepts, reports."""

from typing import Any, assert_never

from simpletuner_fleet.agent.actions import (
    Action,
    AskForCheckpoint,
    AskForValidation,
    Forget,
    Leave,
    SendAccept,
    SendReport,
    StartTrainer,
    StopTrainer,
)
from simpletuner_fleet.agent.attempts.endings import SHIM_OUTCOME, AttemptEnding
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.lease import lease_for
from simpletuner_fleet.agent.loops.stream_loop import stop_of
from simpletuner_fleet.core.errors import FleetError, StaleAttempt, StaleMessage, Superseded
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import FINISHING, EndReason, Results
from simpletuner_fleet.core.workers.outage import Knock, is_dead
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import (
    Accept,
    Accepted,
    CheckpointNow,
    Drain,
    EndNotice,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    JobCancel,
    JobSubmit,
    Ping,
    Register,
    Registered,
    ReportAnswer,
    ReportStatus,
    Shutdown,
    StatusReport,
    StopAttempt,
    StreamMessage,
    TokenRotated,
    ValidateNow,
)
from simpletuner_fleet.sim.agent_process import AgentProcess
from simpletuner_fleet.sim.machine import SimulatedMachine, SimulatedShim, is_final_answer
from simpletuner_fleet.sim.network import DEAD_PEER_S, NobodyListens
from simpletuner_fleet.sim.server.streams import Stream
from simpletuner_fleet.sim.world import Violation

GOODBYE_TRIES = 3
TRAINER = "simpletuner"
TRAINER_NOT_READY = 0.1
"""Now and then a trainer cannot be asked for anything, and has to be asked again."""
RESUME_FAILS = 0.5


class SimulatedAgent(AgentProcess):
    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__(machine)
        self.incarnation = machine.next_incarnation()
        self.inbox = Inbox(persistent=machine.kind.persistent, max_jobs=machine.kind.max_jobs)
        self.registered = False
        self.leaving = False
        self.timeout_s = machine.orchestrator.policy.heartbeat_timeout_s
        self._connecting = False
        self._leases: dict[Turn, float] = {}

    # Process

    def boot(self) -> None:
        machine = self.machine
        machine.link.forget_terms()
        for turn, offer in list(machine.orders.items()):
            shim = machine.shims.get(turn)
            ending = machine.exits.get(turn)
            if turn in machine.reported or (shim is None and ending is None):
                machine.forget(turn)
                continue
            self.world.counts["attempt adopted by a new agent"] += 1
            if turn in machine.spool:
                self.inbox.adopted(offer, Phase.FINISHED)
                continue
            self.inbox.adopted(offer, Phase.RUNNING)
            if shim is not None:
                shim.meet_agent()
            if ending is not None:
                self._act(self.inbox.ended(turn, ending))
        for turn, step in list(machine.unstored):
            self.store_again(turn, step)
        for turn, report in list(machine.spool.items()):
            self.inbox.reported_before(turn)
            self._store_and_deliver(turn, report, self.world.now)
        self._connect()
        self._later(self.machine.orchestrator.policy.heartbeat_interval_s, self._beat)

    def die(self, *, machine_lives: bool) -> None:
        self.alive = False
        if machine_lives:
            self._close_stream()
        elif self.stream is not None:
            self.stream.listener = None

    def hurry(self) -> None:
        """Does nothing: its trainers have guardians, which hurry."""

    @property
    def lease_s(self) -> float:
        """The lease is the real agent's: the trainer pauses before the orchestrator may give its job away."""
        return lease_for(self.timeout_s)

    # Connecting

    def _connect(self) -> None:
        if self._connecting or self.stream is not None:
            return
        self._connecting = True
        kind, token, sent_at = self.machine.kind, self.machine.token, self.world.now
        message = Register(
            name=kind.name,
            persistent=kind.persistent,
            gpus=self.machine.gpu_reports(),
            trainers=[TRAINER],
            saves_on_request=[TRAINER],
            validates_on_request=[TRAINER],
            max_jobs=kind.max_jobs,
            price_micros=kind.price_micros,
            attempts=self.inbox.held_attempts(self.machine.paused()),
            home=self.machine.home,
            incarnation=self.incarnation,
            seq=self.inbox.next_seq(),
        )
        self._call(
            lambda: self.machine.orchestrator.register(token, message),
            lambda outcome: self._registered(outcome, sent_at),
        )

    def _registered(self, outcome: Any, sent_at: float) -> None:
        if not isinstance(outcome, Registered):
            self._connecting = False
            if isinstance(outcome, Superseded):
                self._superseded()
            elif isinstance(outcome, StaleMessage):
                self._connect()
            else:
                self._later(self.world.chance.uniform(1.0, 10.0), self._connect)
            return
        self.registered = True
        self.timeout_s = outcome.heartbeat_timeout_s
        self._act(self.inbox.heard(outcome))
        self._renew({Turn(item.job_id, item.epoch) for item in outcome.keep}, sent_at)
        if self.alive:
            self._open_stream()

    def _open_stream(self) -> None:
        machine, token = self.machine, self.machine.token
        self._call(
            lambda: machine.orchestrator.open_stream(token, machine.link, self, self.incarnation),
            self._stream_opened,
        )

    def _stream_opened(self, outcome: Any) -> None:
        self._connecting = False
        if isinstance(outcome, Stream) and outcome.listener is self:
            self.stream = outcome
        else:
            self._later(self.world.chance.uniform(0.5, 5.0), self._connect)

    def hear(self, message: StreamMessage) -> None:
        match message:
            case JobSubmit():
                self._be_offered(message)
            case JobCancel():
                self._act(self.inbox.told_to_stop(stop_of(message)))
            case CheckpointNow():
                self._act(self.inbox.told_to_save(message))
            case ValidateNow():
                self._act(self.inbox.told_to_validate(message))
            case Drain():
                self.inbox.draining = True
            case Shutdown():
                self._act(self.inbox.told_to_leave(message.reason))
            case TokenRotated() | Ping():
                pass  # the token reaches the machine by other ways here, and pings have no message
            case _:
                assert_never(message)

    def _be_offered(self, offer: JobSubmit) -> None:
        actions = self.inbox.offered(offer)
        for action in actions:
            if isinstance(action, StopTrainer | Forget) and action.turn.epoch > offer.epoch:
                raise Violation("V2", f"an offer of epoch {offer.epoch} ends {action.turn}")
        self._act(actions)

    def stream_dropped(self, stream: Stream) -> None:
        self._run(lambda: self._lost_stream(stream))

    def _lost_stream(self, stream: Stream) -> None:
        if self.stream is stream:
            self.stream = None
            self._later(self.world.chance.uniform(0.1, 3.0), self._connect)

    def _close_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is None or stream.listener is None:
            return
        stream.listener = None
        if self.machine.link.up and not stream.frozen:
            self.world.after(0.01, lambda: self.machine.orchestrator.peer_closed(stream))

    # Beating

    def _beat(self) -> None:
        self._later(self.machine.orchestrator.policy.heartbeat_interval_s, self._beat)
        if self.stream is not None and self.world.now - self.stream.heard_at > DEAD_PEER_S:
            self.world.counts["agent gives up a silent stream"] += 1
            self._close_stream()
            self._connect()
        self.beat_once()

    def notice(self) -> EndNotice | None:
        """Returns what it has to say of its machine's end."""
        return None

    def beat_once(self) -> None:
        if not self.registered:
            return
        token, sent_at = self.machine.token, self.world.now
        message = Heartbeat(
            status=self.inbox.status,
            attempts=self.inbox.held_attempts(self.machine.paused()),
            incarnation=self.incarnation,
            notice=self.notice(),
        )
        named = set(self.inbox.held)
        self._call(
            lambda: self.machine.orchestrator.heartbeat(token, message),
            lambda outcome: self._beat_answered(outcome, named, sent_at),
        )

    def _beat_answered(self, outcome: Any, named: set[Turn], sent_at: float) -> None:
        if isinstance(outcome, Superseded):
            self._superseded()
        if isinstance(outcome, NobodyListens):
            self._nobody_listens()
        if not isinstance(outcome, HeartbeatAnswer):
            return
        self._act(self.inbox.heard(outcome))
        self._renew(named, sent_at)

    def _renew(self, turns: set[Turn], sent_at: float) -> None:
        """Lets what was named and not stopped go on, counted from when we asked."""
        for turn in sorted(turns):
            holding = self.inbox.held.get(turn)
            shim = self.machine.shims.get(turn)
            if holding is not None and holding.stopping is not EndReason.STALE and shim is not None:
                shim.renew(sent_at + self.lease_s)

    def _nobody_listens(self) -> None:
        """Who is dead gives nothing away, and waits anew once it is back; what it gave away before stays given."""
        if self.machine.link.newest_term:
            return  # another one may lead
        own_socket = None if self.machine.kind.forwarded else Knock.REFUSED
        if not is_dead(own_socket, (), 0.0):
            return
        for turn in sorted(self.inbox.held):
            shim = self.machine.shims.get(turn)
            if shim is not None and self.world.now < shim.lease_until:
                shim.renew(self.world.now + self.lease_s)

    def _superseded(self) -> None:
        """Another agent has this worker's name now: what runs here is not ours to run any more."""
        if not self.alive:
            return
        self.world.counts["agent superseded"] += 1
        for turn in list(self.inbox.held):
            self._act(self.inbox.went_stale(turn))
        self._exit()

    # Doing

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if not self.alive:
                return
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendAccept(turn, attempt, seq):
                self._accept(turn, attempt, seq)
            case StartTrainer(offer):
                self._start_soon(offer)
            case StopTrainer(turn, grace_s, why, save_s):
                self._stop(turn, grace_s, SHIM_OUTCOME[why], save_s)
            case AskForCheckpoint(turn, asked_at):
                self._ask_for_checkpoint(turn, asked_at)
            case AskForValidation(turn, asked_at):
                self._ask_to_validate(turn, asked_at)
            case SendReport(turn, report, final):
                self._report(turn, report, final=final)
            case Forget(turn):
                self._stop(turn, 0.0, "lost")
                self.machine.forget(turn)
            case Leave(reason):
                self._leave(reason, GOODBYE_TRIES)
            case _:
                assert_never(action)

    def _start_soon(self, offer: JobSubmit) -> None:
        slow = self.world.happens(0.02)
        delay_s = self.world.chance.uniform(5.0, 60.0) if slow else self.world.chance.uniform(0.01, 0.5)
        self._later(delay_s, lambda: self._start(offer))

    def _stop(self, turn: Turn, grace_s: float, outcome: str, save_s: float | None = None) -> None:
        shim = self.machine.shims.get(turn)
        if shim is not None:
            shim.stop(grace_s, outcome, save_s)

    def _report(self, turn: Turn, report: StatusReport, *, final: bool) -> None:
        if final:
            self.machine.spool[turn] = report
            self._store_and_deliver(turn, report, self.world.now)
        else:
            self._tell(turn, report)

    def _shim_to_ask(self, turn: Turn) -> SimulatedShim | None:
        """Returns the guardian of a trainer that can be asked for something now."""
        shim = self.machine.shims.get(turn)
        if shim is None or shim.done or shim.is_paused or self.world.happens(TRAINER_NOT_READY):
            self.world.counts["trainer could not be asked"] += 1
            return None
        return shim

    def _ask_for_checkpoint(self, turn: Turn, asked_at: float) -> None:
        shim = self._shim_to_ask(turn)
        if shim is None:
            self.inbox.could_not_ask(turn, asked_at)
        else:
            shim.save_soon()

    def _ask_to_validate(self, turn: Turn, asked_at: float) -> None:
        heard = self._shim_to_ask(turn) is not None
        if heard:
            self.machine.truth.asked_to_validate(self.incarnation, turn, asked_at)
        self._act(self.inbox.asked_to_validate(turn, asked_at, heard=heard))

    def _accept(self, turn: Turn, attempt: int, seq: int) -> None:
        token, sent_at = self.machine.token, self.world.now
        message = Accept(epoch=turn[1], attempt=attempt, incarnation=self.incarnation, seq=seq)
        self._call(
            lambda: self.machine.orchestrator.accept(token, turn[0], message),
            lambda outcome: self._accept_answered(turn, attempt, outcome, sent_at),
        )

    def _accept_answered(self, turn: Turn, attempt: int, outcome: Any, sent_at: float) -> None:
        if isinstance(outcome, Accepted):
            self._leases[turn] = sent_at + self.lease_s
            self._act(self.inbox.accepted(turn, cancelling=outcome.status == "cancelling"))
        elif isinstance(outcome, Superseded):
            self._superseded()
        elif isinstance(outcome, StaleAttempt) or (
            isinstance(outcome, FleetError) and outcome.code == "not_found"
        ):
            self._act(self.inbox.refused(turn))
        else:
            pause_s = 0.05 if isinstance(outcome, StaleMessage) else self.world.chance.uniform(0.5, 3.0)
            self._later(pause_s, lambda: self._accept_again(turn, attempt))

    def _accept_again(self, turn: Turn, attempt: int) -> None:
        holding = self.inbox.held.get(turn)
        if holding is not None and holding.phase is Phase.ACCEPTING:
            self._accept(turn, attempt, self.inbox.next_seq())

    def _start(self, offer: JobSubmit) -> None:
        turn = Turn(offer.job_id, offer.epoch)
        holding = self.inbox.held.get(turn)
        if holding is None or holding.phase is not Phase.STARTING:
            return
        lease_until = self._leases.pop(turn, 0.0)
        if offer.resume is not None and self.world.happens(RESUME_FAILS):
            self.world.counts["checkpoint could not be fetched"] += 1
            self._act(
                self.inbox.ended(turn, AttemptEnding(reason=EndReason.RESUME_FAILED, error="it is damaged"))
            )
            return
        if lease_until <= self.world.now or holding.stopping is not None:
            # Too late to begin: by now the job may have been given away.
            self.world.counts["start came too late"] += 1
            self._act(self.inbox.ended(turn, AttemptEnding(reason=EndReason.FENCED)))
            return
        if self.machine.broken:
            self.world.counts["could not start"] += 1
            ending = AttemptEnding(reason=EndReason.START_FAILED, error="disk full", blame=Blame.WORKER)
            self._act(self.inbox.ended(turn, ending))
            return
        self.machine.orders[turn] = offer
        self.machine.shims[turn] = SimulatedShim(self.machine, offer, lease_until)
        self.world.note(f"{self.machine.kind.name}: {turn} starts")
        self._act(self.inbox.started(turn))

    def trainer_ended(self, turn: Turn, ending: AttemptEnding) -> None:
        self._run(lambda: self._act(self.inbox.ended(turn, ending)))

    def out_of_time(self, turn: Turn) -> None:
        self._run(lambda: self._act(self.inbox.out_of_time(turn)))

    # Reporting

    def _tell(self, turn: Turn, report: StatusReport) -> None:
        token = self.machine.token
        report.incarnation = self.incarnation
        self._call(
            lambda: self.machine.orchestrator.report(token, turn[0], report),
            lambda outcome: self._told(turn, outcome),
        )

    def _told(self, turn: Turn, outcome: Any) -> None:
        if isinstance(outcome, StaleAttempt):
            self._act(self.inbox.went_stale(turn))
        elif isinstance(outcome, ReportAnswer) and outcome.stop:
            self._act(self.inbox.told_to_stop(StopAttempt(job_id=turn[0], epoch=turn[1])))

    def _store_and_deliver(self, turn: Turn, report: StatusReport, began: float) -> None:
        """Completed means stored: until then the job is finishing, and after a while its results are missing."""
        if turn not in self.machine.spool:
            return
        if report.status is ReportStatus.COMPLETED and not report.results:
            on_their_way = any(of == turn for of, _ in self.machine.unstored)
            if self.machine.orchestrator.storage_fails or on_their_way:
                if self.world.now - began < self.machine.orchestrator.policy.results_wait_s:
                    self._tell_finishing(turn)
                    pause_s = self.world.chance.uniform(2.0, 20.0)
                    self._later(pause_s, lambda: self._store_and_deliver(turn, report, began))
                    return
                self.world.counts["results missing"] += 1
                report.results, report.error = Results.MISSING, "the storage fails"
            else:
                self.machine.truth.stores(turn[0])
                report.results = Results.STORED
        self._deliver(turn, report)

    def _tell_finishing(self, turn: Turn) -> None:
        self.world.counts["finishing told"] += 1
        progress = {"phase": FINISHING, "waiting_for": "the storage fails"}
        self._tell(turn, StatusReport(status=ReportStatus.RUNNING, epoch=turn[1], progress=progress))

    def _deliver(self, turn: Turn, report: StatusReport) -> None:
        """Sends it again until it is answered: a final report is never given up."""
        if turn not in self.machine.spool:
            return
        token = self.machine.token
        report.incarnation = self.incarnation
        self._call(
            lambda: self.machine.orchestrator.report(token, turn[0], report),
            lambda outcome: self._delivered(turn, report, outcome),
        )

    def _delivered(self, turn: Turn, report: StatusReport, outcome: Any) -> None:
        if not is_final_answer(outcome):
            self._later(self.world.chance.uniform(0.5, 8.0), lambda: self._deliver(turn, report))
            return
        self.machine.spool.pop(turn, None)
        self._act(self.inbox.delivered(turn))

    # Leaving

    def terminate(self) -> None:
        """Gives everything back at SIGTERM, then goes."""
        self._run(lambda: self._act(self.inbox.terminated("the machine is needed elsewhere")))

    def _leave(self, reason: str, tries: int) -> None:
        token = self.machine.token
        self.leaving = True
        message = Goodbye(reason=reason, incarnation=self.incarnation)

        def answered(outcome: Any) -> None:
            if is_final_answer(outcome) or tries <= 1:
                self._exit()
            else:
                self._later(2.0, lambda: self._leave(reason, tries - 1))

        self._call(lambda: self.machine.orchestrator.goodbye(token, message), answered)

    def _exit(self) -> None:
        if self.machine.agent is not self:
            return
        self.world.note(f"{self.machine.kind.name}: agent leaves")
        self.machine.kill_agent()
        if self.leaving and not self.machine.kind.persistent:
            self.machine.retired = True
        else:
            away_s = (5.0, 15.0) if self.world.hurries else (30.0, 120.0)
            self.world.after(away_s[0] if self.leaving else away_s[1], self.machine.boot)
