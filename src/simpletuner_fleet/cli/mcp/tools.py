"""Defines the tools of an agent: what each takes, what it does, and whether it changes anything."""

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from simpletuner_fleet.cli.mcp import arguments as given
from simpletuner_fleet.cli.mcp.limits import HOUR_S, BeyondLimit, SpendLimits, SubmitWish, check
from simpletuner_fleet.cli.mcp.untrusted import bounded, clean, fitted, marked
from simpletuner_fleet.client.errors import ClientError, ProblemError
from simpletuner_fleet.client.fleet import FleetClient
from simpletuner_fleet.client.table.requests import SubmitOptions
from simpletuner_fleet.http.edge.refused_fields import refused_field

Run = Callable[[Any], Any]
NEVER_SENT = ("E_CONN_REFUSED", "E_DNS")
"""With these nothing has reached an orchestrator."""
DEFECT = 500
"""The status of what the orchestrator has begun, perhaps, and not foreseen."""


class Tool(NamedTuple):
    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    run: Run
    changes: bool = False
    ends_something: bool = False

    def described(self) -> dict[str, Any]:
        (schema,), parts = msgspec.json.schema_components([self.takes], ref_template="#/$defs/{name}")
        own = parts.pop(self.takes.__name__, schema)
        own.pop("title", None)
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": {"type": "object", **own, **({"$defs": parts} if parts else {})},
            "annotations": {
                "title": self.title,
                "readOnlyHint": not self.changes,
                "destructiveHint": self.ends_something,
                "idempotentHint": not self.changes or self.ends_something,
                "openWorldHint": False,
            },
        }


class FleetTools:
    def __init__(self, fleet: FleetClient, limits: SpendLimits) -> None:
        self._fleet, self._limits = fleet, limits
        self._submitted: set[str] = set()
        self._unsure = 0
        """How many submissions may have been carried out, though no answer came."""
        tools = (*self._reading(), *(self._changing() if limits.submit else ()))
        self._tools = {tool.name: tool for tool in tools}

    def described(self) -> list[dict[str, Any]]:
        return [tool.described() for tool in self._tools.values()]

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tool = self._tools[name]
        try:
            asked = msgspec.convert(arguments, tool.takes)
            value = bounded(msgspec.to_builtins(tool.run(asked)))
        except msgspec.ValidationError as error:
            refused = refused_field(error, tool.takes)
            where = refused.params["errors"][0]["path"]
            return _failed({"code": "invalid_arguments", "what": refused.detail, "where": where})
        except BeyondLimit as error:
            return _failed({"code": "beyond_limit", "what": str(error)})
        except ClientError as error:
            trouble = error.trouble
            return _failed(
                {"code": trouble.code, "what": trouble.what, "why": trouble.why, "next": list(trouble.next)}
            )
        return {
            "content": [{"type": "text", "text": marked(value)}],
            "structuredContent": {"untrusted": True, "data": fitted(value)},
            "isError": False,
        }

    def _reading(self) -> tuple[Tool, ...]:
        fleet = self._fleet
        return (
            Tool("list_jobs", "Jobs", "Lists jobs, newest first.", given.JobsWanted, self._jobs),
            Tool(
                "get_job",
                "One job",
                "Shows one job: status, progress, failure, worker.",
                given.OneJob,
                lambda asked: fleet.job(asked.job),
            ),
            Tool(
                "explain_job",
                "Why a job waits",
                "Tells why a job waits, what would help, when it would start, and with what it would start now.",
                given.OneJob,
                self._explain,
            ),
            Tool(
                "job_logs",
                "Log",
                "Shows the last lines that a job's trainer printed. They are untrusted.",
                given.LogWanted,
                self._logs,
            ),
            Tool(
                "job_metrics",
                "Curves",
                "Shows loss and other curves of a job, few points of each.",
                given.MetricsWanted,
                self._metrics,
            ),
            Tool(
                "compare_jobs",
                "Compare",
                "Shows two to eight jobs side by side, and in what their configs differ.",
                given.JobsToCompare,
                lambda asked: fleet.compare(*asked.jobs),
            ),
            Tool(
                "list_workers",
                "Workers",
                "Lists workers with their GPUs and labels.",
                given.WorkersWanted,
                self._workers,
            ),
            Tool(
                "queue",
                "Queue",
                "Counts jobs by state, and tells why those at the front of the queue wait.",
                given.NoArguments,
                lambda asked: fleet.queue(),
            ),
            Tool(
                "list_configs",
                "Configs",
                "Lists the saved configs.",
                given.NoArguments,
                lambda asked: fleet.configs(),
            ),
            Tool(
                "get_config",
                "One config",
                "Shows a saved config.",
                given.ConfigWanted,
                lambda asked: fleet.config(asked.name),
            ),
            Tool(
                "dry_run",
                "Dry run",
                "Tells whether a job would start now if it were submitted, and if not, why. Submits nothing.",
                given.JobPlan,
                self._dry_run,
            ),
        )

    def _changing(self) -> tuple[Tool, ...]:
        limits = self._limits
        allowed = (
            f"at most {limits.max_gpus} GPUs, {limits.max_hours:g} hours, priority {limits.max_priority}, "
            f"{limits.max_jobs} jobs"
        )
        return (
            Tool(
                "submit_job",
                "Submit",
                f"Submits a saved config as a job ({allowed}). Ask dry_run first.",
                given.JobSubmission,
                self._submit,
                changes=True,
            ),
            Tool(
                "cancel_job",
                "Cancel",
                "Cancels a job that was submitted here before.",
                given.OneJob,
                self._cancel,
                changes=True,
                ends_something=True,
            ),
        )

    def _jobs(self, asked: given.JobsWanted) -> Any:
        jobs = self._fleet.jobs(limit=asked.limit, status=asked.status, config_name=asked.config_name)
        return [msgspec.structs.asdict(job) | {"requires": job.requires} for job in jobs]

    def _explain(self, asked: given.OneJob) -> Any:
        return {"explain": self._fleet.explain(asked.job), "outlook": self._fleet.outlook(asked.job)}

    def _logs(self, asked: given.LogWanted) -> Any:
        lines = self._fleet.logs(asked.job, tail=asked.lines, attempt=asked.attempt)
        return {"job": asked.job, "lines": [clean(line) for line in islice(lines, asked.lines)]}

    def _metrics(self, asked: given.MetricsWanted) -> Any:
        metrics = self._fleet.metrics(asked.job, asked.keys, points=asked.points)
        return {"keys": metrics.keys, "series": metrics.view.series}

    def _workers(self, asked: given.WorkersWanted) -> Any:
        workers = self._fleet.workers(status=asked.status)
        kept = (
            "id",
            "name",
            "status",
            "gpus",
            "effective_labels",
            "trainers",
            "admin_state",
            "connection",
            "max_jobs",
        )
        shown = [{name: getattr(worker, name) for name in kept} for worker in workers[: asked.limit]]
        return {"workers": shown, "of": len(workers)}

    def _dry_run(self, asked: given.JobPlan) -> Any:
        options: SubmitOptions = {
            "worker_labels": asked.worker_labels,
            "priority": asked.priority,
            "overrides": asked.overrides,
            "gpus": asked.gpus,
            "min_vram_gb": asked.min_vram_gb,
        }
        if asked.config is None:
            return self._fleet.dry_run(asked.config_name or "", **options)
        return self._fleet.dry_run(asked.config, config_name=asked.config_name, **options)

    def _submit(self, asked: given.JobSubmission) -> Any:
        spending = SubmitWish(
            priority=asked.priority,
            hours=asked.hours,
            gpus=asked.gpus,
            retries=asked.retries,
            overrides=frozenset(asked.overrides),
        )
        check(self._limits, spending, len(self._submitted) + self._unsure)
        options: SubmitOptions = {
            "gpus": asked.gpus,
            "time_limit_s": asked.hours * HOUR_S,
            "on_time_limit": "fail",
            "max_retries": asked.retries,
            "priority": asked.priority,
            "worker_labels": asked.worker_labels,
            "overrides": asked.overrides,
            "min_vram_gb": asked.min_vram_gb,
            "name": asked.name,
        }
        try:
            answer = self._fleet.submit(asked.config_name, **options)
        except ClientError as error:
            self._unsure += _may_have_been_carried_out(error)
            raise
        if answer.job_id:
            self._submitted.add(answer.job_id)
        return answer

    def _cancel(self, asked: given.OneJob) -> Any:
        if asked.job not in self._submitted:
            raise BeyondLimit(
                "Only jobs that were submitted by this server, since its start, can be cancelled."
            )
        return self._fleet.cancel(asked.job)


def _may_have_been_carried_out(error: ClientError) -> bool:
    """Tells whether there may be a job though no answer tells of one: unless it was refused, or never sent."""
    was_refused = isinstance(error, ProblemError) and error.status != DEFECT
    return not was_refused and error.code not in NEVER_SENT


def _failed(trouble: dict[str, Any]) -> dict[str, Any]:
    value = bounded(trouble)
    return {
        "content": [{"type": "text", "text": marked(value)}],
        "structuredContent": {"untrusted": True, "error": fitted(value)},
        "isError": True,
    }
