"""Jobs and their attempts, and the machine that moves them.

A job waits (`queued`), is offered to one worker (`dispatched`), runs there (`running`) and ends. Whatever goes wrong
with the worker takes it back to `queued` under a new attempt; only an outcome or a person ends it. `blocked` waits for a
person or for other jobs, `cancelling` waits for the trainer to stop. A terminal state has no edge out.
"""

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet.core.errors import IllegalTransition


class JobState(StrEnum):
    BLOCKED = "blocked"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobInput(StrEnum):
    UNBLOCK = "unblock"
    OFFER = "offer"
    ACCEPT = "accept"
    REQUEUE = "requeue"
    READOPT = "readopt"
    COMPLETE = "complete"
    GIVE_UP = "give up"
    CANCEL = "cancel"
    REQUEST_STOP = "request stop"


B, Q, D, R, X = JobState.BLOCKED, JobState.QUEUED, JobState.DISPATCHED, JobState.RUNNING, JobState.CANCELLING
DONE, BAD, OFF = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED

JOB_TRANSITIONS: dict[tuple[JobState, JobInput], JobState] = {
    (B, JobInput.UNBLOCK): Q,
    (B, JobInput.CANCEL): OFF,
    (B, JobInput.GIVE_UP): BAD,
    (Q, JobInput.OFFER): D,
    (Q, JobInput.READOPT): R,
    (Q, JobInput.CANCEL): OFF,
    (D, JobInput.ACCEPT): R,
    (D, JobInput.REQUEUE): Q,
    (D, JobInput.CANCEL): OFF,
    (D, JobInput.REQUEST_STOP): X,
    (R, JobInput.COMPLETE): DONE,
    (R, JobInput.REQUEUE): Q,
    (R, JobInput.GIVE_UP): BAD,
    (R, JobInput.CANCEL): OFF,
    (R, JobInput.REQUEST_STOP): X,
    (X, JobInput.COMPLETE): DONE,
    (X, JobInput.CANCEL): OFF,
}

TERMINAL = frozenset({DONE, BAD, OFF})
HOLDS_ATTEMPT = frozenset({D, R, X})


def next_state(state: JobState, given: JobInput) -> JobState:
    try:
        return JOB_TRANSITIONS[state, given]
    except KeyError:
        raise IllegalTransition(f"A job that is {state} cannot take '{given}'.") from None


class Hold(StrEnum):
    """Why a job that is not placed may not be: on `blocked` the first two, on `queued` the last two."""

    APPROVAL = "approval"
    DEPENDENCY = "dependency"
    BACKOFF = "backoff"
    NONE = ""


class Target(StrEnum):
    WORKER = "worker"
    LOCAL = "local"
    AUTO = "auto"


OnPartition = Literal["pause", "continue", "stop"]
"""What a trainer does while its worker cannot reach the orchestrator for so long that the job may be given away."""
OnTimeLimit = Literal["fail", "requeue"]
"""What becomes of a job whose attempt has used up its time: over, or back in line with a checkpoint saved first."""


class Requirements(Struct, frozen=True, kw_only=True):
    """What a worker must have. Jobs with equal requirements and owner form a class and wait in one line."""

    target: Target = Target.AUTO
    gpus: int = 1
    min_vram_gb: float = 0.0
    accelerator: str = ""
    trainer: str = "simpletuner"
    labels: tuple[tuple[str, str], ...] = ()
    owner: str = ""
    datasets: tuple[tuple[str, int], ...] = ()
    """Id and size in bytes of each dataset the job names."""


class Job(Struct, frozen=True, kw_only=True):
    id: str
    seq: int
    config_name: str
    config_version: int
    requires: Requirements
    class_id: str
    owner: str
    state: JobState
    rank: float
    priority: int
    max_retries: int
    created_at: float
    hold: Hold = Hold.NONE
    not_before: float | None = None
    retry_on_failure: bool = False
    time_limit_s: float | None = None
    on_time_limit: OnTimeLimit = "fail"
    on_partition: OnPartition = "pause"
    depends_on: tuple[str, ...] = ()
    retry_of: str | None = None
    name: str | None = None
    epoch: int = 0
    attempts: int = 0
    losses: int = 0
    failures: int = 0
    lost_workers: tuple[str, ...] = ()
    attempt_id: str | None = None
    worker_id: str | None = None
    gpus: tuple[str, ...] = ()
    progress: dict[str, Any] | None = None
    error: str | None = None
    reason: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    version: int = 0

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def charged(self) -> int:
        return self.losses + self.failures


class AttemptState(StrEnum):
    OFFERED = "offered"
    RUNNING = "running"
    ENDED = "ended"


class Outcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"
    EXPIRED_OFFER = "expired_offer"


class EndReason(StrEnum):
    """Why an attempt ended, or is to end, in one word; `Outcome` says how.

    The one vocabulary of core, protocol, agent and shim. The shim imports nothing of ours: a test holds it to these words.
    """

    EXITED = "exited"
    """Its trainer ended by itself."""
    CANCELLED = "cancelled"
    """Somebody asked for it."""
    DRAINED = "drained"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    """Its worker was told to leave: a shutdown, a spot notice."""
    STALE = "stale"
    """The job has moved on: nobody wants to hear of this attempt any more."""
    STOPPED = "stopped"
    """Its agent ended it; why, the agent knows."""
    WATCHDOG = "watchdog"
    """The training was spoiled or stood still."""
    CUT_OFF = "cut_off"
    """Its worker could not reach the orchestrator for too long. What exactly happened is one of the next four."""
    FENCED = "fenced"
    """Its lease ran out."""
    AGENT_LOST = "agent_lost"
    SHIM_LOST = "shim_lost"
    DATA_UNREACHABLE = "data_unreachable"
    RESUME_FAILED = "resume_failed"
    """The checkpoint to go on from could not be fetched, or is damaged."""
    START_FAILED = "start_failed"
    """Nothing was ever run."""


GIVE_BACK_REASONS = (
    EndReason.DRAINED,
    EndReason.TIME_LIMIT,
    EndReason.PREEMPTED,
    EndReason.CUT_OFF,
    EndReason.RESUME_FAILED,
)
"""Those that a worker's report names, and that are kept with the attempt."""


class Stopping(Struct, frozen=True, kw_only=True):
    """How the worker is asked to end an attempt. A wish made once can be hurried, never slowed."""

    reason: EndReason
    """CANCELLED or DRAINED."""
    asked_at: float
    grace_s: float
    """From the request to end to the kill."""
    save_s: float | None = None
    """How long a new checkpoint is waited for before that; None: only as far as the grace allows."""
    had_step: int | None = None
    """The newest step that was safe when it was asked."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One try. `epoch` is the fencing token: a write that names another one is old news."""

    id: str
    job_id: str
    number: int
    epoch: int
    worker_id: str
    worker_name: str
    state: AttemptState
    offered_at: float
    gpus: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    upload_token_hash: str = ""
    accepted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    error: str | None = None
    last_lines: str | None = None
    incarnation: str = ""
    resumed_from_step: int | None = None
    resumed_manifest: str | None = None
    checkpoint_step: int | None = None
    """The newest step that is safely off the worker."""
    failure_class: str | None = None
    failure_evidence: str | None = None
    stopping: Stopping | None = None
    reason: str | None = None
    """An EndReason, or empty where the outcome says it all."""
    resume_below: int | None = None
    """A watchdog found the training spoiled from this step on: nobody goes on from there."""

    @property
    def saved_something(self) -> bool:
        """Whether it left a newer checkpoint than the one it began with."""
        began = -1 if self.resumed_from_step is None else self.resumed_from_step
        return self.checkpoint_step is not None and self.checkpoint_step > began

    @property
    def live(self) -> bool:
        return self.state is not AttemptState.ENDED
