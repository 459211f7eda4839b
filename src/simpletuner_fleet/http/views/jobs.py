"""Defines the JSON form of jobs, their attempts, events and files."""

from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.configs.datasets import prefixed_id
from simpletuner_fleet.core.jobs.failure import advice_for
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.jobs.progress import fields_of
from simpletuner_fleet.core.money.costs import JobCost
from simpletuner_fleet.core.placement.explain import Explanation, FunnelStep, WorkerVerdict
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.http.views.fields import Time, view_of
from simpletuner_fleet.http.views.stopping import (
    StoppingView,
    checkpoint_requested_at,
    stopping_view,
    validation_requested_at,
)
from simpletuner_fleet.ports import JobNote, StoredManifest


class WaitingReason(Struct, kw_only=True):
    """Says briefly why a job waits. `class` says what it takes: wait, change or admin."""

    code: str
    kind: str = field(name="class")
    sentence: str
    params: dict[str, Any]
    fixes: tuple[str, ...] = ()


class ExplainView(Struct, kw_only=True):
    state: str
    as_of: Time
    kind: str = field(name="class")
    code: str
    sentence: str
    params: dict[str, Any]
    funnel: tuple[FunnelStep, ...]
    workers: tuple[WorkerVerdict, ...]
    ahead: int
    fixes: tuple[str, ...]


class RequiresView(Struct, kw_only=True):
    gpus: int
    """Of all nodes together."""
    nodes: int
    min_vram_gb: float
    accelerator: str
    trainer: str
    worker_labels: dict[str, str]
    datasets: dict[str, int] = {}
    """Size in bytes by id."""
    max_price_micros: int | None = None
    """It runs on no machine of which an hour is known to cost more, and none such is brought for it."""


class FailureView(Struct, kw_only=True):
    """Says why the newest try failed, with the line that shows it and what to do."""

    kind: str = field(name="class")
    evidence: str
    advice: str


class JobView(Struct, kw_only=True):
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
    created_at: Time
    started_at: Time
    finished_at: Time
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
    not_before: Time
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


class PublicationView(Struct, kw_only=True):
    job_id: str
    to: str
    state: str
    """due (tried now, or again later), published, or failed (given up)."""
    tries: int
    error: str | None
    """Why the last try failed."""
    url: str | None
    """Where it is, once it is published."""
    created_at: Time
    not_before: Time
    """When the next try is due."""
    finished_at: Time


class CostView(Struct, kw_only=True):
    micros: int
    """In millionths of the currency's unit, until now."""
    currency: str
    at_least: bool
    """The price of some of it is not known: it is more."""
    hourly_micros: int
    """What it adds in an hour, while it runs."""
    live_micros: int
    """So much of it is of the attempt that goes on."""


class WholeJobView(JobView, kw_only=True):
    """Describes one job, with what lists leave out."""

    publication: PublicationView | None = None
    """What becomes of its model after its end; null where nothing is, or not yet, to be published."""
    cost: CostView | None = None
    """What it has cost; null where no price is known of any of its attempts."""


class JobsPage(Struct, kw_only=True):
    jobs: list[JobView]
    next: str | None
    """Give it back as `cursor` for what follows; null at the end."""


class FoundJobsPage(JobsPage, kw_only=True):
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


class AttemptView(Struct, kw_only=True):
    id: str
    job_id: str
    attempt: int
    epoch: int
    worker_id: str
    worker_name: str
    state: str
    outcome: str | None
    gpus: list[str]
    offered_at: Time
    accepted_at: Time
    started_at: Time
    ended_at: Time
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


class AttemptsView(Struct):
    attempts: list[AttemptView]


class JobEventView(Struct, kw_only=True):
    id: int
    at: Time
    event_type: str
    actor: str
    details: dict[str, Any]


class NoteView(Struct, kw_only=True):
    attempt: int
    at: Time
    kind: str
    text: str
    data: dict[str, Any]


class JobEventsView(Struct):
    events: list[JobEventView]
    notes: list[NoteView]
    """What its workers remarked: a watchdog's findings and the like."""


class ManifestView(Struct, kw_only=True):
    """Describes a checkpoint or an artifact, whose files are stored whole."""

    id: str
    kind: str
    name: str
    step: int | None
    attempt: int
    worker_name: str
    created_at: Time
    total_bytes: int
    files: list[FileEntry]
    pinned_by: str = ""
    """The id of who keeps it from being deleted by age or number; empty: nobody."""


class ManifestsView(Struct):
    manifests: list[ManifestView]


class Done(Struct, kw_only=True):
    success: bool = True
    id: str


def reason_view(explanation: Explanation) -> WaitingReason:
    return view_of(WaitingReason, explanation)


def explain_view(explanation: Explanation) -> ExplainView:
    return view_of(ExplainView, explanation)


def job_view(
    job: Job,
    attempt: Attempt | None = None,
    explanation: Explanation | None = None,
    queue_position: int | None = None,
    checkpoint_step: int | None = None,
) -> JobView:
    return view_of(
        JobView,
        job,
        status=job.state,
        progress=fields_of(job.progress),
        target=job.requires.target,
        requires=_requires_view(job),
        attempt=job.attempts,
        not_before=rfc3339(job.start_at),
        worker_name=attempt.worker_name if attempt else None,
        checkpoint_step=checkpoint_step,
        resumed=resumed_text(attempt) if attempt else None,
        resumed_from_step=attempt.resumed_from_step if attempt else None,
        stopping=stopping_view(attempt) if attempt else None,
        checkpoint_requested_at=checkpoint_requested_at(attempt),
        validation_requested_at=validation_requested_at(attempt),
        failure=failure_view(attempt) if attempt else None,
        queue_position=queue_position,
        explain=reason_view(explanation) if explanation else None,
    )


def whole_job_view(
    job: JobView, publication: Publication | None, cost: JobCost | None = None, currency: str = ""
) -> WholeJobView:
    return WholeJobView(
        **asdict(job),
        publication=publication_view(publication) if publication else None,
        cost=view_of(CostView, cost, currency=currency) if cost else None,
    )


def publication_view(publication: Publication) -> PublicationView:
    return view_of(PublicationView, publication, to=publication.publish.to)


def _requires_view(job: Job) -> RequiresView:
    requires = job.requires
    datasets = {prefixed_id(dataset_id): size for dataset_id, size in requires.datasets}
    return view_of(RequiresView, requires, worker_labels=dict(requires.labels), datasets=datasets)


def attempt_view(attempt: Attempt) -> AttemptView:
    return view_of(
        AttemptView,
        attempt,
        attempt=attempt.number,
        resumed=resumed_text(attempt),
        stopping=stopping_view(attempt),
    )


def job_event_view(entry: AuditEntry) -> JobEventView:
    return view_of(JobEventView, entry, id=entry.seq, actor=entry.actor_name)


def note_view(note: JobNote) -> NoteView:
    return view_of(NoteView, note, attempt=note.attempt_number)


def manifest_view(manifest: StoredManifest) -> ManifestView:
    return view_of(ManifestView, manifest, attempt=manifest.attempt_number)


def failure_view(attempt: Attempt) -> FailureView | None:
    if attempt.failure_class is None:
        return None
    return FailureView(
        kind=attempt.failure_class,
        evidence=attempt.failure_evidence or "",
        advice=advice_for(attempt.failure_class),
    )


def resumed_text(attempt: Attempt) -> str | None:
    if attempt.resumed_from_step is None:
        return None
    return (
        f"attempt {attempt.number}, resumed from step {attempt.resumed_from_step:,} on {attempt.worker_name}"
    )
