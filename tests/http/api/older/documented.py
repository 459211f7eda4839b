"""Every request as the guides of the trainer's own server write it, and what is answered here.

The words in braces stand for what the scene has made: a job that runs, one that waits for an approval, a user, and so on.
"""

from tests.http.api.older.documented_people import AUDIT, PEOPLE, SIGN_IN, TOKENS
from tests.http.api.older.documented_row import (
    LIMITS,
    ONE_CONFIG,
    OTHERWISE,
    OWN,
    RULE,
    STATS,
    asked,
)

QUEUE = [
    asked("list, filter", "GET /api/queue?status=pending&limit=10", names=("jobs",)),
    asked("list, filter", "GET /api/queue?status=running", names=("jobs",)),
    asked("include_completed", "GET /api/queue?include_completed=true", names=("jobs",)),
    asked("stats shape", "GET /api/queue/stats", names=STATS),
    asked("my queue", "GET /api/queue/me", names=OWN),
    asked("queue of another user", "GET /api/queue/user/{user}", names=OWN[:4]),
    asked(
        "position",
        "GET /api/queue/position/{waiting}",
        names=("position", "priority", "queued_at", "estimated_wait_seconds"),
    ),
    asked("limits API", "GET /api/queue/concurrency", names=LIMITS[1:]),
    asked(
        "limits API",
        "POST /api/queue/concurrency",
        {
            "max_concurrent": 10,
            "user_max_concurrent": 3,
            "team_max_concurrent": 5,
            "enable_fair_share": False,
        },
        names=LIMITS,
    ),
    asked(
        "local limits",
        "POST /api/queue/concurrency",
        {"local_gpu_max_concurrent": 6, "local_job_max_concurrent": 2},
        status=OTHERWISE,
        says="--max-jobs",
    ),
    asked("priority change", "POST /api/queue/{waiting}/priority", {"priority": 20}, names=("priority",)),
    asked("priority cleared", "POST /api/queue/{waiting}/priority", {"priority": None}, names=("priority",)),
    asked(
        "submission",
        "POST /api/queue/submit",
        {"config_name": "small", "no_wait": False, "any_gpu": True, "for_approval": True, "dry_run": True},
        names=("success", "job_id", "status", "allocated_gpus", "queue_position", "requires_approval"),
    ),
    asked(
        "no_wait",
        "POST /api/queue/submit",
        {"config_name": "small", "no_wait": True, "worker_labels": {"nobody": "has"}},
        status=409,
        says="cannot start now",
    ),
    asked(
        "target kubeflow",
        "POST /api/queue/submit",
        {"config_name": "small", "target": "kubeflow"},
        status=OTHERWISE,
        says="pool",
    ),
    asked(
        "idempotent submission",
        "POST /api/cloud/jobs/submit?provider=replicate",
        {
            "config_name_to_load": "small",
            "tracker_run_name": "gh-42",
            "idempotency_key": "ci-build-abc123",
        },
        names=("success", "job_id", "status", "idempotent_hit", "quota_warnings"),
    ),
    asked(
        "external orchestration",
        "POST /api/cloud/replicate/submit",
        {"config_name_to_load": "small"},
        names=("success", "job_id"),
    ),
    asked("jobs of the cloud tab", "GET /api/cloud/jobs?limit=5", names=("jobs",)),
    asked("one job", "GET /api/cloud/jobs/{job}", names=("job_id", "status")),
    asked("its log", "GET /api/cloud/jobs/{job}/logs"),
    asked("retry of an ended job", "POST /api/cloud/jobs/{ended}/retry", status=200, names=("job_id",)),
    asked("delete of a job's record", "DELETE /api/cloud/jobs/{ended}", status=OTHERWISE, says="KEEP_DAYS"),
    asked("trigger processing", "POST /api/queue/process", status=OTHERWISE, says="/explain"),
    asked("clean old entries", "POST /api/queue/cleanup?days=30", status=OTHERWISE, says="KEEP_DAYS"),
    asked("GPU allocation view", "GET /api/system/status?include_allocation=true", names=("workers",)),
    asked("cancel waiting", "POST /api/queue/{waiting}/cancel", names=("job_id", "success"), leaves=True),
    asked("cancel running", "POST /api/cloud/jobs/{job}/cancel", names=("job_id",), leaves=True),
]

APPROVALS = [
    asked("rules", "GET /api/approvals/rules", names=("rules",)),
    asked(
        "rule: cost_exceeds",
        "POST /api/approvals/rules",
        {**RULE, "condition": "cost_exceeds", "threshold": "50"},
        status=201,
        names=("id", "cost_over_micros"),
    ),
    asked(
        "rule: hardware_type",
        "POST /api/approvals/rules",
        {**RULE, "condition": "hardware_type", "threshold": "*a100*", "required_approver_level": "admin"},
        status=201,
        names=("id", "gpu"),
    ),
    asked(
        "rule: first_job",
        "POST /api/approvals/rules",
        {**RULE, "condition": "first_job", "threshold": "true"},
        status=201,
        names=("id", "first_job"),
    ),
    asked(
        "rule: config_pattern",
        "POST /api/approvals/rules",
        {**RULE, "condition": "config_pattern", "threshold": "prod-*"},
        status=201,
        names=("id", "config"),
    ),
    asked(
        "rule: daily_jobs_exceed",
        "POST /api/approvals/rules",
        {**RULE, "condition": "daily_jobs_exceed", "threshold": "5"},
        status=OTHERWISE,
        says="jobs_per_hour",
    ),
    asked(
        "rule: provider",
        "POST /api/approvals/rules",
        {**RULE, "condition": "provider", "threshold": "replicate"},
        status=OTHERWISE,
        says="cost_over_micros",
    ),
    asked(
        "rule: user_level",
        "POST /api/approvals/rules",
        {**RULE, "condition": "user_level", "threshold": "viewer"},
        status=OTHERWISE,
        says="team",
    ),
    asked("one rule", "GET /api/approvals/rules/{rule}", names=("id", "name")),
    asked(
        "change of a rule",
        "PATCH /api/approvals/rules/{rule}",
        {"name": "x"},
        status=OTHERWISE,
        says="DELETE",
    ),
    asked("requests", "GET /api/approvals/requests", names=("requests", "pending_count")),
    asked("one request", "GET /api/approvals/requests/{blocked}", names=("id", "job_id", "status")),
    asked("request of a job", "GET /api/approvals/requests/job/{blocked}", names=("id", "job_id", "status")),
    asked("request of a job", "GET /api/approvals/job/{blocked}", names=("id", "job_id", "status")),
    asked("pending count", "GET /api/approvals/requests/pending/count", names=("count",)),
    asked("pending count", "GET /api/approvals/pending/count", names=("count",)),
    asked("own requests", "GET /api/approvals/me", names=("requests",)),
    asked("expiry", "POST /api/approvals/expire", status=OTHERWISE, says="by themselves"),
    asked(
        "approve",
        "POST /api/approvals/requests/{blocked}/approve",
        {"notes": "fine"},
        names=("success", "status"),
        leaves=True,
    ),
    asked(
        "reject",
        "POST /api/approvals/requests/{blocked}/reject",
        {"reason": "too large"},
        names=("success", "status"),
        leaves=True,
    ),
    asked(
        "cancel of a request",
        "POST /api/approvals/requests/{blocked}/cancel",
        names=("success", "job_id"),
        leaves=True,
    ),
    asked(
        "bulk approve",
        "POST /api/approvals/requests/bulk-approve",
        {"request_ids": ["{blocked}", "j_none"], "notes": "all of them"},
        names=("results", "successful", "failed"),
        leaves=True,
    ),
    asked(
        "bulk reject",
        "POST /api/approvals/requests/bulk-reject",
        {"request_ids": ["{blocked}"], "reason": "not today"},
        names=("results", "successful", "failed"),
        leaves=True,
    ),
    asked(
        "approve in the queue", "POST /api/queue/{blocked}/approve", names=("job_id", "success"), leaves=True
    ),
    asked(
        "reject in the queue",
        "POST /api/queue/{blocked}/reject?reason=too%20large",
        names=("job_id", "success"),
        leaves=True,
    ),
]

QUOTAS = [
    *(
        asked(
            f"type {kind}",
            "POST /api/quotas",
            {"quota_type": kind, "limit_value": 500, "action": action},
            status=201,
            names=("id", "kind", "quota_type", "limit_value"),
        )
        for kind, action in (
            ("cost_monthly", "warn"),
            ("cost_daily", "require_approval"),
            ("concurrent_jobs", "block"),
            ("jobs_per_hour", "block"),
            ("local_gpus", "notify"),
        )
    ),
    asked(
        "type jobs_per_day",
        "POST /api/quotas",
        {"quota_type": "jobs_per_day", "limit_value": 5},
        status=OTHERWISE,
        says="jobs_per_hour",
    ),
    asked(
        "scope user",
        "POST /api/quotas",
        {"quota_type": "concurrent_jobs", "limit_value": 50, "user_id": "{user}"},
        status=201,
        names=("id", "quota_type"),
    ),
    asked(
        "scope level",
        "POST /api/quotas",
        {"quota_type": "concurrent_jobs", "limit_value": 50, "level_id": "researcher"},
        status=201,
        names=("id", "quota_type"),
    ),
    asked(
        "scope org",
        "POST /api/orgs/1/quotas",
        {"quota_type": "concurrent_jobs", "limit_value": 100, "action": "block"},
        status=201,
        names=("id", "quota_type"),
    ),
    asked(
        "scope team",
        "POST /api/orgs/1/teams/{team}/quotas",
        {"quota_type": "concurrent_jobs", "limit_value": 20, "action": "block"},
        status=201,
        names=("id", "quota_type"),
    ),
    asked("all quotas", "GET /api/quotas", names=("quotas",)),
    asked("one quota", "GET /api/quotas/{quota}", names=("id", "quota_type")),
    asked("types", "GET /api/quotas/types", names=("types",)),
    asked("own status", "GET /api/quotas/me", names=("quotas", "statuses", "can_submit", "blocking_reasons")),
    asked("status of another", "GET /api/quotas/user/{user}", status=OTHERWISE, says="/api/usage"),
    asked(
        "cost limit of a provider",
        "PUT /api/cloud/providers/replicate/config",
        {"cost_limit_enabled": True, "cost_limit_amount": 500.0},
        status=OTHERWISE,
        says="money_month",
    ),
    asked("cost limit status", "GET /api/cloud/metrics/cost-limit-status", names=("budgets",)),
    asked("cost limit status", "GET /api/metrics/cost-limit/status", names=("budgets",)),
    asked("cost estimate", "POST /api/cloud/cost-estimate", {}, status=OTHERWISE, says="dry_run"),
    asked("cost estimate", "POST /api/quotas/cost-estimate", {}, status=OTHERWISE, says="dry_run"),
    asked("usage reports", "GET /api/metrics/costs", names=("lines",)),
    asked("usage reports", "GET /api/metrics/usage", names=("lines",)),
    asked("delete", "DELETE /api/quotas/{quota}", leaves=True),
]

NOTIFICATIONS = [
    asked("channels", "GET /api/cloud/notifications/channels", names=("channels", "total")),
    asked(
        "channel: Slack",
        "POST /api/cloud/notifications/channels",
        {
            "channel_type": "slack",
            "name": "Training Alerts",
            "webhook_url": "https://hooks.slack.com/services/T00/B00/xxxx",
        },
        status=201,
        names=("id", "channel_type", "is_enabled"),
    ),
    asked(
        "channel: webhook",
        "POST /api/cloud/notifications/channels",
        {"channel_type": "webhook", "name": "CI", "webhook_url": "https://ci.example.com/hook"},
        status=201,
        names=("id", "channel_type", "secret"),
    ),
    asked(
        "channel: webhook with its secret",
        "POST /api/cloud/notifications/channels",
        {
            "channel_type": "webhook",
            "name": "CI",
            "webhook_url": "https://ci.example.com/",
            "webhook_secret": "x",
        },
        status=OTHERWISE,
        says="makes the secret",
    ),
    asked(
        "channel: e-mail",
        "POST /api/cloud/notifications/channels",
        {"channel_type": "email", "name": "Mail", "smtp_host": "smtp.gmail.com", "smtp_port": 587},
        status=OTHERWISE,
        says="--smtp-url",
    ),
    asked("one channel", "GET /api/cloud/notifications/channels/{endpoint}", names=("id", "channel_type")),
    asked(
        "channel off",
        "PATCH /api/cloud/notifications/channels/{endpoint}",
        {"is_enabled": False},
        names=("id", "is_enabled"),
    ),
    asked(
        "channel on",
        "PATCH /api/cloud/notifications/channels/{endpoint}",
        {"is_enabled": True},
        names=("id", "is_enabled"),
    ),
    asked(
        "channel renamed",
        "PATCH /api/cloud/notifications/channels/{endpoint}",
        {"name": "Alerts"},
        names=("id", "name"),
    ),
    asked("events", "GET /api/cloud/notifications/events", names=("events",)),
    asked("preferences", "GET /api/cloud/notifications/preferences", status=OTHERWISE, says="events"),
    asked("preferences", "POST /api/cloud/notifications/preferences", {}, status=OTHERWISE, says="events"),
    asked("history", "GET /api/cloud/notifications/history", status=OTHERWISE, says="/history"),
    asked("status", "GET /api/cloud/notifications/status", names=("channels",)),
    asked("webhook management", "GET /api/webhooks", names=("channels",)),
    asked(
        "channel deleted", "DELETE /api/cloud/notifications/channels/{endpoint}", names=("id",), leaves=True
    ),
]

SERVER = [
    asked("health", "GET /api/cloud/health", names=("status", "version")),
    asked("liveness", "GET /api/cloud/health/live", names=("status",)),
    asked("readiness", "GET /api/cloud/health/ready", names=("status",)),
    asked("Prometheus", "GET /api/cloud/metrics/prometheus"),
    asked("Prometheus", "GET /api/metrics/prometheus"),
    asked("categories", "PUT /api/cloud/metrics/config", {}, status=OTHERWISE, says="/metrics"),
]

TRAINING = [
    asked("status", "GET /api/training/status", names=("status", "job_id")),
    asked("events", "GET /api/training/events?since_index=1", names=("events", "next_index")),
    asked("validate now", "POST /api/training/validation/run", names=("job_id", "success")),
    asked("checkpoint now", "POST /api/training/checkpoint/run", names=("job_id", "success")),
    asked(
        "check a config", "POST /api/training/validate", form=ONE_CONFIG, names=("job_id", "would_start_now")
    ),
    asked("one-off run", "POST /api/training/start", form=ONE_CONFIG, names=("job_id", "status")),
    asked(
        "run of the active environment",
        "POST /api/training/start",
        form={"__active_tab__": "model"},
        status=OTHERWISE,
        says="config_name",
    ),
    asked("save a config", "POST /api/training/config", status=OTHERWISE, says="/api/configs/"),
    asked("stop", "POST /api/training/stop", names=("job_id", "success"), leaves=True),
    asked(
        "cancel",
        "POST /api/training/cancel",
        form={"job_id": "{job}"},
        names=("job_id", "success"),
        leaves=True,
    ),
]

ALL = [*QUEUE, *APPROVALS, *QUOTAS, *PEOPLE, *TOKENS, *SIGN_IN, *AUDIT, *NOTIFICATIONS, *SERVER, *TRAINING]
