"""The orchestrator's process: the real functions over the memory store, with crashes, stalls and streams."""

import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Protocol

from simpletuner_fleet.core.errors import FleetError, IllegalTransition, InvalidToken, StoreUnavailable
from simpletuner_fleet.core.jobs.fencing import Claim, Turn
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.index import FleetIndex
from simpletuner_fleet.engine.orders import addressed
from simpletuner_fleet.engine.streams import StreamHub, WorkerStream
from simpletuner_fleet.orchestrator import attendance, registration, report
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.protocol.messages import (
    Accept,
    Accepted,
    Drain,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    JobCancel,
    JobSubmit,
    Register,
    Registered,
    ReportAnswer,
    Shutdown,
    StatusReport,
    StopAttempt,
    StreamMessage,
)
from simpletuner_fleet.sim.network import DEAD_PEER_S, NOBODY_LISTENS, UNREACHABLE, Answered, Link
from simpletuner_fleet.sim.store import SimCrash, SimStore
from simpletuner_fleet.sim.world import Violation, World, drive
from simpletuner_fleet.storage import artifacts

SWEEP_LOG = logging.getLogger("simpletuner_fleet.orchestrator.sweep")
BASE_URL = "http://orchestrator"
EPOCH_START = 1_700_000_000.0


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


FAILURES = _Failures()


@contextmanager
def sweep_heard() -> Iterator[list[BaseException]]:
    """The health check logs what goes wrong with one worker and goes on; here it is heard instead of printed."""
    FAILURES.errors = []
    SWEEP_LOG.addHandler(FAILURES)
    SWEEP_LOG.propagate = False
    try:
        yield FAILURES.errors
    finally:
        SWEEP_LOG.removeHandler(FAILURES)
        SWEEP_LOG.propagate = True


class SeededIds:
    """Counts its names, so that a run gives the same ones again."""

    def __init__(self) -> None:
        self._made = 0

    def new(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_{self._made}"

    def token(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_secret{self._made}"

    def derived_token(self, prefix: str, of: str) -> str:
        return f"{prefix}_{hashlib.blake2b(of.encode(), digest_size=12).hexdigest()}"


class Listener(Protocol):
    """The agent's end of a stream."""

    alive: bool

    def stream_said(self, stream: "Stream", message: StreamMessage) -> None: ...
    def stream_dropped(self, stream: "Stream") -> None: ...


class Stream:
    """One TCP connection that carries one worker's stream. What cannot be delivered now waits, as TCP has it."""

    def __init__(self, link: Link, listener: Listener, worker_id: str, token_hash: str) -> None:
        self.link = link
        self.listener: Listener | None = listener
        """It is None once the agent's end is closed."""
        self.worker_id = worker_id
        self.token_hash = token_hash
        self.served: WorkerStream | None = None
        self.frozen = False
        """Half open: nothing arrives, and nobody is told."""
        self.heard_at = link.world.now
        self.acked_at = link.world.now
        self.offered_at: dict[Turn, float] = {}
        self.stopped: set[StopAttempt] = set()
        self.drain_sent = False
        self.shutdown_sent = False
        self.resend_planned = False
        self._held_back: list[StreamMessage] = []
        self._free_at = 0.0

    @property
    def flows(self) -> bool:
        return self.link.down and not self.frozen

    def push(self, message: StreamMessage) -> None:
        if not self.flows:
            self._held_back.append(message)
            return
        world = self.link.world
        at = self._free_at = max(self._free_at, world.now + self.link.delay_s())
        world.after(at - world.now, lambda: self._arrive(message))

    def _arrive(self, message: StreamMessage) -> None:
        if self.listener is None:
            return
        if not self.flows:
            self._held_back.append(message)
            return
        self.heard_at = self.link.world.now
        self.listener.stream_said(self, message)

    def thaw(self) -> None:
        """The network is back: what was held back arrives after all."""
        held, self._held_back = self._held_back, []
        for message in held:
            self.push(message)

    def ping(self) -> None:
        """A process that died while its request was on its way acknowledges nothing."""
        if self.flows and self.listener is not None and self.listener.alive:
            self.heard_at = self.link.world.now
            if self.link.up:
                self.acked_at = self.link.world.now

    def reset_agent_end(self) -> None:
        """The agent sees the connection end, unless the network keeps that from it."""
        listener, world = self.listener, self.link.world
        if listener is not None and self.flows:
            world.after(self.link.delay_s(), self._tell_drop)

    def _tell_drop(self) -> None:
        if self.listener is not None and self.flows:
            listener, self.listener = self.listener, None
            listener.stream_dropped(self)


class Orchestrator:
    def __init__(self, world: World, policy: Policy) -> None:
        self.world = world
        self.policy = policy
        self.store = SimStore()
        self.store.breaks_off_after = self._calls_before_a_break
        self._breaks = Random(world.seed)
        self.ids = SeededIds()
        self.wall_offset_s = 0.0
        self.fleet: Fleet | None = None
        self.index = FleetIndex()
        self.storage_fails = False
        self.hub = StreamHub()
        self.streams: dict[WorkerStream, Stream] = {}
        self.started_at = 0.0
        self.stalled = False
        self.restarts_in_s: Callable[[], float] = lambda: 5.0
        self.sender: str | None = None
        """The worker whose message is being read."""
        self.last_read: dict[str, float] = {}
        self.last_named: dict[tuple[str, str, int], float] = {}
        self.after_step: Callable[[], None] = lambda: None
        self.on_start: Callable[[int], None] = lambda life: None
        """What else runs in the process for as long as it lives."""
        self.life = 0
        self._backlog: list[tuple[Callable[[], Any], Answered]] = []
        self._to_look: dict[Stream, None] = {}

    def _calls_before_a_break(self) -> int | None:
        """Has chance of its own: how often steps are run again changes nothing else."""
        return self._breaks.randrange(12) if self._breaks.random() < 0.1 else None

    # Life and death

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.store.crash_at = None
        clock = SteadyClock(
            wall=lambda: EPOCH_START + world.now + self.wall_offset_s, monotonic=lambda: world.now
        )
        self.index, self.hub = FleetIndex(), StreamHub()
        self.fleet = Fleet(self.store, self.index, clock, self.ids, self.hub, self.policy)
        self.started_at = world.now
        try:
            drive(self.fleet.start())
        except StoreUnavailable:
            world.after(1.0, self._try_to_start_again)
            self.fleet = None
            return
        world.note("orchestrator starts")
        self._plan_sweep(self.life)
        self._plan_pings(self.life)
        life, since = self.life, self.fleet.clock.now()
        known = [worker.id for worker in self.store.view.workers()]
        world.after(self.policy.reconnect_grace_s, lambda: self._still_gone(life, known, since))
        self.on_start(life)

    def _try_to_start_again(self) -> None:
        if self.fleet is None:
            self.start()

    def crash(self) -> None:
        if self.fleet is None:
            return
        self.world.note("orchestrator is gone")
        self.fleet = None
        self.stalled = False
        self.store.crash_at = None
        backlog, self._backlog = self._backlog, []
        for _, answered in backlog:
            answered(UNREACHABLE)
        streams, self.streams = self.streams, {}
        self._to_look.clear()
        for stream in streams.values():
            stream.reset_agent_end()
        life = self.life
        self.world.after(self.restarts_in_s(), lambda: self._restart(life))

    def _restart(self, life: int) -> None:
        if self.fleet is None and self.life == life:
            self.start()

    def stall(self, for_s: float) -> None:
        if self.fleet is not None and not self.stalled:
            self.stalled = True
            life = self.life
            self.world.after(for_s, lambda: self._go_on(life))

    def _go_on(self, life: int) -> None:
        if self.fleet is None or self.life != life:
            return
        self.stalled = False
        if self.world.chance.random() < 0.5:
            self._sweep()
        backlog, self._backlog = self._backlog, []
        for work, answered in backlog:
            self.receive(work, answered)

    # Requests

    def receive(self, work: Callable[[], Any], answered: Answered) -> None:
        if self.fleet is None:
            answered(NOBODY_LISTENS)
        elif self.stalled:
            self._backlog.append((work, answered))
        else:
            answered(self._do(work))

    def _do(self, work: Callable[[], Any]) -> Any:
        outcome: Any
        try:
            outcome = work()
        except IllegalTransition as error:
            raise Violation("S13", str(error)) from error
        except FleetError as error:
            outcome = error
        except SimCrash:
            self.crash()
            outcome = UNREACHABLE
        self.sender = None
        self._serve_woken_streams()
        self.after_step()
        return outcome

    def work(self, work: Callable[[], Any]) -> Any:
        """What the process does by itself."""
        return self._do(work)

    def act(self, step: Callable[[Fleet], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
        """A request of a user or an administrator."""
        return lambda: drive(step(self._alive()))

    def _alive(self) -> Fleet:
        assert self.fleet is not None
        return self.fleet

    def _worker(self, token: str) -> Worker:
        worker = self.store.view.worker_by_token_hash(tokens.hashed(token))
        if worker is None:
            raise InvalidToken
        self.sender = worker.id
        return worker

    def _heard(self, worker_id: str, *turns: Turn) -> None:
        self.last_read[worker_id] = self.world.now
        for turn in turns:
            self.last_named[worker_id, *turn] = self.world.now

    def register(self, token: str, message: Register) -> Registered:
        fleet = self._alive()
        try:
            worker = self._worker(token)
        except InvalidToken as error:
            refusal = registration.FailedRegistration(ip="10.0.0.1", why=str(error))
            drive(registration.registration_failed(fleet, refusal))
            raise
        answer = drive(registration.register(fleet, worker.id, message, ip="10.0.0.1", base_url=BASE_URL))
        self._heard(worker.id, *(Turn(item.job_id, item.epoch) for item in message.attempts or []))
        return answer

    def heartbeat(self, token: str, message: Heartbeat) -> HeartbeatAnswer:
        worker = self._worker(token)
        answer = drive(attendance.heartbeat(self._alive(), worker.id, message, base_url=BASE_URL))
        self._heard(worker.id, *(Turn(item.job_id, item.epoch) for item in message.attempts or []))
        return answer

    def accept(self, token: str, job_id: str, message: Accept) -> Accepted:
        worker = self._worker(token)
        answer = drive(report.accept(self._alive(), worker.id, job_id, message))
        self._heard(worker.id, Turn(job_id, message.epoch))
        return answer

    def report(self, token: str, job_id: str, message: StatusReport) -> ReportAnswer:
        worker = self._worker(token)
        answer = drive(report.report(self._alive(), worker, job_id, message))
        self._heard(worker.id, *([Turn(job_id, message.epoch)] if message.epoch else []))
        return answer

    def store_checkpoint(self, token: str, job_id: str, epoch: int, step: int) -> None:
        """The upload of one small checkpoint, in two steps as the real one: its bytes, then its manifest."""
        worker, fleet = self._worker(token), self._alive()
        content = f"{job_id} {epoch} {step}".encode()
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        file = FileEntry(path="weights", size=size, sha256=sha256)
        manifest = Manifest(kind="checkpoint", name=f"checkpoint-{step}", files=(file,), step=step)
        drive(fleet.act(lambda transaction: transaction.tx.own_object(job_id, sha256, size, transaction.now)))
        drive(artifacts.accept_manifest(fleet, Claim(worker.id, Turn(job_id, epoch)), manifest))

    def report_of_shim(self, upload_token: str, job_id: str, message: StatusReport) -> ReportAnswer:
        attempt = self.store.view.attempt_by_upload_token(tokens.hashed(upload_token))
        if attempt is None:
            raise InvalidToken
        self.sender = attempt.worker_id
        return drive(report.report_of_attempt(self._alive(), attempt.id, job_id, message))

    def goodbye(self, token: str, message: Goodbye) -> None:
        worker = self._worker(token)
        drive(attendance.goodbye(self._alive(), worker.id, message, ip="10.0.0.1"))

    def has_jobs(self, token: str) -> bool:
        return drive(attendance.has_jobs(self._alive(), self._worker(token).id))

    # Streams

    def open_stream(self, token: str, link: Link, listener: Listener, incarnation: str) -> Stream:
        worker = self._worker(token)
        stream = Stream(link, listener, worker.id, tokens.hashed(token))
        stream.served = self.hub.open(
            worker.id,
            incarnation,
            lambda: self._to_look.setdefault(stream),
            lambda offers: self._send_offers(stream, offers),
        )
        self.streams[stream.served] = stream
        drive(attendance.stream_opened(self._alive(), worker.id, "10.0.0.1", incarnation))
        self._heard(worker.id)
        self._to_look.setdefault(stream)
        return stream

    def peer_closed(self, stream: Stream) -> None:
        """The kernel tells that the agent's end is gone."""
        self.receive(lambda: self._close(stream), lambda _: None)

    def _serve_woken_streams(self) -> None:
        while self._to_look and self.fleet is not None:
            look, self._to_look = self._to_look, {}
            for stream in sorted(look, key=lambda item: item.worker_id):
                try:
                    self._send_orders(stream)
                except SimCrash:
                    self.crash()
                    return
                except StoreUnavailable:
                    continue

    def _send_orders(self, stream: Stream) -> None:
        served = stream.served
        if served is None or served not in self.streams:
            return
        if served.closing:
            self._close(stream)
            return
        _, orders = drive(attendance.orders(self._alive(), stream.worker_id, BASE_URL))
        self._send_offers(stream, orders.jobs)
        for stop in orders.stop:
            if stop not in stream.stopped:
                stream.stopped.add(stop)
                stream.push(
                    JobCancel(
                        job_id=stop.job_id,
                        epoch=stop.epoch,
                        attempt=stop.attempt,
                        reason=stop.reason,
                        grace_s=stop.grace_s,
                        save_s=stop.save_s,
                    )
                )
        if orders.drain and not stream.drain_sent:
            stream.push(Drain())
        if orders.shutdown and not stream.shutdown_sent:
            stream.push(Shutdown(reason="drained"))
        stream.drain_sent, stream.shutdown_sent = orders.drain, orders.shutdown

    def _send_offers(self, stream: Stream, offers: Sequence[JobSubmit]) -> None:
        now = self.world.now
        for offer in offers:
            turn = Turn(offer.job_id, offer.epoch)
            if now - stream.offered_at.get(turn, -1e9) >= self.policy.offer_resend_s:
                stream.offered_at[turn] = now
                stream.push(addressed(offer, BASE_URL))
        if offers and not stream.resend_planned:
            stream.resend_planned = True
            self.world.after(self.policy.offer_resend_s, lambda: self._resend(stream))

    def _resend(self, stream: Stream) -> None:
        stream.resend_planned = False
        if self.fleet is not None and not self.stalled and stream.served in self.streams:
            self._to_look.setdefault(stream)
            self._serve_woken_streams()

    def _close(self, stream: Stream) -> None:
        if stream.served is None or self.streams.pop(stream.served, None) is None:
            return
        stream.reset_agent_end()
        if self.hub.closed(stream.served):
            drive(attendance.stream_closed(self._alive(), stream.worker_id))
            life, since = self.life, self._alive().clock.now()
            self.world.after(
                self.policy.reconnect_grace_s, lambda: self._still_gone(life, [stream.worker_id], since)
            )

    def _still_gone(self, life: int, worker_ids: list[str], since: float) -> None:
        if self.fleet is None or life != self.life or self.stalled:
            return
        gone = [one for one in worker_ids if not self.hub.streaming(one)]
        try:
            drive(attendance.stream_still_gone(self.fleet, gone, since))
        except StoreUnavailable:
            self.world.note("who is gone could not be noted")
        except SimCrash:
            self.crash()
            return
        self._serve_woken_streams()
        self.after_step()

    # Timers

    def _plan_sweep(self, life: int) -> None:
        due = self.store.view.next_backoff_at()
        pause_s = self.policy.sweep_interval_s
        if due is not None and self.fleet is not None:
            pause_s = min(pause_s, max(0.01, due - self.fleet.clock.now()))
        self.world.after(pause_s, lambda: self._sweep_again(life))

    def _sweep_again(self, life: int) -> None:
        if self.fleet is None or self.life != life:
            return
        if not self.stalled:
            self._sweep()
        if self.fleet is not None:
            self._plan_sweep(life)

    def _sweep(self) -> None:
        with sweep_heard() as failures:
            self._do(lambda: drive(sweep_once(self._alive())))
        for error in failures:
            if not isinstance(error, StoreUnavailable):
                raise Violation("S13", f"the health check failed: {error!r}") from error

    def _plan_pings(self, life: int) -> None:
        self.world.after(self.policy.ping_interval_s, lambda: self._ping_all(life))

    def _ping_all(self, life: int) -> None:
        if self.life != life or self.fleet is None:
            return
        if not self.stalled:
            for stream in list(self.streams.values()):
                self._do(partial(self._ping, stream))
        self._plan_pings(life)

    def _ping(self, stream: Stream) -> None:
        if self.fleet is None:
            return
        stream.ping()
        if self.world.now - stream.acked_at >= DEAD_PEER_S:
            self._close(stream)
            return
        worker = self.store.view.worker(stream.worker_id)
        if worker is not None and worker.legacy:
            drive(attendance.stream_alive(self._alive(), worker.id))
            self.last_read[worker.id] = self.world.now
