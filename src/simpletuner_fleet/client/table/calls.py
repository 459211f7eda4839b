"""The calls of the client.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""

from typing import Any

from simpletuner_fleet.client.calls.call import RouteCall
from simpletuner_fleet.client.table.fleet_answers import (
    ConfigsView,
    ConfigView,
    DatasetDetails,
    DatasetListView,
    StoredConfig,
    WhoAmI,
    WorkerListView,
    WorkerView,
)
from simpletuner_fleet.client.table.job_answers import (
    AttemptsView,
    ExplainView,
    FoundJobsPage,
    JobEventsView,
    OutlookView,
    StatsView,
    SubmitAnswer,
    WholeJobView,
)
from simpletuner_fleet.client.table.result_answers import (
    ComparisonView,
    ManifestsView,
    MetricsView,
)

LIST_JOBS: RouteCall[FoundJobsPage] = RouteCall(
    "GET",
    "/api/jobs",
    FoundJobsPage,
    query=(
        "status",
        "owner",
        "worker",
        "config",
        "trainer",
        "dataset",
        "label",
        "tag",
        "reason",
        "since",
        "until",
        "ended_since",
        "ended_until",
        "q",
        "worker_id",
        "config_name",
        "sort",
        "cursor",
        "limit",
    ),
    body=(),
)
"""Jobs, newest first or in another order."""
GET_JOB: RouteCall[WholeJobView] = RouteCall("GET", "/api/jobs/{id}", WholeJobView, query=(), body=())
"""One job."""
EXPLAIN: RouteCall[ExplainView] = RouteCall("GET", "/api/jobs/{id}/explain", ExplainView, query=(), body=())
"""Why a job waits, and what would help."""
OUTLOOK: RouteCall[OutlookView] = RouteCall("GET", "/api/jobs/{id}/outlook", OutlookView, query=(), body=())
"""When a waiting job would start, and what would start now."""
ATTEMPTS: RouteCall[AttemptsView] = RouteCall(
    "GET", "/api/jobs/{id}/attempts", AttemptsView, query=(), body=()
)
"""Every try at a job, oldest first."""
JOB_EVENTS: RouteCall[JobEventsView] = RouteCall(
    "GET", "/api/jobs/{id}/events", JobEventsView, query=(), body=()
)
"""What happened to a job."""
SUBMIT: RouteCall[SubmitAnswer] = RouteCall(
    "POST",
    "/api/queue/submit",
    SubmitAnswer,
    query=(),
    body=(
        "config_name",
        "config_version",
        "config",
        "target",
        "worker_labels",
        "gpus",
        "nodes",
        "min_vram_gb",
        "accelerator",
        "max_price_micros",
        "priority",
        "max_retries",
        "retry_on_failure",
        "time_limit_s",
        "on_time_limit",
        "on_partition",
        "max_cost_micros",
        "on_max_cost",
        "depends_on",
        "not_before",
        "overrides",
        "datasets",
        "watchdog",
        "resume_from",
        "publish",
        "name",
        "team",
        "visibility",
        "no_wait",
        "any_gpu",
        "for_approval",
        "dry_run",
        "idempotency_key",
    ),
)
"""Submit a job."""
CANCEL: RouteCall[WholeJobView] = RouteCall(
    "POST", "/api/jobs/{id}/cancel", WholeJobView, query=(), body=("checkpoint_first", "grace_s")
)
"""Cancel a job, on request with a checkpoint saved first."""
RETRY: RouteCall[WholeJobView] = RouteCall(
    "POST", "/api/jobs/{id}/retry", WholeJobView, query=(), body=("resume_from", "max_cost_micros")
)
"""Try an ended job again, as a new job with the same copy of everything."""
SET_PRIORITY: RouteCall[WholeJobView] = RouteCall(
    "POST", "/api/queue/{id}/priority", WholeJobView, query=(), body=("priority",)
)
"""Move a job in the queue."""
QUEUE_STATS: RouteCall[StatsView] = RouteCall("GET", "/api/queue/stats", StatsView, query=(), body=())
"""How many jobs are in which state, and why they wait."""
METRICS: RouteCall[MetricsView] = RouteCall(
    "GET",
    "/api/jobs/{id}/metrics",
    MetricsView,
    query=("key", "points", "attempt", "from_step", "to_step", "after"),
    body=(),
)
"""Loss and other curves of a job, with the smallest and largest value of what was put together."""
LOGS: RouteCall[dict[str, Any]] = RouteCall(
    "GET",
    "/api/jobs/{id}/logs",
    dict,
    query=("tail", "offset", "since", "before", "limit", "lines", "attempt", "rank", "follow", "timestamps"),
    body=(),
)
"""What the trainer printed: bytes, or a page of lines for who accepts JSON; follow=1 streams it as it grows."""
COMPARE: RouteCall[ComparisonView] = RouteCall("GET", "/api/compare", ComparisonView, query=("job",), body=())
"""Up to eight runs side by side, and in what their configs differ."""
ARTIFACTS: RouteCall[ManifestsView] = RouteCall(
    "GET", "/api/jobs/{id}/artifacts", ManifestsView, query=(), body=()
)
"""Checkpoints and artifacts of a job, oldest first."""
LIST_WORKERS: RouteCall[WorkerListView] = RouteCall(
    "GET", "/api/admin/workers", WorkerListView, query=("status", "label", "local"), body=()
)
"""List all workers."""
GET_WORKER: RouteCall[WorkerView] = RouteCall("GET", "/api/admin/workers/{id}", WorkerView, query=(), body=())
"""One worker."""
LIST_CONFIGS: RouteCall[ConfigsView] = RouteCall("GET", "/api/configs", ConfigsView, query=(), body=())
"""Saved configs by name."""
GET_CONFIG: RouteCall[StoredConfig] = RouteCall(
    "GET", "/api/configs/{name}", StoredConfig, query=("version",), body=()
)
"""One config, in its newest version unless one is named."""
SAVE_CONFIG: RouteCall[ConfigView] = RouteCall(
    "PUT", "/api/configs/{name}", ConfigView, query=("team", "visibility"), body=None
)
"""Save a config bundle, or a bare config.json, as a new version."""
LIST_DATASETS: RouteCall[DatasetListView] = RouteCall("GET", "/api/data", DatasetListView, query=(), body=())
"""Datasets, newest first."""
GET_DATASET: RouteCall[DatasetDetails] = RouteCall("GET", "/api/data/{id}", DatasetDetails, query=(), body=())
"""One dataset and who has it."""
WHOAMI: RouteCall[WhoAmI] = RouteCall("GET", "/api/whoami", WhoAmI, query=(), body=())
"""Who the caller is and what they may do."""
EVENTS: RouteCall[dict[str, Any]] = RouteCall("GET", "/api/events", dict, query=(), body=())
"""Server-Sent Events: what changed, as it changes."""
