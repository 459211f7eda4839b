"""Defines every message between worker and orchestrator, one type each, in one copy for both ends.

Unknown fields are ignored and new ones have defaults, so that either end may be older than the other. Agents that
predate this protocol send a subset; `Register.legacy` tells them apart.
"""

from enum import StrEnum
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.bounds import Count, FreeText, Moment, Name, Path, Reading, Seconds, Whole
from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.core.jobs.job import EndReason, OnPartition, OnTimeLimit
from simpletuner_fleet.protocol.data import DataHeld, DatasetOrder


class ReportStatus(StrEnum):
    """Names the status of an attempt, as its worker reports it.

    Those that are final are `core.jobs.job.Outcome`s.
    """

    STARTING = "starting"
    RUNNING = "running"
    TRAINING = "training"
    """What older agents call `running`."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    LOST = "lost"
    """Sent by the shim alone: the agent died, the trainer was ended."""


FINAL_REPORTS = frozenset(
    {
        ReportStatus.COMPLETED,
        ReportStatus.FAILED,
        ReportStatus.CANCELLED,
        ReportStatus.RELEASED,
        ReportStatus.LOST,
    }
)


class HeldState(StrEnum):
    """Tells how far the agent is with an attempt that it names at registration."""

    ACCEPTING = "accepting"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    """Ended, its report not delivered yet."""


class GpuReport(Struct, kw_only=True):
    index: Whole
    uuid: FreeText = ""
    name: FreeText = ""
    vram_gb: Reading | None = None
    accelerator_type: FreeText | None = None
    unusable: FreeText = ""
    """Why the worker would leave it alone for now."""
    node: Whole = 0
    """On which of the worker's nodes it is; the agent runs on node 0."""


class GpuInfo(Struct, kw_only=True):
    """Summarises a worker's GPUs as if all were of one kind; older agents send it."""

    name: FreeText | None = None
    vram_gb: Reading | None = None
    count: Whole | None = None
    driver: FreeText | None = None
    accelerator: FreeText | None = None


class HeldAttempt(Struct, kw_only=True):
    job_id: Name
    epoch: Whole
    attempt: Whole | Name | None = None
    state: HeldState = HeldState.RUNNING
    step: Whole | None = None
    checkpoint_step: Whole | None = None
    paused: bool = False
    """Its trainer stands still, because the lease had ended."""


class AuditHead(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Identifies the newest audit entry at some moment. Agents keep these heads, against truncation and forgery."""

    seq: Whole
    hash: Name
    root: Name = ""
    """Of the tree over all entries up to it."""
    at: Moment = 0.0
    signature: Name = ""
    """By the orchestrator's own key, over all of the others; empty where it has none."""


class JoinMachine(Struct, kw_only=True):
    """Asks, as a worker's first request on a machine that a pool has brought, for a token of its own.

    It comes with the worker's one-time token.
    """

    home: Name
    """Random name of its state folder: asked from there again, it is answered the same."""


class MachineJoined(Struct, kw_only=True):
    worker_id: str
    name: str
    token: str


class Register(Struct, kw_only=True):
    name: FreeText | None = None
    persistent: bool = False
    gpu_count: Whole | None = None
    gpu_name: FreeText | None = None
    gpu_vram_gb: Reading | None = None
    accelerator_type: FreeText | None = None
    gpus: list[GpuReport] | None = None
    trainers: list[Name] | None = None
    saves_on_request: list[Name] | None = None
    """Those of its trainers that save a checkpoint when asked and train on; None: this agent does not know how to ask."""
    validates_on_request: list[Name] | None = None
    """Those of its trainers that validate when asked and train on; None: this agent does not know how to ask."""
    labels: dict[FreeText, FreeText] = {}
    version: FreeText = ""
    max_jobs: Whole = 1
    price_micros: Count | None = None
    """What an hour of one of its GPUs costs, in millionths of the fleet's currency; not said where it is left out."""
    attempts: list[HeldAttempt] | None = None
    home: Path = ""
    incarnation: Name = ""
    seq: Count = 0
    audit_head: AuditHead | None = None
    audit_heads: list[AuditHead] = []
    """Up to two: the last that was proven to be part of the log, and the newest that was seen."""
    gpu_info: GpuInfo | None = None
    current_job_id: Name | None = None
    data: DataHeld | None = None
    """None: this agent fetches no datasets."""
    tls: FreeText = ""
    """How it knows this server: pinned, verified, unverified, or none without TLS."""

    @property
    def legacy(self) -> bool:
        return self.trainers is None and self.attempts is None


class TrainerOptions(Struct, kw_only=True):
    """Lists the options that one release of a trainer takes, as reported by a worker that has it."""

    trainer: Name
    options: Options


class JobSubmit(Struct, kw_only=True, omit_defaults=False):
    """Offers an attempt to a worker. Nothing runs before it has been accepted."""

    type: Literal["job_submit"] = "job_submit"
    job_id: str
    attempt: int
    attempt_id: str
    epoch: int
    config_name: str
    config: dict[str, Any]
    trainer: str
    owner: str = ""
    """Whose jobs may use what it leaves on the worker for later ones; empty: nobody's."""
    upload_endpoint: str
    upload_token: str | UnsetType = UNSET
    dataloader: Any = None
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    secrets: dict[str, str] | UnsetType = UNSET
    """Values by variable. For the trainer's environment alone: neither on a disk nor in a log."""
    missing_secrets: list[str] | UnsetType = UNSET
    """Names of secrets the job needs and the orchestrator cannot give."""
    gpus: list[str] = []
    gpu_indices: list[int] = []
    resume: dict[str, Any] | None = None
    time_limit_s: float | None = None
    on_time_limit: OnTimeLimit = "fail"
    checkpoint_wait_s: float = 300.0
    """How long a checkpoint is waited for where one is to be saved before the trainer stops."""
    on_partition: OnPartition = "pause"
    results_wait_s: float = 86_400.0
    """How long an attempt that ended well waits for its results to be stored."""
    num_processes: int = 1
    """Of all nodes together."""
    nodes: int = 1
    """Over so many of the worker's nodes it is to run, with as many GPUs on each; `gpus` says which."""
    watchdog: dict[str, Any] = {}
    """What the job says of it; the agent has its own idea of the rest."""
    datasets: dict[str, DatasetOrder] | UnsetType = UNSET
    """By the name that the config gives them."""


class StopAttempt(Struct, kw_only=True, frozen=True):
    """Orders a worker to end one attempt; an order for an older one cannot stop a newer one."""

    job_id: str
    epoch: int
    attempt: int | None = None
    reason: EndReason = EndReason.CANCELLED
    """CANCELLED, STALE or DRAINED."""
    grace_s: float = 30.0
    save_s: float | None = None
    """First a new checkpoint, waited for so long; None: only as far as the grace allows."""


class CheckpointNow(Struct, kw_only=True):
    """Orders a worker to ask one attempt's trainer for a checkpoint; the trainer trains on.

    It is said again until a newer checkpoint is stored. One with the same `asked_at` is the same request: the
    trainer is asked once.
    """

    type: Literal["checkpoint_now"] = "checkpoint_now"
    job_id: str
    epoch: int
    attempt: int | None = None
    asked_at: float


class ValidateNow(Struct, kw_only=True):
    """Orders a worker to ask one attempt's trainer to validate; the trainer trains on.

    It is said again until a report with the same `validation_asked_at` says that the trainer was asked. One
    with the same `asked_at` is the same request: the trainer is asked once.
    """

    type: Literal["validate_now"] = "validate_now"
    job_id: str
    epoch: int
    attempt: int | None = None
    asked_at: float


class Orders(Struct, kw_only=True):
    """Tells a worker what to do. The answers to a registration and to a heartbeat are orders, too."""

    jobs: list[JobSubmit] = []
    stop: list[StopAttempt] = []
    save: list[CheckpointNow] = []
    validate: list[ValidateNow] = []
    drain: bool = False
    shutdown: bool = False

    @property
    def is_empty(self) -> bool:
        """Returns whether they ask for nothing: then the next heartbeat may be answered alike."""
        return not (self.jobs or self.stop or self.save or self.validate or self.drain or self.shutdown)


class Registered(Orders, kw_only=True):
    worker_id: str
    name: str
    status: str
    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    stream_url: str
    ping_interval_s: float = 15.0
    keep: list[HeldAttempt] = []
    """Attempts the worker named that are still its own."""
    labels: dict[str, str] = {}
    worker_type: str = ""
    """As which it was created; empty where that was left to the worker."""
    audit_head: AuditHead | None = None
    audit_proofs: list[list[str] | None] = []
    """For each of the agent's `audit_heads`, that the log up to it is part of the log up to `audit_head`; None: there
    is no such proof."""
    resume_job: dict[str, Any] | None = None
    abandon_job: str | None = None
    ends: str = ""
    """Of the connection that this call came by, as the orchestrator sees them: `protocol.paths.ends_of`."""
    addresses: list[str] = []
    """URLs at which the orchestrator is, or may be."""


class GpuSample(Struct, kw_only=True):
    uuid: FreeText
    utilization: Reading | None = None
    memory_used_gb: Reading | None = None
    temperature_c: Reading | None = None
    power_w: Reading | None = None
    foreign_memory_gb: Reading | None = None
    """Taken by processes that are no jobs."""
    healthy: bool | None = None
    age_s: Seconds | None = None
    """How long ago it was read, where that is longer than usual."""


LEAVING = "leaving"


class EndNotice(Struct, kw_only=True):
    """Announces that a worker's machine is about to be taken away."""

    source: FreeText
    """Who has said so: aws, gcp, azure, kubernetes, slurm, runpod, vast."""
    in_s: Seconds
    """From now: clocks differ."""


class Heartbeat(Struct, kw_only=True):
    worker_id: Name | None = None
    status: FreeText | None = None
    """idle, busy, or leaving: who goes gives back what it is offered."""
    attempts: list[HeldAttempt] | None = None
    gpus: list[GpuSample] = []
    data: DataHeld | None = None
    """None: as told before."""
    incarnation: Name = ""
    notice: EndNotice | None = None
    audit_head: AuditHead | None = None
    current_job_id: Name | None = None


class HeartbeatAnswer(Orders, kw_only=True):
    status: str
    audit_head: AuditHead | None = None
    heartbeat_interval_s: float = 30.0
    heartbeat_timeout_s: float = 120.0


class Accept(Struct, kw_only=True):
    epoch: Whole
    attempt: Whole | Name | None = None
    incarnation: Name = ""
    seq: Count = 0


class Accepted(Struct, kw_only=True):
    job_id: str
    attempt: int
    epoch: int
    status: Literal["running", "cancelling"] = "running"


class StatusReport(Struct, kw_only=True):
    status: ReportStatus
    attempt: Whole | Name | None = None
    epoch: Whole | None = None
    progress: dict[str, Any] | None = None
    """As it was said; `core.jobs.progress.read_progress` takes what can be believed of it."""
    error: FreeText | None = None
    exit_code: Whole | None = None
    exit_signal: Whole | None = None
    last_lines: FreeText | None = None
    reason: FreeText = ""
    """Why it was given back: one of `core.jobs.job.GIVE_BACK_REASONS`, or a word of a newer agent."""
    results: Name = ""
    """Of an attempt that ended well: a `core.jobs.job.Results`; empty where the worker does not know."""
    blame: Name = ""
    """Whose fault it may be that nothing was ever run, a `core.workers.start_trouble.Blame`; empty where something was."""
    restart: bool = False
    """A watchdog ended it, and the job has asked to go on from its last good checkpoint then."""
    resume_below: Count | None = None
    """From this step on the training was spoiled: its checkpoints are of no use."""
    validation_asked_at: Reading | None = None
    """Its trainer was asked to validate by the request of this `asked_at`."""
    incarnation: Name = ""


class ReportAnswer(Struct, kw_only=True):
    accepted: bool
    job_status: str
    stop: bool = False


class Goodbye(Struct, kw_only=True):
    reason: FreeText = ""
    worker_id: Name | None = None
    released: list[HeldAttempt] = []
    incarnation: Name = ""


TERM_HEADER = "x-fleet-term"
"""Says in which leader's term an answer was given, where there are several orchestrators; it only rises."""
LOG_AGES_HEADER = "x-log-ages"
"""With raw bytes of a log: `offset:milliseconds,…`, how long ago the bytes from each offset on were seen."""


class LogChunk(Struct, kw_only=True):
    """Carries bytes of the trainer's output from `offset` on, base64 in `data`; `gap` counts bytes dropped before it.

    Older agents send it; newer ones send the bytes as they are.
    """

    epoch: Whole
    offset: Whole
    data: str
    attempt: Whole | Name | None = None
    gap: Whole = 0


class LogAnswer(Struct, kw_only=True):
    next_offset: int


class Ping(Struct, kw_only=True):
    type: Literal["ping"] = "ping"
    at: str = ""
    retry_ms: int = 2000


class JobCancel(Struct, kw_only=True):
    type: Literal["job_cancel"] = "job_cancel"
    job_id: str
    epoch: int
    attempt: int | None = None
    reason: str = "cancelled"
    grace_s: float = 30.0
    save_s: float | None = None


class Drain(Struct, kw_only=True):
    type: Literal["drain"] = "drain"
    note: str = ""


class Shutdown(Struct, kw_only=True):
    """Orders a worker to leave when nothing runs.

    It is sent to an ephemeral worker that has done its work and to a superseded agent.
    """

    type: Literal["shutdown"] = "shutdown"
    reason: str = ""


class TokenRotated(Struct, kw_only=True):
    type: Literal["token_rotated"] = "token_rotated"


StreamMessage = JobSubmit | JobCancel | CheckpointNow | ValidateNow | Drain | Shutdown | TokenRotated | Ping
