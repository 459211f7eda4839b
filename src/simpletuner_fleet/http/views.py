"""How things look on the wire: one form per noun, whatever the store calls its columns."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.checkpoint import FileEntry
from simpletuner_fleet.core.datasets import told
from simpletuner_fleet.core.explain import Explanation, FunnelStep, WorkerVerdict
from simpletuner_fleet.core.failure import advice_for
from simpletuner_fleet.core.job import Attempt, Job
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.progress import fields_of
from simpletuner_fleet.core.worker import Worker
from simpletuner_fleet.http.routes import rfc3339
from simpletuner_fleet.http.stopping_view import StoppingView, stopping_view
from simpletuner_fleet.ports import ApiToken, ConfigVersion, JobNote, StoredManifest

DAY_S = 86_400.0


class Reason(Struct, kw_only=True):
    """Why a job waits, in short. `class` says what it takes: wait, change or admin."""

    code: str
    kind: str = field(name="class")
    sentence: str
    params: dict[str, Any]
    fixes: tuple[str, ...] = ()


class ExplainView(Struct, kw_only=True):
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


class RequiresView(Struct, kw_only=True):
    gpus: int
    min_vram_gb: float
    accelerator: str
    trainer: str
    worker_labels: dict[str, str]
    datasets: dict[str, int] = {}
    """Size in bytes by id."""


class FailureView(Struct, kw_only=True):
    """Why the newest try failed, the line that shows it, and what to do."""

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
    requires: RequiresView
    attempt: int
    """Number of the newest try; 0 before the first offer."""
    max_retries: int
    worker_id: str | None
    worker_name: str | None
    gpus: list[str]
    """UUIDs of the GPUs it was given."""
    progress: dict[str, Any] | None
    error: str | None
    reason: str | None
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    losses: int
    failures: int
    retry_of: str | None
    retry_on_failure: bool
    time_limit_s: float | None
    on_time_limit: str
    depends_on: list[str]
    checkpoint_step: int | None = None
    """The newest step that is safely off the worker."""
    resumed: str | None = None
    """How its newest try began, if not from the start."""
    resumed_from_step: int | None = None
    stopping: StoppingView | None = None
    """Its trainer was asked to stop, and may still run."""
    failure: FailureView | None = None
    queue_position: int | None = None
    explain: Reason | None = None


class JobsPage(Struct, kw_only=True):
    jobs: list[JobView]
    next: str | None
    """Give it back as `cursor` for what follows; null at the end."""


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
    """Why it was given back: drained, time_limit, preempted, cut_off, resume_failed."""
    stopping: StoppingView | None
    failure_class: str | None
    failure_evidence: str | None
    resume_below: int | None
    """A watchdog found the training spoiled from this step on: nobody goes on from there."""


class AttemptsView(Struct):
    attempts: list[AttemptView]


class GpuView(Struct, kw_only=True):
    index: int
    uuid: str
    name: str
    vram_gb: float
    accelerator_type: str
    unusable: str | None
    """Why it is handed to nobody for now."""


class HeldView(Struct, kw_only=True):
    job_id: str
    attempt: int
    epoch: int
    state: str
    gpus: list[str]


class WorkerView(Struct, kw_only=True):
    id: str
    name: str
    status: str
    worker_type: str
    gpu_count: int
    gpu_name: str | None
    gpu_vram_gb: float | None
    accelerator_type: str | None
    gpus: list[GpuView]
    labels: dict[str, str]
    """Set by the administrator."""
    reported_labels: dict[str, str]
    effective_labels: dict[str, str]
    last_heartbeat: str | None
    connection: str
    admin_state: str
    drain_note: str
    drain_deadline: str | None
    """When what still runs there is stopped; null: never."""
    drain_checkpoint_first: bool | None
    attempts: list[HeldView]
    trainers: list[str]
    datasets: list[str]
    """In its cache, the last used first."""
    data_bytes: int
    data_limit_bytes: int
    """How much its cache may hold; 0 where it has none."""
    max_jobs: int
    local: bool
    legacy: bool
    version: str
    created_at: str | None
    registered_at: str | None
    offline_since: str | None
    token_created_at: str | None
    token_age_days: float
    token_warning: str | None


class WorkersView(Struct):
    workers: list[WorkerView]


class TokenView(Struct, kw_only=True):
    id: str
    name: str
    permissions: list[str]
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    """To the hour; null: never."""
    token: str | UnsetType = UNSET
    """Only in the answer that made it."""


class TokensView(Struct):
    tokens: list[TokenView]


class ConfigView(Struct, kw_only=True):
    name: str
    version: int
    created_at: str | None
    created_by: str
    changed: bool | UnsetType = UNSET


class ConfigsView(Struct):
    configs: list[ConfigView]


class VersionsView(Struct):
    versions: list[ConfigView]


class AuditView(Struct, kw_only=True):
    id: int
    at: str | None
    event_type: str
    actor: str
    actor_id: str
    ip: str
    target_type: str
    target_id: str
    details: dict[str, Any]
    hash: str


class JobEventView(Struct, kw_only=True):
    id: int
    at: str | None
    event_type: str
    actor: str
    details: dict[str, Any]


class NoteView(Struct, kw_only=True):
    attempt: int
    at: str | None
    kind: str
    text: str
    data: dict[str, Any]


class JobEventsView(Struct):
    events: list[JobEventView]
    notes: list[NoteView]
    """What its workers remarked: a watchdog's findings and the like."""


class ManifestView(Struct, kw_only=True):
    """A checkpoint or an artifact: files that are stored whole."""

    id: str
    kind: str
    name: str
    step: int | None
    attempt: int
    worker_name: str
    created_at: str | None
    total_bytes: int
    files: list[FileEntry]


class ManifestsView(Struct):
    manifests: list[ManifestView]


class Done(Struct, kw_only=True):
    success: bool = True
    id: str


def reason_view(told: Explanation) -> Reason:
    return Reason(
        code=told.code, kind=told.kind, sentence=told.sentence, params=told.params, fixes=told.fixes
    )


def explain_view(told: Explanation) -> ExplainView:
    return ExplainView(
        state=told.state,
        as_of=rfc3339(told.as_of),
        kind=told.kind,
        code=told.code,
        sentence=told.sentence,
        params=told.params,
        funnel=told.funnel,
        workers=told.workers,
        ahead=told.ahead,
        fixes=told.fixes,
    )


def job_view(
    job: Job,
    attempt: Attempt | None = None,
    explanation: Explanation | None = None,
    queue_position: int | None = None,
    checkpoint_step: int | None = None,
) -> JobView:
    requires = job.requires
    return JobView(
        id=job.id,
        name=job.name,
        config_name=job.config_name,
        config_version=job.config_version,
        status=job.state,
        target=requires.target,
        priority=job.priority,
        owner=job.owner,
        requires=RequiresView(
            gpus=requires.gpus,
            min_vram_gb=requires.min_vram_gb,
            accelerator=requires.accelerator,
            trainer=requires.trainer,
            worker_labels=dict(requires.labels),
            datasets={told(dataset_id): size for dataset_id, size in requires.datasets},
        ),
        attempt=job.attempts,
        max_retries=job.max_retries,
        worker_id=job.worker_id,
        worker_name=attempt.worker_name if attempt else None,
        gpus=list(job.gpus),
        progress=fields_of(job.progress),
        error=job.error,
        reason=job.reason,
        created_at=rfc3339(job.created_at),
        started_at=rfc3339(job.started_at),
        finished_at=rfc3339(job.finished_at),
        losses=job.losses,
        failures=job.failures,
        retry_of=job.retry_of,
        retry_on_failure=job.retry_on_failure,
        time_limit_s=job.time_limit_s,
        on_time_limit=job.on_time_limit,
        depends_on=list(job.depends_on),
        checkpoint_step=checkpoint_step,
        resumed=resumed_text(attempt) if attempt else None,
        resumed_from_step=attempt.resumed_from_step if attempt else None,
        stopping=stopping_view(attempt) if attempt else None,
        failure=failure_view(attempt) if attempt else None,
        queue_position=queue_position,
        explain=reason_view(explanation) if explanation else None,
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        job_id=attempt.job_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        worker_id=attempt.worker_id,
        worker_name=attempt.worker_name,
        state=attempt.state,
        outcome=attempt.outcome,
        gpus=list(attempt.gpus),
        offered_at=rfc3339(attempt.offered_at),
        accepted_at=rfc3339(attempt.accepted_at),
        started_at=rfc3339(attempt.started_at),
        ended_at=rfc3339(attempt.ended_at),
        exit_code=attempt.exit_code,
        exit_signal=attempt.exit_signal,
        error=attempt.error,
        last_lines=attempt.last_lines,
        resumed_from_step=attempt.resumed_from_step,
        resumed_manifest=attempt.resumed_manifest,
        resumed=resumed_text(attempt),
        checkpoint_step=attempt.checkpoint_step,
        reason=attempt.reason,
        stopping=stopping_view(attempt),
        failure_class=attempt.failure_class,
        failure_evidence=attempt.failure_evidence,
        resume_below=attempt.resume_below,
    )


def worker_view(worker: Worker, held: list[Attempt], policy: Policy, now: float) -> WorkerView:
    age_s = max(0.0, now - worker.token_created_at)
    return WorkerView(
        id=worker.id,
        name=worker.name,
        status=worker.status(bool(held)),
        worker_type=worker.worker_type,
        gpu_count=worker.gpu_count,
        gpu_name=worker.gpu_name,
        gpu_vram_gb=worker.gpu_vram_gb,
        accelerator_type=worker.accelerator_type,
        gpus=[
            GpuView(
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                vram_gb=gpu.vram_gb,
                accelerator_type=gpu.accelerator_type,
                unusable=gpu.unusable or None,
            )
            for gpu in worker.gpus
        ],
        labels=worker.labels,
        reported_labels=worker.reported_labels,
        effective_labels=worker.effective_labels,
        last_heartbeat=rfc3339(worker.last_heartbeat),
        connection=worker.connection,
        admin_state=worker.admin,
        drain_note=worker.drain_note,
        drain_deadline=rfc3339(worker.drain_plan.deadline) if worker.drain_plan else None,
        drain_checkpoint_first=worker.drain_plan.checkpoint_first if worker.drain_plan else None,
        attempts=[
            HeldView(
                job_id=attempt.job_id,
                attempt=attempt.number,
                epoch=attempt.epoch,
                state=attempt.state,
                gpus=list(attempt.gpus),
            )
            for attempt in held
        ],
        trainers=list(worker.trainers),
        datasets=[told(dataset_id) for dataset_id in worker.datasets],
        data_bytes=worker.data_bytes,
        data_limit_bytes=worker.data_limit_bytes,
        max_jobs=worker.max_jobs,
        local=worker.local,
        legacy=worker.legacy,
        version=worker.agent_version,
        created_at=rfc3339(worker.created_at),
        registered_at=rfc3339(worker.registered_at),
        offline_since=rfc3339(worker.offline_since),
        token_created_at=rfc3339(worker.token_created_at),
        token_age_days=round(age_s / DAY_S, 1),
        token_warning=_token_warning(worker, age_s, policy),
    )


def _token_warning(worker: Worker, age_s: float, policy: Policy) -> str | None:
    if age_s < policy.token_warn_age_s:
        return None
    return f"the token is {age_s / DAY_S:.0f} days old: rotate it with 'simpletuner workers rotate-token {worker.name}'"


def token_view(token: ApiToken, secret: str | UnsetType = UNSET) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        permissions=list(token.permissions),
        created_at=rfc3339(token.created_at),
        expires_at=rfc3339(token.expires_at),
        revoked_at=rfc3339(token.revoked_at),
        last_used_at=rfc3339(token.last_used_at),
        token=secret,
    )


def config_view(config: ConfigVersion, changed: bool | UnsetType = UNSET) -> ConfigView:
    return ConfigView(
        name=config.name,
        version=config.version,
        created_at=rfc3339(config.created_at),
        created_by=config.created_by,
        changed=changed,
    )


def audit_view(entry: AuditEntry) -> AuditView:
    return AuditView(
        id=entry.seq,
        at=rfc3339(entry.at),
        event_type=entry.event_type,
        actor=entry.actor_name,
        actor_id=entry.actor_id,
        ip=entry.ip,
        target_type=entry.target_type,
        target_id=entry.target_id,
        details=entry.details,
        hash=entry.hash,
    )


def job_event_view(entry: AuditEntry) -> JobEventView:
    return JobEventView(
        id=entry.seq,
        at=rfc3339(entry.at),
        event_type=entry.event_type,
        actor=entry.actor_name,
        details=entry.details,
    )


def note_view(note: JobNote) -> NoteView:
    return NoteView(
        attempt=note.attempt_number, at=rfc3339(note.at), kind=note.kind, text=note.text, data=note.data
    )


def manifest_view(manifest: StoredManifest) -> ManifestView:
    return ManifestView(
        id=manifest.id,
        kind=manifest.kind,
        name=manifest.name,
        step=manifest.step,
        attempt=manifest.attempt_number,
        worker_name=manifest.worker_name,
        created_at=rfc3339(manifest.created_at),
        total_bytes=manifest.total_bytes,
        files=list(manifest.files),
    )


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
