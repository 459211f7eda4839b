"""Describes jobs and their attempts. The states that both pass through are in states.py."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.states import AT_WORK as AT_WORK
from simpletuner_fleet.core.jobs.states import ATTEMPT_TRANSITIONS as ATTEMPT_TRANSITIONS
from simpletuner_fleet.core.jobs.states import ENDED as ENDED
from simpletuner_fleet.core.jobs.states import HOLDS_ATTEMPT as HOLDS_ATTEMPT
from simpletuner_fleet.core.jobs.states import JOB_TRANSITIONS as JOB_TRANSITIONS
from simpletuner_fleet.core.jobs.states import TERMINAL as TERMINAL
from simpletuner_fleet.core.jobs.states import WAITING as WAITING
from simpletuner_fleet.core.jobs.states import AttemptInput as AttemptInput
from simpletuner_fleet.core.jobs.states import AttemptState as AttemptState
from simpletuner_fleet.core.jobs.states import JobInput as JobInput
from simpletuner_fleet.core.jobs.states import JobState as JobState
from simpletuner_fleet.core.jobs.states import next_attempt_state as next_attempt_state
from simpletuner_fleet.core.jobs.states import next_state as next_state
from simpletuner_fleet.core.people.visibility import Belonging, Visibility


class Hold(StrEnum):
    """The reason why a waiting job may not be placed: the first two belong to `blocked`, the others to `queued`."""

    APPROVAL = "approval"
    DEPENDENCY = "dependency"
    BACKOFF = "backoff"
    START_TIME = "start_time"
    NONE = ""


REJECTED = "rejected"
"""The reason of a cancelled job whose approval was refused."""


class Target(StrEnum):
    WORKER = "worker"
    LOCAL = "local"
    AUTO = "auto"


OnPartition = Literal["pause", "continue", "stop"]
"""It says what a trainer does while its worker cannot reach the orchestrator for so long that the job may be given away."""
OnTimeLimit = Literal["fail", "requeue"]
"""It says what becomes of a job whose attempt has used up its time: over, or back in line with a checkpoint saved first."""

OnMaxCost = Literal["stop", "finish"]
"""It says what becomes of a training that is about to cost more than its job may: stopped, or left to end by itself."""


class Results(StrEnum):
    """Whether what a job made is safe: its final artifacts, its checkpoints and its log."""

    NONE = "none"
    """Nothing was to be stored, or nothing yet."""
    PENDING = "pending"
    """Its trainer has ended well, and they are still on their way."""
    STORED = "stored"
    MISSING = "missing"
    """Some of it could not be stored for too long: it is on the worker's disk alone."""


FINISHING = "finishing"
"""The phase of a job whose trainer has ended well and whose results are still on their way."""
RESULTS_MISSING = "results_missing"
"""The reason of a completed job whose results are not stored."""


class Requirements(Struct, frozen=True, kw_only=True):
    """What a job requires of its worker.

    Jobs with equal requirements and owner form a class and wait in one line.
    """

    target: Target = Target.AUTO
    gpus: int = 1
    min_vram_gb: float = 0.0
    accelerator: str = ""
    trainer: str = "simpletuner"
    labels: tuple[tuple[str, str], ...] = ()
    owner: str = ""
    datasets: tuple[tuple[str, int], ...] = ()
    """Id and size in bytes of each dataset the job names."""
    secrets: tuple[str, ...] = ()
    """The names of the secrets that each of its attempts is given."""
    team: str = ""
    """The id of the job's team, whose rules say which workers it may use."""
    avoids: tuple[str, ...] = ()
    """Globs of GPU names that it would need an approval for, and does without."""
    max_price_micros: int | None = None
    """It runs on no machine of which an hour is known to cost more, and none such is brought for it."""
    nodes: int = 1
    """Over so many nodes of one worker its GPUs are spread, equally."""
    room_micros: int | None = None
    """So much is left of what the job may cost: it runs where that pays for something; None: whatever it costs."""

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes

    @property
    def at_any_cost(self) -> "Requirements":
        """Returns what is asked for beside money."""
        return self if self.room_micros is None else replace(self, room_micros=None)


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
    """Until when it is held, by whichever of the two holds it longer."""
    start_at: float | None = None
    """The moment before which its owner does not want it to start."""
    retry_on_failure: bool = False
    time_limit_s: float | None = None
    on_time_limit: OnTimeLimit = "fail"
    on_partition: OnPartition = "pause"
    max_cost_micros: int | None = None
    """What all its attempts together may cost, with those of the job that it tries again; None: any amount."""
    on_max_cost: OnMaxCost = "stop"
    spent_micros: int = 0
    """What those of them have cost that are over, as far as that is known."""
    depends_on: tuple[str, ...] = ()
    retry_of: str | None = None
    resume_from: str | None = None
    """JOB:STEP where it was submitted to go on from what another job has stored."""
    name: str | None = None
    epoch: int = 0
    attempts: int = 0
    losses: int = 0
    failures: int = 0
    lost_workers: tuple[str, ...] = ()
    interruptions: int = 0
    """How often its machine was taken away while it ran there."""
    refused_by: tuple[str, ...] = ()
    """Starts of workers that do not grant a path which the job names; see `placement.matching.refusal_of`."""
    attempt_id: str | None = None
    worker_id: str | None = None
    gpus: tuple[str, ...] = ()
    progress: Progress | None = None
    results: Results = Results.NONE
    error: str | None = None
    reason: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    version: int = 0
    tags: tuple[str, ...] = ()
    note: str = ""
    """What somebody wrote on it, for people."""
    team: str = ""
    """The id of the team that it belongs to; empty where it belongs to its owner alone."""
    visibility: Visibility = Visibility.EVERYBODY

    @property
    def belongs(self) -> Belonging:
        return Belonging(self.owner, self.team, self.visibility)

    @property
    def line(self) -> str:
        """Returns the line in which it waits: with its class, or by itself once a worker has refused it.

        So nobody waits behind a job that was refused. Nor does one that has started once wait behind fresh ones: a quota
        of starts concerns them alone.
        """
        if self.refused_by:
            return f"{self.class_id} {self.id}"
        return f"{self.class_id} again" if self.attempts else self.class_id

    @property
    def phase(self) -> str | None:
        """Says what it does while no trainer runs."""
        return None if self.terminal or self.progress is None else self.progress.phase

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def charged(self) -> int:
        return self.losses + self.failures


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
    COST_LIMIT = "cost_limit"
    """Its job was about to cost more than it may."""
    PREEMPTED = "preempted"
    """Its worker was told to leave: a shutdown."""
    INTERRUPTED = "interrupted"
    """Its machine was about to be taken away, or was."""
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
    EndReason.INTERRUPTED,
    EndReason.CUT_OFF,
    EndReason.RESUME_FAILED,
)
"""Those that a worker's report names, and that are kept with the attempt."""


class Stopping(Struct, frozen=True, kw_only=True):
    """A request to a worker to end an attempt. Once made, it can be hurried, never slowed."""

    reason: EndReason
    """CANCELLED, DRAINED or COST_LIMIT."""
    asked_at: float
    grace_s: float
    """The time from the request to end to the kill."""
    save_s: float | None = None
    """The time for which a new checkpoint is waited for before that; with None only as far as the grace allows."""
    had_step: int | None = None
    """The newest step that was safe when it was asked."""


class Saving(Struct, frozen=True, kw_only=True):
    """The request for a checkpoint of a training that goes on. It is fulfilled once a newer one is stored."""

    asked_at: float
    had_step: int | None = None
    """The newest step that was safe when it was asked."""


class Validating(Struct, frozen=True, kw_only=True):
    """The request that a training validates now. Its worker is told of it until it says that the trainer was asked."""

    asked_at: float
    told_at: float | None = None


_RUNNING, _CANCELLING = JobState.RUNNING, JobState.CANCELLING
_PENDING, _ENDED = Results.PENDING, AttemptState.ENDED
"""Compared at every change of a row. Python 3.11 takes longer to find a member in its enum than to compare it."""


def ended_badly(job: Job) -> bool:
    """Tells whether it has ended otherwise than well: then jobs that depend on it can never start."""
    return job.terminal and job.state is not JobState.COMPLETED


def is_finishing(job: Job) -> bool:
    """Tells whether its trainer has ended well, as its worker said, and its results are still on their way."""
    return job.state is _RUNNING and has_left_its_gpus(job)


def has_left_its_gpus(job: Job) -> bool:
    """Tells whether its trainer has ended well, though its attempt lives on: also while it is being cancelled."""
    attempt_lives = job.state is _RUNNING or job.state is _CANCELLING
    return attempt_lives and job.results is _PENDING and job.phase == FINISHING


class Attempt(Struct, frozen=True, kw_only=True):
    """One try at a job on one worker.

    `epoch` is the fencing token: a write that names another one is out of date.
    """

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
    saving: Saving | None = None
    """The last request for a checkpoint, fulfilled or not."""
    validating: Validating | None = None
    """The last request for a validation, told to its trainer or not."""
    reason: str | None = None
    """An EndReason, or empty where the outcome says it all."""
    resume_below: int | None = None
    """A watchdog found the training spoiled from this step on: nobody goes on from there."""
    gpu_kind: str = ""
    """What its GPUs are called, for reports: workers go, and attempts stay."""
    hourly_micros: int | None = None
    """What an hour of its GPUs costs, in millionths, as it was when it was offered; None where nobody had said."""
    rates: tuple[tuple[float, int], ...] = ()
    """From when on another price holds, for each change since the offer (see `money.rates`)."""

    @property
    def saved_something(self) -> bool:
        """Tells whether it left a newer checkpoint than the one it began with."""
        began = -1 if self.resumed_from_step is None else self.resumed_from_step
        return self.checkpoint_step is not None and self.checkpoint_step > began

    @property
    def waits_for_checkpoint(self) -> bool:
        """Tells whether it was asked for a checkpoint, and none newer is stored yet."""
        saving = self.saving
        return saving is not None and self.live and self.checkpoint_step == saving.had_step

    @property
    def waits_for_validation(self) -> bool:
        """Tells whether a validation is asked for, and its trainer is not known to have heard of it."""
        return self.validating is not None and self.live and self.validating.told_at is None

    @property
    def live(self) -> bool:
        return self.state is not _ENDED
