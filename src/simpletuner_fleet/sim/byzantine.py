"""Simulates a worker that has a valid token and misbehaves.

It sends whatever the protocol has a field for, true and false mixed: other workers' attempts and its own, absurd
numbers, ends that never were, reasons that do not fit. Some of the time it looks like an honest worker, so that it is
offered jobs.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Results
from simpletuner_fleet.core.training.checkpoint import MAX_STEP
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.data import DataHeld
from simpletuner_fleet.protocol.messages import (
    LEAVING,
    Accept,
    AuditHead,
    EndNotice,
    Goodbye,
    GpuInfo,
    GpuReport,
    GpuSample,
    Heartbeat,
    HeldAttempt,
    HeldState,
    JobSubmit,
    Register,
    ReportStatus,
    StatusReport,
    StreamMessage,
)
from simpletuner_fleet.sim.network import Link
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.server.streams import Stream
from simpletuner_fleet.sim.world import World

ITS_OWN = "i_byz"
NUMBERS = (0, 1, -1, 7, 2**31, 2**62, -(2**62))
TEXTS = ("", "pwned", "\0", "\ud800", "a" * 100_000)
PROGRESSES: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"step": 3, "total": 10, "loss": 0.5},
    {"step": "many", "total": -1},
    {"step": -(2**62), "total": 0, "epoch": [], "loss": "nan"},
    {"phase": "fetching"},
    {"phase": None, "step": None},
    {"": {"": {"": 1}}},
)


class Byzantine:
    def __init__(self, world: World, orchestrator: Orchestrator, link: Link, token: str) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.link = link
        self.token = token
        self.alive = True
        """It is false once the faults have ended: then nothing is heard of it again."""
        self._offers: list[JobSubmit] = []
        self._extra = Random(f"fields of {world.seed}")
        """Of its own: a field that is new changes nothing else of a seed."""

    def come_in(self) -> None:
        """Begins as an honest worker does, so that it is offered jobs."""
        message = Register(
            name="stranger",
            gpus=[GpuReport(index=0, uuid="stranger-0", vram_gb=80.0)],
            trainers=["simpletuner"],
            attempts=[],
            incarnation=ITS_OWN,
        )
        self._send(lambda: self.orchestrator.register(self.token, message))
        self.world.after(1.0, lambda: self._send(self._open_stream))

    def misbehave(self) -> None:
        if not self.world.faulty:
            return
        self.world.fault("bad message")
        self._send(self._choose(self._messages()))

    def leave(self) -> None:
        self.alive = False

    def stream_said(self, stream: Stream, message: StreamMessage) -> None:
        if isinstance(message, JobSubmit):
            self.world.counts["hostile worker is offered a job"] += 1
            self._offers.append(message)
            for _ in range(self.world.chance.randint(1, 3)):
                self.world.after(self.world.chance.uniform(0.0, 20.0), lambda: self._lie_about(message))

    def stream_dropped(self, stream: Stream) -> None:
        """Ignores that the stream has ended."""

    def _lie_about(self, offer: JobSubmit) -> None:
        """Reports anything about an offer, which it may have accepted or not."""
        if not self.world.faulty:
            return
        self.world.fault("bad message")
        report = self._report(offer.epoch)
        if self.world.chance.random() < 0.5:
            report.status = ReportStatus.RELEASED
        self._send(lambda: self.orchestrator.report(self.token, offer.job_id, report))
        if self.world.chance.random() < 0.3:
            self._send(lambda: self.orchestrator.accept(self.token, offer.job_id, self._accept(offer.epoch)))

    def _send(self, work: Callable[[], Any]) -> None:
        self.link.call(lambda reply: self.orchestrator.receive(work, reply, self.link), self._answered)

    def _open_stream(self) -> Stream:
        return self.orchestrator.open_stream(self.token, self.link, self, ITS_OWN)

    def _answered(self, outcome: Any) -> None:
        self._offers += getattr(outcome, "jobs", None) or []

    def _messages(self) -> list[Callable[[], Any]]:
        orchestrator, token = self.orchestrator, self.token
        job_id, epoch = self._choose((self._another_workers_turn, self._its_own_turn, self._its_own_turn))()
        report = self._report(epoch)
        return [
            lambda: orchestrator.register(token, self._register(job_id, epoch)),
            self._open_stream,
            lambda: orchestrator.heartbeat(token, self._heartbeat(job_id, epoch)),
            lambda: orchestrator.accept(token, job_id, self._accept(epoch)),
            lambda: orchestrator.report(token, job_id, report),
            lambda: orchestrator.report(token, job_id, report),
            lambda: orchestrator.report_of_shim(self._upload_token(epoch), job_id, report),
            lambda: orchestrator.goodbye(token, self._goodbye(job_id, epoch)),
        ]

    # Messages, every field of each

    def _register(self, job_id: str, epoch: int) -> Register:
        choose = self._choose
        looks_honest = self.world.chance.random() < 0.5
        return Register(
            name=choose(("stranger", "", None)),
            persistent=choose((True, False)),
            gpu_count=choose((None, 0, 1, -1, 2**62)),
            gpu_name=choose((None, *TEXTS)),
            gpu_vram_gb=choose((None, 80.0, -1.0, 1e308)),
            accelerator_type=choose((None, *TEXTS)),
            gpus=self._gpus() if not looks_honest else [GpuReport(index=0, uuid="stranger-0", vram_gb=80.0)],
            trainers=["simpletuner"] if looks_honest else choose((None, [], ["a"] * 1000)),
            labels=choose(({}, {"team": "nlp"}, {"": ""}, {"gpu_type": "a" * 1000})),
            version=choose(TEXTS),
            max_jobs=1 if looks_honest else choose(NUMBERS),
            attempts=choose(([], None, self._held(job_id, epoch))),
            home=choose(("", "h_byz", "h_other")),
            incarnation=self._incarnation(),
            seq=choose(NUMBERS),
            audit_head=self._audit_head(),
            gpu_info=choose((None, GpuInfo(), GpuInfo(name="A100", vram_gb=-1.0, count=-1, accelerator=""))),
            current_job_id=choose((None, job_id)),
            data=self._data(),
            tls=choose(("", "pinned", "pwned")),
            saves_on_request=self._more((None, [], ["simpletuner"], ["a"] * 1000)),
            validates_on_request=self._more((None, [], ["simpletuner"], ["a"] * 1000)),
            price_micros=self._more((None, 0, 1, 2**53)),
            audit_heads=self._audit_heads(),
        )

    def _heartbeat(self, job_id: str, epoch: int) -> Heartbeat:
        choose = self._choose
        sample = GpuSample(
            uuid=choose(("stranger-0", "GPU-unknown")),
            utilization=choose((None, -1.0, 1e308)),
            memory_used_gb=choose((None, -1.0, 1e308)),
            temperature_c=choose((None, -1e9)),
            power_w=choose((None, 1e308)),
            foreign_memory_gb=choose((None, 0.0, 1e308, -1.0)),
            healthy=choose((None, True, False)),
            age_s=self._more((None, 0.0, -1.0, 1e308)),
        )
        return Heartbeat(
            worker_id=choose((None, "w_1", "w_unknown")),
            status=choose((None, "idle", "busy", LEAVING, "pwned")),
            attempts=choose((None, [], self._held(job_id, epoch))),
            gpus=choose(([], [sample], [sample, sample])),
            data=self._data(),
            incarnation=self._incarnation(),
            audit_head=self._audit_head(),
            current_job_id=choose((None, job_id)),
            notice=self._more(
                (None, None, EndNotice(source="aws", in_s=120.0), EndNotice(source="", in_s=0.0))
            ),
        )

    def _accept(self, epoch: int) -> Accept:
        return Accept(
            epoch=self._epoch(epoch),
            attempt=self._attempt(),
            incarnation=self._incarnation(),
            seq=self._choose(NUMBERS),
        )

    def _report(self, epoch: int) -> StatusReport:
        choose = self._choose
        return StatusReport(
            status=choose(list(ReportStatus)),
            attempt=self._attempt(),
            epoch=choose((epoch, epoch, None, epoch - 1)),
            progress=choose(PROGRESSES),
            error=choose((None, *TEXTS)),
            exit_code=choose((None, *NUMBERS)),
            exit_signal=choose((None, *NUMBERS)),
            last_lines=choose((None, *TEXTS)),
            reason=choose((*EndReason, *TEXTS)),
            restart=choose((True, False)),
            resume_below=choose((None, 0, 5, MAX_STEP)),
            incarnation=self._incarnation(),
            results=self._more(("", *Results, "pwned")),
            blame=self._more(("", *Blame, "pwned")),
            validation_asked_at=self._more((None, 0.0, -1.0, 1e308)),
        )

    def _goodbye(self, job_id: str, epoch: int) -> Goodbye:
        return Goodbye(
            reason=self._choose(TEXTS),
            worker_id=self._choose((None, "w_1")),
            released=self._choose(([], self._held(job_id, epoch))),
            incarnation=self._incarnation(),
        )

    # Fields that several messages have

    def _gpus(self) -> list[GpuReport] | None:
        choose = self._choose
        one = GpuReport(
            index=choose(NUMBERS),
            uuid=choose(("", "stranger-0", "a" * 1000)),
            name=choose(TEXTS),
            vram_gb=choose((None, 80.0, -1.0, 1e308)),
            accelerator_type=choose((None, *TEXTS)),
            unusable=choose(("", "unhealthy", "pwned")),
            node=self._more((0, 0, *NUMBERS)),
        )
        reports: list[GpuReport] | None = choose((None, [], [one], [one, one]))
        return reports

    def _held(self, job_id: str, epoch: int) -> list[HeldAttempt]:
        choose = self._choose
        return [
            HeldAttempt(
                job_id=choose((job_id, "j_unknown")),
                epoch=self._epoch(epoch),
                attempt=self._attempt(),
                state=choose(list(HeldState)),
                step=choose((None, *NUMBERS)),
                checkpoint_step=choose((None, *NUMBERS)),
                paused=self._more((False, True)),
            )
            for _ in range(2)
        ]

    def _epoch(self, epoch: int) -> int:
        return int(self._choose((epoch, epoch, 0, -5, epoch - 1, epoch + 1_000, 2**62)))

    def _attempt(self) -> int | str | None:
        chosen: int | str | None = self._choose((None, "a_1", *NUMBERS))
        return chosen

    def _incarnation(self) -> str:
        return str(self._choose(("", ITS_OWN, ITS_OWN, ITS_OWN, "00000001.x", "ffffffff.x", "elsewhere")))

    def _audit_head(self) -> AuditHead | None:
        head = self.orchestrator.store.view.audit_head()
        honest = AuditHead(seq=head.seq, hash=head.hash) if head else None
        return None if self.world.chance.random() < 0.5 else honest

    def _audit_heads(self) -> list[AuditHead]:
        """Returns no false head: that would be proof of forgery, which has a test of its own."""
        head = self.orchestrator.store.view.audit_head()
        honest = [AuditHead(seq=head.seq, hash=head.hash)] if head else []
        return honest * int(self._more((0, 1, 2, 9)))

    def _data(self) -> DataHeld | None:
        held = DataHeld(datasets=["", "f" * 64], bytes=-1, limit_bytes=2**62)
        chosen: DataHeld | None = self._choose((None, held))
        return chosen

    def _upload_token(self, epoch: int) -> str:
        own = [offer.upload_token for offer in self._offers if isinstance(offer.upload_token, str)]
        return str(self._choose((f"ut_{epoch}", *own)))

    def _another_workers_turn(self) -> Turn:
        live = self.orchestrator.store.view.live_attempts()
        if not live:
            return Turn("j_unknown", 1)
        victim = self._choose(live)
        return Turn(victim.job_id, victim.epoch)

    def _its_own_turn(self) -> Turn:
        if not self._offers:
            return self._another_workers_turn()
        offer = self._choose(self._offers[-3:])
        return Turn(offer.job_id, offer.epoch)

    def _choose(self, values: Any) -> Any:
        return self.world.chance.choice(values)

    def _more(self, values: Any) -> Any:
        return self._extra.choice(values)
