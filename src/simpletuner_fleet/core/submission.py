"""From a request and a config to a job."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bundle import Bundle, check_gpus, gpus_of
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.job import Hold, Job, JobState, OnPartition, OnTimeLimit, Requirements, Target
from simpletuner_fleet.core.ordering import class_id, rank
from simpletuner_fleet.core.policy import (
    MAX_DEPENDENCIES,
    MAX_LABEL_KEY_CHARS,
    MAX_LABEL_VALUE_CHARS,
    MAX_LABELS,
    MAX_PRIORITY,
    MAX_RETRIES,
    PRIORITY_NAMES,
    Policy,
)
from simpletuner_fleet.core.watchdog import Watchdog, check_watchdog, merged


class SubmitRequest(Struct, frozen=True, kw_only=True):
    """What a person or program asks for."""

    config_name: str | None = None
    config: dict[str, Any] | None = None
    target: Target = Target.AUTO
    worker_labels: dict[str, str] = {}
    gpus: int | None = None
    min_vram_gb: float | None = None
    accelerator: str | None = None
    priority: int | str = 0
    max_retries: int | None = None
    retry_on_failure: bool = False
    time_limit_s: float | None = None
    on_time_limit: OnTimeLimit = "fail"
    on_partition: OnPartition = "pause"
    depends_on: list[str] = []
    overrides: dict[str, Any] = {}
    datasets: dict[str, str] = {}
    """In addition to the config's, or in place of those of the same name."""
    watchdog: Watchdog = Watchdog()
    """In place of what the config says of the same."""
    name: str | None = None
    no_wait: bool = False
    dry_run: bool = False
    idempotency_key: str | UnsetType | None = UNSET


def with_watchdog(bundle: Bundle, asked: Watchdog) -> Bundle:
    changed = check_watchdog(merged(bundle.watchdog, asked), "$.watchdog")
    return replace(bundle, watchdog=changed)


def check_labels(labels: dict[str, str], path: str) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise Invalid(f"There may be at most {MAX_LABELS} labels.", path=path)
    for key, value in labels.items():
        if not 1 <= len(key) <= MAX_LABEL_KEY_CHARS or not key.isprintable() or key != key.strip():
            raise Invalid(f"A label's key has 1 to {MAX_LABEL_KEY_CHARS} printable characters.", path=path)
        if len(value) > MAX_LABEL_VALUE_CHARS or not value.isprintable():
            raise Invalid(
                f"A label's value has at most {MAX_LABEL_VALUE_CHARS} printable characters.",
                path=f"{path}.{key}",
            )
    return labels


def read_priority(asked: int | str) -> int:
    if isinstance(asked, str):
        named = PRIORITY_NAMES.get(asked.lower())
        if named is None:
            raise Invalid(f"priority is a number or one of {', '.join(PRIORITY_NAMES)}.", path="$.priority")
        return named
    if not -MAX_PRIORITY <= asked <= MAX_PRIORITY:
        raise Invalid(f"priority is between -{MAX_PRIORITY} and {MAX_PRIORITY}.", path="$.priority")
    return asked


def requirements(
    request: SubmitRequest, bundle: Bundle, owner: str, datasets: tuple[tuple[str, int], ...] = ()
) -> Requirements:
    vram = request.min_vram_gb if request.min_vram_gb is not None else bundle.resources.min_vram_gb
    if vram is not None and vram < 0:
        raise Invalid("min_vram_gb is 0 or more.", path="$.min_vram_gb")
    gpus = check_gpus(request.gpus, "$.gpus") if request.gpus is not None else gpus_of(bundle)
    labels = check_labels(request.worker_labels, "$.worker_labels")
    return Requirements(
        target=request.target,
        gpus=gpus,
        min_vram_gb=float(vram or 0),
        accelerator=(request.accelerator or bundle.resources.accelerator or "").lower(),
        trainer=bundle.trainer,
        labels=tuple(sorted(labels.items())),
        owner=owner,
        datasets=datasets,
    )


def new_job(
    request: SubmitRequest,
    bundle: Bundle,
    policy: Policy,
    *,
    job_id: str,
    seq: int,
    config_name: str,
    config_version: int,
    owner: str,
    hold: Hold,
    now: float,
    datasets: tuple[tuple[str, int], ...] = (),
) -> Job:
    """`hold` says what the job waits for before it may queue, if anything; `datasets` are ids and sizes."""
    requires = requirements(request, bundle, owner, datasets)
    priority = read_priority(request.priority)
    retries = policy.max_retries if request.max_retries is None else request.max_retries
    if not 0 <= retries <= MAX_RETRIES:
        raise Invalid(f"max_retries is between 0 and {MAX_RETRIES}.", path="$.max_retries")
    if request.time_limit_s is not None and request.time_limit_s <= 0:
        raise Invalid("time_limit_s is more than 0.", path="$.time_limit_s")
    if request.on_time_limit == "requeue" and request.time_limit_s is None:
        raise Invalid("on_time_limit 'requeue' needs a time_limit_s.", path="$.on_time_limit")
    if len(request.depends_on) > MAX_DEPENDENCIES:
        raise Invalid(f"A job depends on at most {MAX_DEPENDENCIES} others.", path="$.depends_on")
    if request.name is not None and not (1 <= len(request.name) <= 200 and request.name.isprintable()):
        raise Invalid("A job's name has 1 to 200 printable characters.", path="$.name")
    return Job(
        id=job_id,
        seq=seq,
        config_name=config_name,
        config_version=config_version,
        requires=requires,
        class_id=class_id(requires),
        owner=owner,
        state=JobState.BLOCKED if hold is not Hold.NONE else JobState.QUEUED,
        hold=hold,
        rank=rank(now, priority, policy),
        priority=priority,
        max_retries=retries,
        created_at=now,
        retry_on_failure=request.retry_on_failure,
        time_limit_s=request.time_limit_s,
        on_time_limit=request.on_time_limit,
        on_partition=request.on_partition,
        depends_on=tuple(dict.fromkeys(request.depends_on)),
        name=request.name,
    )
