"""Jobs and their attempts, and the machine that moves a job from one state to the next.

The machine is the table `JOB_TRANSITIONS`: a job in a state takes an input and is in another state. What is not in the
table cannot happen; `next_state` raises, and the database refuses the row a second time. This is how to read it.

A job begins `blocked` or `queued`. It is blocked while it waits for something other than a worker: for the approval of a
person, or for jobs that it depends on. `Hold` says which. Once nothing of that kind is left it is unblocked, and if a job
it depends on ends badly it is given up, since the wait would be in vain.

A `queued` job waits for a worker. It may be held back for a while after a failure (`Hold.BACKOFF`), but it stands in line.
As soon as a worker fits, it is offered to that one worker and is `dispatched`. An offer is an attempt: it has a number, and
an epoch that no other attempt ever has. From here until the end exactly one attempt of the job is alive, and every message
about it must name its epoch.

The worker accepts the offer, and the job is `running`; only then may its trainer start. A worker that does not answer, or
gives the offer back, sends the job back to the queue, and nothing is charged for it.

A `running` job ends in one of three ways. Its trainer finishes, and the job is completed. Its attempt ends otherwise (the
trainer fails, the worker is lost, the worker gives the job back, the time is up) and the job is requeued under a new attempt
to come. Or there is to be no further attempt, because the trainer's failure is not retried or no retries are left, and the
job is given up.

There is one way back that is not an offer. A worker that was thought lost may return with the trainer still alive. If nobody
else has been offered the job meanwhile, the same attempt is readopted: from `queued` straight to `running`, same epoch.

A person may cancel a job at any time. Where no trainer can be running, it is cancelled on the spot: blocked, queued, or
offered to an agent that starts nothing before its acceptance was answered. Otherwise a stop is requested and the job is
`cancelling` until the trainer has ended. That is why no edge leads from `running` to `cancelled`: there is always a trainer
to be asked first. A stop once requested is never followed by another try, so `cancelling` has no edge to `queued` or
`failed`: however the attempt ends, the job is cancelled, unless its trainer finished before it could be stopped.

`completed`, `failed` and `cancelled` are final. No edge leads out of them, and trying an ended job again makes a new job.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.people.visibility import Belonging, Visibility


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


JOB_TRANSITIONS: dict[tuple[JobState, JobInput], JobState] = {
    (JobState.BLOCKED, JobInput.UNBLOCK): JobState.QUEUED,
    (JobState.BLOCKED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.BLOCKED, JobInput.GIVE_UP): JobState.FAILED,
    (JobState.QUEUED, JobInput.OFFER): JobState.DISPATCHED,
    (JobState.QUEUED, JobInput.READOPT): JobState.RUNNING,
    (JobState.QUEUED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.DISPATCHED, JobInput.ACCEPT): JobState.RUNNING,
    (JobState.DISPATCHED, JobInput.REQUEUE): JobState.QUEUED,
    (JobState.DISPATCHED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.DISPATCHED, JobInput.REQUEST_STOP): JobState.CANCELLING,
    (JobState.RUNNING, JobInput.COMPLETE): JobState.COMPLETED,
    (JobState.RUNNING, JobInput.REQUEUE): JobState.QUEUED,
    (JobState.RUNNING, JobInput.GIVE_UP): JobState.FAILED,
    (JobState.RUNNING, JobInput.REQUEST_STOP): JobState.CANCELLING,
    (JobState.CANCELLING, JobInput.COMPLETE): JobState.COMPLETED,
    (JobState.CANCELLING, JobInput.CANCEL): JobState.CANCELLED,
}

TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
HOLDS_ATTEMPT = frozenset({JobState.DISPATCHED, JobState.RUNNING, JobState.CANCELLING})


def next_state(state: JobState, job_input: JobInput) -> JobState:
    try:
        return JOB_TRANSITIONS[state, job_input]
    except KeyError:
        raise IllegalTransition(f"A job that is {state} cannot take '{job_input}'.") from None


class Hold(StrEnum):
    """The reason why a waiting job may not be placed: the first two belong to `blocked`, the last two to `queued`."""

    APPROVAL = "approval"
    DEPENDENCY = "dependency"
    BACKOFF = "backoff"
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
    """The things a worker must have. Jobs with equal requirements and owner form a class and wait in one line."""

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
        """What is asked for beside money."""
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
        """In which it waits: with its class, or by itself once a worker has refused it, so that nobody waits behind it."""
        return f"{self.class_id} {self.id}" if self.refused_by else self.class_id

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
    """The way in which the worker is asked to end an attempt. A request made once can be hurried, never slowed."""

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
    """The wish for a checkpoint of a training that goes on. It is fulfilled once a newer one is stored."""

    asked_at: float
    had_step: int | None = None
    """The newest step that was safe when it was asked."""


class Validating(Struct, frozen=True, kw_only=True):
    """The wish that a training validates now. Its worker is told of it until it says that the trainer was asked."""

    asked_at: float
    told_at: float | None = None


_RUNNING, _CANCELLING = JobState.RUNNING, JobState.CANCELLING
_PENDING, _ENDED = Results.PENDING, AttemptState.ENDED
"""Compared at every change of a row. Python 3.11 takes longer to find a member in its enum than to compare it."""


def is_finishing(job: Job) -> bool:
    """Tells whether its trainer has ended well, as its worker said, and its results are still on their way."""
    return job.state is _RUNNING and has_left_its_gpus(job)


def has_left_its_gpus(job: Job) -> bool:
    """Tells whether its trainer has ended well, though its attempt lives on: also while it is being cancelled."""
    attempt_lives = job.state is _RUNNING or job.state is _CANCELLING
    return attempt_lives and job.results is _PENDING and job.phase == FINISHING


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
    saving: Saving | None = None
    """The last wish for a checkpoint, fulfilled or not."""
    validating: Validating | None = None
    """The last wish for a validation, told to its trainer or not."""
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
