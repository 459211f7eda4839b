"""A real orchestrator on virtual time, spoken to directly: no network, no agent, no chance."""

from typing import Any

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest, Submitter
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.orchestrator.workers.administer import CreateWorker
from simpletuner_fleet.protocol.messages import (
    Accept,
    GpuInfo,
    GpuReport,
    Heartbeat,
    HeartbeatAnswer,
    HeldAttempt,
    Register,
    Registered,
    StreamMessage,
)
from simpletuner_fleet.sim.network import Link, Said, Weather
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.server.streams import Stream
from simpletuner_fleet.sim.world import World, drive

USER = Submitter(actor=ADMIN, may_approve=True, may_raise_priority=True)


class Bench:
    def __init__(self, policy: Policy | None = None, clock_rates: tuple[float, ...] = ()) -> None:
        """With clock rates, as many orchestrators on one database, of which one leads already."""
        self.world = World(0)
        self.world.faulty = False
        self.orchestrator = Orchestrator(self.world, policy or Policy(), clock_rates)
        self.orchestrator.start()
        if clock_rates:
            self.let(0.5)

    def let(self, seconds: float) -> None:
        """Time goes by; whatever the orchestrator does by itself happens."""
        until = self.world.now + seconds
        while self.world.next_at <= until:
            self.world.step()
        self.world.now = until

    def crash(self, restarts_in_s: float = 1.0) -> None:
        self.orchestrator.restarts_in_s = lambda: restarts_in_s
        self.orchestrator.crash()
        self.let(restarts_in_s)

    def worker(self, name: str = "m", **kind: Any) -> "Station":
        fleet = self.orchestrator.fleet
        assert fleet is not None
        worker, token = drive(administer.create_worker(fleet, CreateWorker(name=name), ADMIN))
        return Station(self, worker.id, token, name, **kind)

    def submit(self, **fields: Any) -> str:
        fleet = self.orchestrator.fleet
        assert fleet is not None
        request = SubmitRequest(**{"config": {"run_s": 10}, "gpus": 1, **fields})
        submitted: submit.Submitted = self.do(
            lambda: drive(submit.submit(fleet, USER, request, local_enabled=False))
        )
        return submitted.job.id

    def do(self, work: Any) -> Any:
        """As a request would be served, effects and all; an error is raised here."""
        answers: list[Any] = []
        self.orchestrator.receive(work, answers.append)
        outcome = answers[0].outcome if isinstance(answers[0], Said) else answers[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def job(self, job_id: str) -> Job:
        job = self.orchestrator.store.view.job(job_id)
        assert job is not None
        return job

    def attempts(self, job_id: str) -> list[Attempt]:
        return self.orchestrator.store.view.attempts_of_job(job_id)


class Station:
    """A worker as the orchestrator sees it."""

    def __init__(
        self, bench: Bench, worker_id: str, token: str, name: str, *, older: bool = False, max_jobs: int = 1
    ) -> None:
        self.bench = bench
        self.id = worker_id
        self.token = token
        self.name = name
        self.older = older
        self.max_jobs = max_jobs
        self.incarnation = "" if older else f"i_{name}"
        self.home = "" if older else f"h_{name}"
        self.alive = True
        self.machine = name
        """Whose GPUs it reports."""
        self.heard: list[StreamMessage] = []
        self._seq = 0

    def stream_said(self, stream: Stream, message: StreamMessage) -> None:
        self.heard.append(message)

    def stream_dropped(self, stream: Stream) -> None:
        """Nobody is there to mind."""

    def registration(self, held: list[HeldAttempt], current_job_id: str | None = None) -> Register:
        if self.older:
            info = GpuInfo(name="A100", vram_gb=80, count=1, accelerator="cuda")
            return Register(name=self.name, gpu_info=info, persistent=True, current_job_id=current_job_id)
        self._seq += 1
        return Register(
            name=self.name,
            persistent=True,
            gpus=[GpuReport(index=n, uuid=f"{self.machine}-{n}", vram_gb=80.0) for n in range(2)],
            trainers=["simpletuner"],
            max_jobs=self.max_jobs,
            attempts=held,
            home=self.home,
            incarnation=self.incarnation,
            seq=self._seq,
        )

    def register(self, *held: HeldAttempt, current_job_id: str | None = None) -> Registered:
        message = self.registration(list(held), current_job_id)
        answer: Registered = self.bench.do(lambda: self.bench.orchestrator.register(self.token, message))
        return answer

    def open_stream(self) -> Stream:
        link = Link(self.bench.world, self.name, Weather())
        opened: Stream = self.bench.do(
            lambda: self.bench.orchestrator.open_stream(self.token, link, self, self.incarnation)
        )
        return opened

    def comes(self) -> "Station":
        self.register()
        self.open_stream()
        return self

    def accept(self, job_id: str) -> None:
        self._seq += 1
        epoch = self.bench.job(job_id).epoch
        message = Accept(epoch=epoch, incarnation=self.incarnation, seq=self._seq)
        self.bench.do(lambda: self.bench.orchestrator.accept(self.token, job_id, message))

    def beat(self, *held: HeldAttempt, **fields: Any) -> HeartbeatAnswer:
        message = Heartbeat(
            attempts=None if self.older else list(held), incarnation=self.incarnation, **fields
        )
        answer: HeartbeatAnswer = self.bench.do(
            lambda: self.bench.orchestrator.heartbeat(self.token, message)
        )
        return answer

    @property
    def row(self) -> Worker:
        worker = self.bench.orchestrator.store.view.worker(self.id)
        assert worker is not None
        return worker
