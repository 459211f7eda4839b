"""Defines the arguments of each tool; the tools' JSON schemas are generated from them."""

from typing import Annotated, Any

from msgspec import Meta, Struct

JobId = Annotated[str, Meta(max_length=200, description="A job's id, as j_…")]
Count = Annotated[int, Meta(ge=1, le=200)]
Keys = Annotated[list[str], Meta(max_length=20)]


class NoArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class OneJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: JobId


class JobsWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: list[str] = []
    config_name: str | None = None
    limit: Count = 20


class LogWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: JobId
    lines: Count = 50
    """The last so many."""
    attempt: Annotated[int, Meta(ge=1)] | None = None


class MetricsWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: JobId
    keys: Keys = []
    points: Count = 50


class JobsToCompare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    jobs: Annotated[list[JobId], Meta(min_length=2, max_length=8)]


class WorkersWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: str | None = None
    limit: Count = 50


class ConfigWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=200)]


class JobPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job for a dry run. A dry run costs nothing, so the job may ask for anything."""

    config_name: str | None = None
    config: dict[str, Any] | None = None
    gpus: int | None = None
    min_vram_gb: float | None = None
    worker_labels: dict[str, str] = {}
    priority: int | str = 0
    overrides: dict[str, Any] = {}


class JobSubmission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    config_name: Annotated[str, Meta(max_length=200, description="A saved config")]
    gpus: Annotated[int, Meta(ge=0)]
    hours: Annotated[float, Meta(gt=0, description="The job is stopped after this time")]
    name: Annotated[str, Meta(max_length=100)] | None = None
    min_vram_gb: float | None = None
    worker_labels: dict[str, str] = {}
    priority: int | str = 0
    retries: Annotated[int, Meta(ge=0, le=10)] = 0
    overrides: dict[str, Any] = {}
