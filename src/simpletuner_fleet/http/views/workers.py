"""Defines the JSON form of workers and their GPUs."""

from collections.abc import Mapping

from msgspec import Struct

from simpletuner_fleet.core.configs.datasets import prefixed_id
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Gpu, Worker
from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.http.views.fields import Time, view_of

DAY_S = 86_400.0


class GpuView(Struct, kw_only=True):
    index: int
    uuid: str
    name: str
    vram_gb: float
    accelerator_type: str
    unusable: str | None
    """Why it is handed to nobody for now."""
    node: int = 0
    """On which of the worker's nodes it is."""
    held_by: "GpuHolderView | None" = None
    """Who uses it, on this worker or on another one of the same machine."""


class GpuHolderView(Struct, kw_only=True):
    job_id: str
    worker_id: str
    worker_name: str


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
    nodes: int
    """How many machines work as this one worker."""
    gpu_name: str | None
    gpu_vram_gb: float | None
    accelerator_type: str | None
    gpus: list[GpuView]
    labels: dict[str, str]
    """Set by the administrator."""
    reported_labels: dict[str, str]
    effective_labels: dict[str, str]
    last_heartbeat: Time
    connection: str
    admin_state: str
    drain_note: str
    drain_deadline: str | None
    """When what still runs there is stopped; null: never."""
    drain_checkpoint_first: bool | None
    set_aside_until: str | None
    """It could not start what it was given: until when it is offered nothing; null: it is well, or tried again."""
    set_aside_reason: str | None
    interrupted_by: str | None
    """Who has said that its machine is about to be taken away; null: nobody."""
    ends_at: str | None
    """When it may be gone then."""
    attempts: list[HeldView]
    trainers: list[str]
    datasets: list[str]
    """The datasets in its cache, the last used first."""
    data_bytes: int
    data_limit_bytes: int
    """How much its cache may hold; 0 where it has none."""
    max_jobs: int
    local: bool
    legacy: bool
    version: str
    created_at: Time
    registered_at: Time
    offline_since: Time
    """Since when it is offline, or reconnecting."""
    token_created_at: Time
    price_micros: int | None
    """What an hour of one of its GPUs costs, in millionths, as an administrator has said it of this worker."""
    reported_price_micros: int | None
    """The same as the worker says it."""
    token_age_days: float
    token_warning: str | None
    effective_price_micros: int | None = None
    """What counts: the first of the two that is said, or else what a rule says; null: not known, or not of all alike."""


class WorkerListView(Struct):
    workers: list[WorkerView]


def _gpu_view(gpu: Gpu, holder: Attempt | None) -> GpuView:
    held_by = view_of(GpuHolderView, holder) if holder else None
    return view_of(GpuView, gpu, unusable=gpu.unusable or None, held_by=held_by)


def worker_view(
    worker: Worker,
    held: list[Attempt],
    policy: Policy,
    now: float,
    gpu_holders: Mapping[str, Attempt],
) -> WorkerView:
    age_s = max(0.0, now - worker.token_created_at)
    plan = worker.drain_plan
    return view_of(
        WorkerView,
        worker,
        status=worker.status(bool(held)),
        gpus=[_gpu_view(gpu, gpu_holders.get(gpu.uuid)) for gpu in worker.gpus],
        admin_state=worker.admin,
        set_aside_until=_set_aside_until(worker),
        set_aside_reason=worker.start_trouble.why if worker.takes_a_pause and worker.start_trouble else None,
        interrupted_by=worker.interruption.source if worker.interruption else None,
        ends_at=rfc3339(worker.interruption.deadline) if worker.interruption else None,
        drain_deadline=rfc3339(plan.deadline) if plan else None,
        drain_checkpoint_first=plan.checkpoint_first if plan else None,
        attempts=[view_of(HeldView, attempt, attempt=attempt.number) for attempt in held],
        datasets=[prefixed_id(dataset_id) for dataset_id in worker.datasets],
        version=worker.agent_version,
        token_age_days=round(age_s / DAY_S, 1),
        token_warning=_token_warning(worker, age_s, policy),
    )


def _set_aside_until(worker: Worker) -> str | None:
    until = worker.start_trouble.closed_until if worker.start_trouble else None
    return None if until is None else rfc3339(until)


def _token_warning(worker: Worker, age_s: float, policy: Policy) -> str | None:
    if age_s < policy.token_warn_age_s:
        return None
    return f"the token is {age_s / DAY_S:.0f} days old: rotate it with 'simpletuner workers rotate-token {worker.name}'"
