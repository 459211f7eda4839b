"""Shows one worker: its GPUs over time, what it runs and ran, what happened to it, and what can be done with it."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.training.trainer_release import VERSION_LABEL, release_of
from simpletuner_fleet.core.workers.job_groups import lacks_something
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker, WorkerStatus
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.http.api.admin.connection_commands import WHEEL, package
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.names import event_name, status_meaning, status_name, worker_type_name
from simpletuner_fleet.queries.worker_details import WorkerDetails, machine
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.pages.create_worker import COMMANDS
from simpletuner_fleet.web.pages.workers import PERMISSION
from simpletuner_fleet.web.parts.audit_rows import detail_pairs
from simpletuner_fleet.web.parts.charts.gpus import GpuChart, gpu_chart
from simpletuner_fleet.web.parts.jobs.rows import job_row, pace_text, risk_text
from simpletuner_fleet.web.parts.jobs.state import outcome_text
from simpletuner_fleet.web.parts.refusals import refusal_text
from simpletuner_fleet.web.parts.worker_rows import (
    GpuRow,
    gpu_rows,
    idle_text,
    is_not_isolated,
    isolation_text,
    job_groups_text,
    latest_of,
    pause_text,
    tls_is_weak,
    tls_text,
    trouble_note,
)

SPANS_S = {"hour": 3600.0, "day": 86_400.0}
DRAIN_WAITS_S = (900, 1800, 3600, 7200, 21_600)
REFUSED = "worker.registration_failed"


class WorkerPageQuery(Struct, kw_only=True):
    span: Literal["hour", "day"] = "hour"


class WorkerEventRow(Struct, frozen=True, kw_only=True):
    at: float
    what: str
    who: str
    details: str


class GpuPicture(Struct, frozen=True, kw_only=True):
    gpu: GpuRow
    chart: GpuChart


async def worker_page(call: Call[None]) -> Reply:
    fleet = deps_of(call).fleet
    info = await machine(fleet, call.path["id"])
    now, span_s = fleet.clock.now(), SPANS_S[call.query.span]
    with spoken(call):
        words, worker = current(), info.worker
        return page(
            call,
            "workers/worker.html",
            worker=worker,
            published=info.status,
            type=worker_type_name(words, worker.worker_type),
            sentence=state_sentence(info),
            pictures=_pictures(worker, info.gpu_holders, fleet, now - span_s, now),
            span=call.query.span,
            since=now - span_s,
            until=now,
            running=[job_row(one) for one in info.running],
            runs=info.runs,
            events=[_event_row(entry) for entry in info.events],
            datasets=info.datasets,
            reported=sorted(
                (key, value) for key, value in worker.effective_labels.items() if key not in worker.labels
            ),
            labels_json=msgspec.json.encode(worker.labels).decode(),
            release=release_of(worker.effective_labels.get(VERSION_LABEL, "")),
            tls=tls_text(worker),
            tls_is_weak=tls_is_weak(worker),
            isolation=isolation_text(worker),
            is_not_isolated=is_not_isolated(worker),
            job_groups=job_groups_text(worker),
            job_groups_lack=lacks_something(worker.reported_labels),
            token_is_old=now - worker.token_created_at > fleet.policy.token_warn_age_s,
            trouble=trouble_note(worker),
            draining=worker.admin is AdminState.DRAINING,
            kept_because=kept_because(worker, info.status),
            drain_waits=DRAIN_WAITS_S,
            commands=COMMANDS,
            address=deps_of(call).join_address(call),
            wheel=package() if package() == WHEEL else "",
            idle=idle_text(worker, info.idle_gpus),
            outcome_text=outcome_text,
            pace_text=pace_text,
            risk_text=risk_text,
        )


def state_sentence(info: WorkerDetails) -> str:
    worker, running = info.worker, len(info.running)
    if worker.interruption is not None and worker.connection is not Connection.OFFLINE:
        return _("Its machine is about to be taken away: it accepts no new jobs and hands back what it runs.")
    if worker.admin is AdminState.DRAINING and running:
        return ngettext(
            "It accepts no new jobs and finishes the one it is running.",
            "It accepts no new jobs and finishes the %(n)s it is running.",
            running,
        )
    if worker.admin is AdminState.DRAINING:
        return _("It accepts no jobs until it is resumed.")
    if worker.connection is Connection.CONNECTING and worker.registered_at is None:
        return _("Not connected yet.")
    if running:
        return ngettext("It is running %(n)s job.", "It is running %(n)s jobs.", running)
    return pause_text(info) or status_meaning(current(), info.status)


def kept_because(worker: Worker, status: str) -> str:
    """Says why the worker cannot be deleted now; empty where it can."""
    if worker.local:
        return _("This worker belongs to the server itself.")
    if worker.connection is Connection.CONNECTING and worker.registered_at is None:
        return ""
    if status != WorkerStatus.OFFLINE:
        return _(
            "Only an offline worker can be deleted, and this one is %(status)s. Stop it on its machine first.",
            status=status_name(current(), "worker", status),
        )
    return ""


def _pictures(
    worker: Worker, holders: Mapping[str, Attempt], fleet: Fleet, since: float, until: float
) -> list[GpuPicture]:
    points, latest = fleet.gpu_history.of(worker.id, since), latest_of(fleet, worker.id, until)
    return [
        GpuPicture(gpu=gpu, chart=gpu_chart(points.get(gpu.uuid, []), gpu.vram_gb, since, until))
        for gpu in gpu_rows(worker, latest, holders)
    ]


def _event_row(entry: AuditEntry) -> WorkerEventRow:
    who = "" if entry.actor_id in (entry.target_id, "orchestrator", "unknown") else entry.actor_name
    details = refusal_text(entry) if entry.event_type == REFUSED else _details(entry)
    return WorkerEventRow(at=entry.at, what=event_name(current(), entry.event_type), who=who, details=details)


def _details(entry: AuditEntry) -> str:
    if entry.event_type == "worker.status_changed":
        ends = (str(entry.details.get(end, "")) for end in ("from", "to"))
        return " → ".join(status_name(current(), "worker", status) for status in ends)
    parts = [f"{name}: {value}" for name, value in detail_pairs(entry, {})]
    return " · ".join([*parts, entry.ip] if entry.ip else parts)


ROUTES = (
    Route("GET", "/admin/workers/{id}", worker_page, PERMISSION, summary="One worker", query=WorkerPageQuery),
)
