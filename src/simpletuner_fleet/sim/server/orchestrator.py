"""Simulates the orchestrator towards workers and people: one process, or several of which one leads."""

import hashlib
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.jobs.fencing import Claim, Turn
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.revocations import TAKES_AWAY, Revocation, noted_in
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.orchestrator.workers import attendance, registration, report
from simpletuner_fleet.protocol.messages import (
    Accept,
    Accepted,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    Register,
    Registered,
    ReportAnswer,
    StatusReport,
)
from simpletuner_fleet.sim.network import UNREACHABLE, Answered, Link
from simpletuner_fleet.sim.server.process import EPOCH_START, Process, Work
from simpletuner_fleet.sim.server.serving import BASE_URL
from simpletuner_fleet.sim.server.standing import Reached, SimulatedStanding
from simpletuner_fleet.sim.server.store import SimStore
from simpletuner_fleet.sim.server.streams import Listener, Stream
from simpletuner_fleet.sim.world import Violation, World, drive
from simpletuner_fleet.storage import artifacts

EVERY_ENTRY = 1_000_000


class SeededIds:
    """Makes ids and tokens by counting, so that a run gives the same ones again."""

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


class Orchestrator:
    def __init__(self, world: World, policy: Policy, clock_rates: tuple[float, ...] = ()) -> None:
        """Creates one process, or as many as there are clock rates, which share a database."""
        self.world = world
        self.policy = policy
        self.store = SimStore()
        self.store.breaks_off_after = self._calls_before_a_break
        self._breaks = Random(world.seed)
        self.ids = SeededIds()
        self.wall_offset_s = 0.0
        self.storage_fails = False
        self.is_being_restored = False
        self.restores = 0
        self.revocations: list[Revocation] = [Revocation(at=0.0, seq=0)]
        """What the server notes beside its database for the day it is restored."""
        self.believed_no_more: set[str] = set()
        """Hashes of tokens that were taken away, and answered so."""
        self.restarts_in_s: Callable[[], float] = lambda: 5.0
        self.sender: str | None = None
        """The worker whose message is being read."""
        self.last_read: dict[str, float] = {}
        self.last_named: dict[tuple[str, str, int], float] = {}
        self.after_step: Callable[[Process], None] = lambda process: None
        self.on_start: Callable[[int], None] = lambda life: None
        """What else runs in the process for as long as it leads."""
        self.on_revoked: Callable[[], None] = lambda: None
        self._lives = 0
        self._hashes: dict[str, str] = {}
        self.processes = [Process(self, f"orchestrator{n or ''}") for n in range(len(clock_rates) or 1)]
        for process, rate in zip(self.processes, clock_rates, strict=False):
            process.standing = SimulatedStanding(process, rate)
        self.lead = self.working = self.processes[0]
        """Whoever leads, or was the last to; whose code runs."""

    def _calls_before_a_break(self) -> int | None:
        """Draws from a source of its own, so that steps that are run again change nothing else."""
        return self._breaks.randrange(12) if self._breaks.random() < 0.1 else None

    def wall_now(self) -> float:
        return EPOCH_START + self.world.now + self.wall_offset_s

    def next_life(self) -> int:
        self._lives += 1
        return self._lives

    def revoked(self, revocations: list[Revocation]) -> None:
        """Notes the revocations after the commit and before the answer."""
        self.revocations += revocations
        self.on_revoked()

    def catch_up_revocations(self) -> None:
        """Notes, as a server does at its start, what was committed before a crash and not noted any more."""
        entries = self.store.view.audit_range(0, EVERY_ENTRY)
        known = [noted_in(entry) for entry in entries if entry.event_type in TAKES_AWAY]
        if missing := [one for one in known if one not in self.revocations]:
            self.revoked(missing)

    # Whoever leads

    @property
    def fleet(self) -> Fleet | None:
        return self.lead.fleet

    @property
    def index(self) -> FleetIndex:
        return self.lead.index

    @property
    def life(self) -> int:
        return self.lead.life

    @property
    def stalled(self) -> bool:
        return self.lead.stalled

    def streams(self) -> list[Stream]:
        return [stream for process in self.processes for stream in process.serving.streams.values()]

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def crash(self) -> None:
        self.lead.crash()

    def stall(self, for_s: float) -> None:
        self.lead.stall(for_s)

    # Requests

    def receive(self, work: Work, answered: Answered, link: Link | None = None) -> None:
        """Takes a request of somebody who knows all addresses of the orchestrator and tries them in turn."""
        processes = self.processes
        if len(processes) == 1 or link is None:
            self.lead.receive(work, answered)
        else:
            self.receive_at(processes[link.entry % len(processes)], work, answered)

    def receive_at(self, process: Process, work: Work, answered: Answered) -> None:
        """Takes a request at one process, which passes it on if it does not lead."""
        if process.standing is None or not process.up or process.stalled or process.standing.leads:
            process.receive(work, answered)
            return
        leader = process.standing.whom_to_ask()
        if leader is None or leader.process is process:
            answered(UNREACHABLE)
            return
        self.world.counts["request passed on"] += 1
        self._pass_on(process, leader, work, answered)

    def _pass_on(self, process: Process, leader: Reached, work: Work, answered: Answered) -> None:
        chance, life = self.world.chance, process.life
        there = leader.process

        def back(outcome: Any) -> None:
            self.world.after(chance.uniform(0.001, 0.05), lambda: returned(outcome))

        def returned(outcome: Any) -> None:
            asked = process.standing.whom_to_ask() if process.standing else None
            gone = process.life != life or asked is None or asked.term != leader.term
            answered(UNREACHABLE if gone else outcome)

        def arrives() -> None:
            if there.standing is not None and there.up and not there.stalled and not there.standing.leads:
                back(UNREACHABLE)  # what was passed on once is not passed on again
            else:
                there.receive(work, back)

        self.world.after(chance.uniform(0.001, 0.05), arrives)

    def act(self, step: Callable[[Fleet], Coroutine[Any, Any, Any]]) -> Work:
        """Returns a request of a user or an administrator."""
        return lambda: drive(step(self.working.alive()))

    def work(self, work: Work) -> Any:
        """Runs what the leading process does by itself."""
        return self.lead.do(work)

    def peer_closed(self, stream: Stream) -> None:
        """Reports, as the kernel does, that the agent's end of the stream is gone."""
        for process in self.processes:
            if stream.served in process.serving.streams and process.fleet is not None:
                process.receive(partial(process.serving.close, stream), lambda _: None)

    def _alive(self) -> Fleet:
        return self.working.alive()

    def _worker(self, token: str) -> Worker:
        token_hash = self._hashes.get(token)
        if token_hash is None:
            token_hash = self._hashes[token] = tokens.hashed(token)
        worker = self.store.view.worker_by_token_hash(token_hash)
        if worker is None:
            raise InvalidToken
        if token_hash in self.believed_no_more:
            raise Violation("R2", f"a token of {worker.id} that was taken away is believed again")
        self.sender = worker.id
        return worker

    def heard(self, worker_id: str, *turns: Turn) -> None:
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
        answer = drive(
            registration.register(
                fleet,
                worker.id,
                message,
                ip="10.0.0.1",
                base_url=BASE_URL,
                token_hash=worker.token_hash,
            )
        )
        self.heard(worker.id, *(Turn(item.job_id, item.epoch) for item in message.attempts or []))
        return answer

    def heartbeat(self, token: str, message: Heartbeat) -> HeartbeatAnswer:
        worker = self._worker(token)
        answer = drive(
            attendance.heartbeat(
                self._alive(), worker.id, message, base_url=BASE_URL, token_hash=worker.token_hash
            )
        )
        self.heard(worker.id, *(Turn(item.job_id, item.epoch) for item in message.attempts or []))
        return answer

    def accept(self, token: str, job_id: str, message: Accept) -> Accepted:
        worker = self._worker(token)
        answer = drive(report.accept(self._alive(), worker.id, job_id, message))
        self.heard(worker.id, Turn(job_id, message.epoch))
        return answer

    def report(self, token: str, job_id: str, message: StatusReport) -> ReportAnswer:
        worker = self._worker(token)
        answer = drive(report.report(self._alive(), worker, job_id, message))
        self.heard(worker.id, *([Turn(job_id, message.epoch)] if message.epoch else []))
        return answer

    def store_checkpoint(self, token: str, job_id: str, epoch: int, step: int) -> None:
        """Uploads one small checkpoint in two steps, as the real one: its bytes, then its manifest."""
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
        token_hash = worker.token_hash
        drive(attendance.goodbye(self._alive(), worker.id, message, ip="10.0.0.1", token_hash=token_hash))

    def has_jobs(self, token: str) -> bool:
        return drive(attendance.has_jobs(self._alive(), self._worker(token).id))

    def open_stream(self, token: str, link: Link, listener: Listener, incarnation: str) -> Stream:
        worker = self._worker(token)
        stream = self.working.serving.open(token, worker.id, link, listener, incarnation)
        self.heard(worker.id)
        return stream
