"""What is answered about jobs.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field


class RequiresView(Struct, frozen=True, kw_only=True):
    gpus: int
    """Of all nodes together."""
    nodes: int
    min_vram_gb: float
    accelerator: str
    trainer: str
    worker_labels: dict[str, str]
    datasets: dict[str, int] = field(default_factory=dict)
    """Size in bytes by id."""
    max_price_micros: int | None = None
    """It runs on no machine of which an hour is known to cost more, and none such is brought for it."""


class StoppingView(Struct, frozen=True, kw_only=True):
    reason: str
    """cancelled, drained or cost_limit."""
    since: str | None
    checkpoint_first: bool
    sentence: str


class FailureView(Struct, frozen=True, kw_only=True):
    """Says why the newest try failed, with the line that shows it and what to do."""

    kind: str = field(name="class")
    evidence: str
    advice: str


class WaitingReason(Struct, frozen=True, kw_only=True):
    """Says briefly why a job waits. `class` says what it takes: wait, change or admin."""

    code: str
    kind: str = field(name="class")
    sentence: str
    params: dict[str, Any]
    fixes: tuple[str, ...] = ()


class JobView(Struct, frozen=True, kw_only=True):
    id: str
    name: str | None
    config_name: str
    config_version: int
    status: str
    target: str
    priority: int
    owner: str
    team: str
    """The id of the team that it belongs to; empty where it belongs to none."""
    visibility: str
    """Who may see it beside its owner: private, team or everybody."""
    requires: RequiresView
    attempt: int
    """Number of the newest try; 0 before the first offer."""
    max_retries: int
    worker_id: str | None
    worker_name: str | None
    gpus: list[str]
    """UUIDs of the GPUs it was given."""
    progress: dict[str, Any] | None
    phase: str | None
    """What it does while no trainer runs: `finishing` once the trainer has ended well and its results are on their way."""
    results: str
    """Whether its artifacts, checkpoints and log are safe: none, pending, stored or missing."""
    error: str | None
    reason: str | None
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    losses: int
    interruptions: int
    """How often its machine was taken away while it ran there; that charges nothing."""
    failures: int
    retry_of: str | None
    resume_from: str | None
    """JOB:STEP where it was submitted to go on from what another job has stored."""
    retry_on_failure: bool
    time_limit_s: float | None
    on_time_limit: str
    not_before: str | None
    """The moment before which it is not to start, as it was asked for."""
    max_cost_micros: int | None
    """All its attempts together may cost so much, in millionths of the currency's unit; null: any amount."""
    on_max_cost: str
    """What becomes of a training that is about to cost more: stop or finish."""
    spent_micros: int
    """What its attempts have cost that are over, with those of the job that it tries again, as far as that is known."""
    depends_on: list[str]
    tags: list[str]
    note: str
    """What somebody wrote on it, for people."""
    checkpoint_step: int | None = None
    """The newest step that is safely off the worker."""
    resumed: str | None = None
    """How its newest try began, if not from the start."""
    resumed_from_step: int | None = None
    stopping: StoppingView | None = None
    """Its trainer was asked to stop, and may still run."""
    checkpoint_requested_at: str | None = None
    """Since when a checkpoint is asked for; null where none is, and once one newer than that is stored."""
    validation_requested_at: str | None = None
    """Since when a validation is asked for; null where none is, and once its trainer was told."""
    failure: FailureView | None = None
    queue_position: int | None = None
    explain: WaitingReason | None = None


class JobsPage(Struct, frozen=True, kw_only=True):
    jobs: list[JobView]
    next: str | None
    """Give it back as `cursor` for what follows; null at the end."""


class FoundJobsPage(JobsPage, frozen=True, kw_only=True):
    previous: str | None
    """Give it back as `cursor` for what comes before; null at the beginning."""
    total: int
    """How many jobs fit, all pages together."""
    at_least: bool = False
    """Of the waiting jobs not all were asked for their reason: others may fit as well."""
    first: int
    """The number of the first job of this page among them, from 1; 0 where there are none."""
    by_state: dict[str, int]
    """How many jobs of each status fit all that was asked for but the status."""


class PublicationView(Struct, frozen=True, kw_only=True):
    job_id: str
    to: str
    state: str
    """due (tried now, or again later), published, or failed (given up)."""
    tries: int
    error: str | None
    """Why the last try failed."""
    url: str | None
    """Where it is, once it is published."""
    created_at: str | None
    not_before: str | None
    """When the next try is due."""
    finished_at: str | None


class CostView(Struct, frozen=True, kw_only=True):
    micros: int
    """In millionths of the currency's unit, until now."""
    currency: str
    at_least: bool
    """The price of some of it is not known: it is more."""
    hourly_micros: int
    """What it adds in an hour, while it runs."""
    live_micros: int
    """So much of it is of the attempt that goes on."""


class WholeJobView(JobView, frozen=True, kw_only=True):
    """Describes one job, with what lists leave out."""

    publication: PublicationView | None = None
    """What becomes of its model after its end; null where nothing is, or not yet, to be published."""
    cost: CostView | None = None
    """What it has cost; null where no price is known of any of its attempts."""


class FunnelStep(Struct, frozen=True, kw_only=True):
    step: str
    left: int
    rule: str


class WorkerVerdict(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    fails: tuple[str, ...]
    gpus_held_through: tuple[str, ...] = ()
    """The ids of other workers of the same machine that use its GPUs."""
    has_labels: tuple[str, ...] = ()
    """What it has where the job asks for other labels."""


class ExplainView(Struct, frozen=True, kw_only=True):
    state: str
    as_of: str | None
    kind: str = field(name="class")
    code: str
    sentence: str
    params: dict[str, Any]
    funnel: tuple[FunnelStep, ...]
    workers: tuple[WorkerVerdict, ...]
    ahead: int
    fixes: tuple[str, ...]


class StartForecastView(Struct, frozen=True, kw_only=True):
    """Forecasts a job's start, if the others end as expected and no other job comes between."""

    at: str | None
    worker: str
    job_id: str
    job: str
    """The one whose end it waits for."""
    ahead: int
    """How many wait before it: with each of them it is less sure."""


class OtherWay(Struct, frozen=True, kw_only=True):
    """Describes a changed request that a fitting worker has room for now; one field differs from the job's own."""

    gpus: int | None = None
    min_vram_gb: float | None = None
    without_label: str | None = None
    target: str | None = None


class BusyWorker(Struct, frozen=True, kw_only=True):
    """Names a worker that would fit, and a job on it whose end is not known.

    The job is '' where it is somebody else's, of which whoever asks may not know."""

    worker: str
    job_id: str
    job: str


class OutlookView(Struct, frozen=True, kw_only=True):
    start: StartForecastView | None
    """Null where nobody can say: no running job that must end before tells how fast it goes."""
    now_with: list[OtherWay]
    """Requests with which it would start now; each differs in one field."""
    busy: list[BusyWorker]
    """Where start is null: workers that would fit, each with a job there of which nobody knows when it ends."""


class AttemptView(Struct, frozen=True, kw_only=True):
    id: str
    job_id: str
    attempt: int
    epoch: int
    worker_id: str
    worker_name: str
    state: str
    outcome: str | None
    gpus: list[str]
    offered_at: str | None
    accepted_at: str | None
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    exit_signal: int | None
    error: str | None
    last_lines: str | None
    resumed_from_step: int | None
    resumed_manifest: str | None
    resumed: str | None
    """The same in words."""
    checkpoint_step: int | None
    """The newest step that is safely off the worker."""
    reason: str | None
    """Why it was given back: drained, time_limit, cost_limit, preempted, interrupted, cut_off, resume_failed."""
    stopping: StoppingView | None
    failure_class: str | None
    failure_evidence: str | None
    resume_below: int | None
    """A watchdog found the training spoiled from this step on: nobody goes on from there."""
    gpu_kind: str
    """What its GPUs are called."""
    hourly_micros: int | None
    """What an hour of its GPUs costs, in millionths, as it was when it was offered; null where nobody had said."""


class AttemptsView(Struct, frozen=True, kw_only=True):
    attempts: list[AttemptView]


class JobEventView(Struct, frozen=True, kw_only=True):
    id: int
    at: str | None
    event_type: str
    actor: str
    details: dict[str, Any]


class NoteView(Struct, frozen=True, kw_only=True):
    attempt: int
    at: str | None
    kind: str
    text: str
    data: dict[str, Any]


class JobEventsView(Struct, frozen=True, kw_only=True):
    events: list[JobEventView]
    notes: list[NoteView]
    """What its workers remarked: a watchdog's findings and the like."""


class ConfigUsed(Struct, frozen=True, kw_only=True):
    """Describes the saved config that a job runs: its name, its version, and who saved it."""

    name: str
    version: int
    saved_by: str
    """How they are called."""
    saved_by_id: str


class Estimate(Struct, frozen=True, kw_only=True):
    currency: str
    sure: str
    runs: int
    """How many completed jobs it is taken from."""
    low_micros: int | None
    likely_micros: int | None
    high_micros: int | None
    """None where nobody can say."""
    hourly_low_micros: int
    hourly_high_micros: int
    """What an hour costs on the cheapest and on the dearest worker that could take it."""
    unpriced_workers: int
    """How many could take it whose price is not known: the estimate does not hold there."""


class SubmitAnswer(Struct, frozen=True, kw_only=True):
    success: bool
    job_id: str | None
    status: str
    queue_position: int | None
    allocated_worker_id: str | None
    allocated_gpus: list[str]
    explain: ExplainView | None
    config: ConfigUsed | None = None
    """The saved config that it runs, in which version and by whom; null where the config came with the request."""
    repeated: bool = False
    """The same request with the same idempotency key had been carried out before."""
    idempotent_hit: bool = False
    """The same as `repeated`."""
    requires_approval: bool = False
    """It waits for somebody's approval; in a dry run, it would."""
    dry_run: bool = False
    would_start_now: bool | UnsetType = UNSET
    matching_workers: int | UnsetType = UNSET
    """In a dry run, how many workers could ever take the job."""
    idle_workers: int | UnsetType = UNSET
    """In a dry run, how many of them have room for it now."""
    estimate: Estimate | None = None
    """In a dry run, what the job would cost and how sure that is; null where no price is known."""
    quotas: list[dict[str, Any]] = field(default_factory=list)
    """Quotas that are nearly or wholly used: which, whose, how much of it, and when some comes back."""


class WorkerCountsView(Struct, frozen=True, kw_only=True):
    total_workers: int
    idle_workers: int
    busy_workers: int
    draining_workers: int
    offline_workers: int


class OwnMachine(Struct, frozen=True, kw_only=True):
    """Describes the orchestrator's own machine, where it takes jobs itself."""

    running_jobs: int
    pending_jobs: int
    """Those in line that can run nowhere else, as far as their reasons were counted."""
    allocated_gpus: list[int]
    """By index: those that a job holds, of this worker or of another one of the machine."""
    available_gpus: list[int]
    """Those that a job could be given now."""
    total_gpus: int
    max_jobs: int


class LocalView(OwnMachine, frozen=True, kw_only=True):
    """Describes the orchestrator's own machine."""

    max_concurrent_jobs: int
    """The same as `max_jobs`."""


class StatsView(Struct, frozen=True, kw_only=True):
    total: int
    queue_depth: int
    """How many wait."""
    running: int
    by_status: dict[str, int]
    """The same as `by_state`; with `pending`, the other name of queued."""
    by_user: dict[str, int]
    """How many jobs of whom wait or run."""
    max_concurrent: int | None
    """The limits, as /api/queue/concurrency has them; null where there is none."""
    user_max_concurrent: int | None
    team_max_concurrent: int | None
    enable_fair_share: bool
    workers: WorkerCountsView
    local: LocalView | None
    """Null where the orchestrator runs no jobs itself."""
    by_state: dict[str, int]
    by_reason: dict[str, int]
    """How many wait for which reason."""
    reasons_counted: int
    reasons_at_least: bool
    """There are so many kinds of waiting jobs that not all were asked: the figures of `by_reason` are the least there is."""
    avg_wait_seconds: float | None
    """Of the hundred jobs of the last day that began last, from submission to the first offer; null where none began."""
