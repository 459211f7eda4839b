"""What is answered about workers, configs and datasets.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class GpuHolderView(Struct, frozen=True, kw_only=True):
    job_id: str
    worker_id: str
    worker_name: str


class GpuView(Struct, frozen=True, kw_only=True):
    index: int
    uuid: str
    name: str
    vram_gb: float
    accelerator_type: str
    unusable: str | None
    """Why it is handed to nobody for now."""
    node: int = 0
    """On which of the worker's nodes it is."""
    held_by: GpuHolderView | None = None
    """Who uses it, on this worker or on another one of the same machine."""


class HeldView(Struct, frozen=True, kw_only=True):
    job_id: str
    attempt: int
    epoch: int
    state: str
    gpus: list[str]


class WorkerView(Struct, frozen=True, kw_only=True):
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
    last_heartbeat: str | None
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
    created_at: str | None
    registered_at: str | None
    offline_since: str | None
    """Since when it is offline, or reconnecting."""
    token_created_at: str | None
    price_micros: int | None
    """What an hour of one of its GPUs costs, in millionths, as an administrator has said it of this worker."""
    reported_price_micros: int | None
    """The same as the worker says it."""
    token_age_days: float
    token_warning: str | None
    effective_price_micros: int | None = None
    """What counts: the first of the two that is said, or else what a rule says; null: not known, or not of all alike."""


class WorkerListView(Struct, frozen=True, kw_only=True):
    workers: list[WorkerView]


class ConfigView(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may save further versions; empty: administrators alone."""
    team: str = ""
    visibility: str = "everybody"
    changed: bool | UnsetType = UNSET


class ConfigsView(Struct, frozen=True, kw_only=True):
    configs: list[ConfigView]


class Publish(Struct, frozen=True, kw_only=True):
    """Says where a config or a request wants the model published once the job has completed."""

    to: str
    """hf://OWNER/NAME, or folder://NAME within what the server publishes to."""
    secret: str | None = None
    """The name of the stored secret that holds the Hub's token."""
    private: bool = True
    branch: str = "main"


class StoredConfig(Struct, frozen=True, kw_only=True):
    """Holds a config bundle and what is known of it."""

    name: str
    version: int
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may save further versions; empty: administrators alone."""
    team: str
    visibility: str
    trainer: str
    settings: dict[str, Any]
    dataloader: Any
    files: dict[str, str]
    env: dict[str, str]
    secrets: dict[str, str]
    """Names of stored secrets by variable, never values."""
    resources: dict[str, Any]
    datasets: dict[str, str]
    watchdog: dict[str, Any]
    publish: Publish | None = None


class DatasetView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    files: int
    total_bytes: int
    """The same content counts once."""
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may rename and delete it; empty: administrators alone."""
    team: str
    """The id of the team that it belongs to; empty where it belongs to none."""
    visibility: str
    """Who may see it beside its owner: private, team or everybody."""


class DatasetListView(Struct, frozen=True, kw_only=True):
    datasets: list[DatasetView]


class DatasetDetails(DatasetView, frozen=True, kw_only=True):
    manifest: str
    """Where its list of files is: an object of the dataset like any other."""
    manifest_bytes: int
    workers: list[str]
    """Names of those that have it in their cache."""


class WhoAmI(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    permissions: list[str]
