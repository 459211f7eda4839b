"""Shows one job: what it does and how it goes, its curves, log, checkpoints, config and history."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from simpletuner_fleet.core.configs.bundle import Bundle, read_bundle
from simpletuner_fleet.core.errors import CannotValidateNow
from simpletuner_fleet.core.jobs.failure import advice_for
from simpletuner_fleet.core.jobs.job import Attempt, Job, Requirements
from simpletuner_fleet.core.jobs.requests import validating
from simpletuner_fleet.core.jobs.requests.saving import refusal_of
from simpletuner_fleet.core.jobs.states import CUT_SHORT, HAVE_TRAINER
from simpletuner_fleet.core.placement.forecast import OtherWay
from simpletuner_fleet.core.policy import PRIORITY_NAMES
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.ownership import may_steer
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, current
from simpletuner_fleet.languages.code_texts import fix_texts, funnel_texts, problem_detail
from simpletuner_fleet.languages.names import event_name, failure_name, target_name
from simpletuner_fleet.orchestrator.publishing import readable_publication
from simpletuner_fleet.ports import JobNote, View
from simpletuner_fleet.queries import read_models
from simpletuner_fleet.queries.outlook import outlook
from simpletuner_fleet.queries.read_models import SeenJob
from simpletuner_fleet.storage import artifacts
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts.audit_rows import detail_pairs
from simpletuner_fleet.web.parts.jobs.differences import Differences, differences, json_text
from simpletuner_fleet.web.parts.jobs.rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.parts.jobs.state import began_text, outcome_text, state_sentence
from simpletuner_fleet.web.parts.names import all_names
from simpletuner_fleet.web.parts.samples.gallery import gallery_of, prompts_of

EVENTS_SHOWN = 500
TABS = (
    ("", N_("Overview")),
    ("logs", N_("Logs")),
    ("metrics", N_("Metrics")),
    ("checkpoints", N_("Checkpoints")),
    ("config", N_("Config")),
    ("events", N_("Events")),
)


class Failure(Struct, frozen=True, kw_only=True):
    what: str
    evidence: str
    advice: str


class JobEventRow(Struct, frozen=True, kw_only=True):
    """Describes a row in the history of a job: an event or a note."""

    at: float
    what: str
    who: str
    details: str
    remark: bool = False


async def overview(call: Call[None]) -> Reply:
    deps, job_id = deps_of(call), call.path["id"]
    explained = await read_models.explained(deps.fleet, job_id)
    ahead = await outlook(deps.fleet, job_id)
    attempts = await read_models.attempts_of(deps.fleet, job_id)
    manifests = await artifacts.manifests_of(deps.fleet, job_id)
    notes, publication, prompts = await deps.fleet.read(
        lambda view: (view.notes_of_job(job_id), readable_publication(view, job_id), _prompts(view, job_id))
    )
    with spoken(call):
        words = current()
        return await _job_page(
            call,
            "jobs/job_overview.html",
            "",
            attempts=[attempt for attempt in reversed(attempts) if attempt.accepted_at is not None],
            offers=len(attempts),
            manifests=manifests,
            gallery=gallery_of(manifests, prompts),
            failure=_failure(attempts),
            funnel=funnel_texts(words, explained.funnel),
            fixes=fix_texts(words, explained),
            outlook=ahead,
            changes_of=changes_of,
            asked_at=deps.fleet.clock.now(),
            notes=list(reversed(notes))[:5],
            publication=publication,
            outcome_text=outcome_text,
            began_text=began_text,
        )


def changes_of(way: OtherWay, requires: Requirements) -> str:
    """Returns the edit by which a waiting job asks for this alternative, as the API reads it."""
    changes: dict[str, Any] = {name: value for name, value in asdict(way).items() if value is not None}
    left_out = changes.pop("without_label", None)
    if left_out is not None:
        changes["worker_labels"] = {key: value for key, value in requires.labels if key != left_out}
    return msgspec.json.encode(changes).decode()


async def logs(call: Call[None]) -> Reply:
    attempts = await read_models.attempts_of(deps_of(call).fleet, call.path["id"])
    accepted = [attempt for attempt in attempts if attempt.accepted_at is not None]
    with spoken(call):
        return await _job_page(
            call, "jobs/job_logs.html", "logs", attempts=accepted, outcome_text=outcome_text
        )


async def metrics_tab(call: Call[None]) -> Reply:
    attempts = await read_models.attempts_of(deps_of(call).fleet, call.path["id"])
    return await _job_page(call, "jobs/job_metrics.html", "metrics", attempts=attempts)


async def checkpoints(call: Call[None]) -> Reply:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    manifests = await artifacts.manifests_of(fleet, job_id)
    prompts = await fleet.read(lambda view: _prompts(view, job_id))
    return await _job_page(
        call,
        "jobs/job_checkpoints.html",
        "checkpoints",
        artifacts=[one for one in reversed(manifests) if one.kind == "artifact"],
        checkpoints=sorted(
            (one for one in manifests if one.kind == "checkpoint"),
            key=lambda one: one.step or 0,
            reverse=True,
        ),
        gallery=gallery_of(manifests, prompts),
    )


async def config(call: Call[None]) -> Reply:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    info = await read_models.one_job(fleet, job_id)

    def look(view: View) -> tuple[Bundle, Bundle | None, int | None]:
        own = _bundle(view, job_id)
        earlier = _earlier_run(view, info)
        return (own, *earlier)

    own, former, version = await fleet.read(look)
    changes = await differences(former, own) if former else Differences()
    with spoken(call):
        return await _job_page(
            call,
            "jobs/job_config.html",
            "config",
            text=json_text(msgspec.to_builtins(own)),
            differences=changes,
            former_version=version,
        )


async def events(call: Call[None]) -> Reply:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    entries, notes, names = await fleet.read(
        lambda view: (view.job_events(job_id, EVENTS_SHOWN), view.notes_of_job(job_id), all_names(view))
    )
    with spoken(call):
        words = current()
        rows = [
            *(
                JobEventRow(
                    at=entry.at,
                    what=event_name(words, entry.event_type),
                    who=entry.actor_name,
                    details=_joined(detail_pairs(entry, names)),
                )
                for entry in entries
            ),
            *(_remark(note) for note in notes),
        ]
        return await _job_page(
            call, "jobs/job_events.html", "events", rows=sorted(rows, key=lambda one: one.at)[::-1]
        )


async def _job_page(call: Call[Any], template: str, tab: str, **context: Any) -> Reply:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    info = await read_models.one_job(fleet, job_id)
    owner, saved_by, worker = await fleet.read(
        lambda view: (name_of(view, info.job.owner), _saved_by(view, info.job), _worker(view, info))
    )
    steers, own = may_steer(call, info.job, even_own=True), may_steer(call, info.job)
    validation = _no_validation(info, worker)
    with spoken(call):
        row: JobRow = job_row(info)
        return page(
            call,
            template,
            job=info.job,
            row=row,
            owner=owner,
            saved_by=saved_by,
            attempt=info.attempt,
            cost=info.cost,
            currency=fleet.organisation.prices.currency,
            checkpoint_step=info.checkpoint_step,
            sentence=state_sentence(info),
            target=target_name(current(), info.job.requires.target),
            tab=tab,
            tabs=TABS,
            pace=pace_text(row.steps.rate),
            risk=risk_text(row.steps),
            priorities=PRIORITY_NAMES,
            may_cancel=own and call.principal.can("jobs.cancel") and not info.job.terminal,
            may_delete=own and call.principal.can("jobs.cancel") and info.job.terminal,
            may_save=own and call.principal.can("jobs.cancel") and _can_save(info, worker),
            may_validate=own and call.principal.can("jobs.cancel") and validation == "",
            no_validation=problem_detail(current(), {"detail": validation}),
            may_retry=own and call.principal.can("jobs.retry") and info.job.terminal,
            go_on_step=info.checkpoint_step if info.job.state in CUT_SHORT else None,
            may_edit=own and call.principal.can("jobs.edit"),
            may_order=steers and call.principal.can("queue.priority") and not info.job.terminal,
            may_approve=steers and call.principal.can("queue.approve") and info.job.hold == "approval",
            runs=info.job.state in HAVE_TRAINER,
            **context,
        )


def _failure(attempts: list[Attempt]) -> Failure | None:
    """Returns the failure of the attempt that ended last; None unless that one failed."""
    ended = [attempt for attempt in attempts if attempt.outcome is not None]
    last = ended[-1] if ended else None
    if last is None or last.failure_class is None:
        return None
    words = current()
    return Failure(
        what=failure_name(words, last.failure_class),
        evidence=last.failure_evidence or last.error or "",
        advice=words.gettext(advice_for(last.failure_class)),
    )


def _saved_by(view: View, job: Job) -> str:
    """Returns who saved the config version that the job runs; empty where the config came with the request."""
    saved = view.config(job.config_name, job.config_version) if job.config_version else None
    return name_of(view, saved.created_by) if saved else ""


def _worker(view: View, info: SeenJob) -> Worker | None:
    return view.worker(info.attempt.worker_id) if info.attempt else None


def _can_save(info: SeenJob, worker: Worker | None) -> bool:
    """Tells whether the job's trainer can be asked for a checkpoint."""
    return info.attempt is not None and worker is not None and not refusal_of(info.job, info.attempt, worker)


def _no_validation(info: SeenJob, worker: Worker | None) -> str | None:
    """Says why a running trainer cannot be asked to validate; empty where it can, None where none runs."""
    if info.attempt is None or worker is None:
        return None
    refusal = validating.refusal_of(info.job, info.attempt, worker)
    if refusal is None:
        return ""
    return refusal.detail if isinstance(refusal, CannotValidateNow) else None


def _bundle(view: View, job_id: str) -> Bundle:
    return read_bundle(msgspec.json.decode(view.job_bundle(job_id) or b"{}"))


def _prompts(view: View, job_id: str) -> dict[str, str]:
    return prompts_of(_bundle(view, job_id))


def _earlier_run(view: View, info: SeenJob) -> tuple[Bundle | None, int | None]:
    """Returns the config version before the one this job was submitted with, and its number."""
    job = info.job
    former = view.config(job.config_name, job.config_version - 1) if job.config_version > 1 else None
    return (read_bundle(msgspec.json.decode(former.bundle)), former.version) if former else (None, None)


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return " · ".join(f"{name}: {value}" for name, value in pairs)


def _remark(note: JobNote) -> JobEventRow:
    data = ((name, str(value)) for name, value in note.data.items() if value not in (None, "", [], {}))
    return JobEventRow(at=note.at, what=note.text, who="", details=_joined(data), remark=True)


def _tab(path: str, handler: Any, summary: str) -> Route:
    return Route("GET", f"/jobs/{{id}}{path}", handler, "jobs.read", summary=summary)


ROUTES = (
    _tab("", overview, "A job"),
    _tab("/logs", logs, "A job's log"),
    _tab("/metrics", metrics_tab, "A job's curves"),
    _tab("/checkpoints", checkpoints, "What a job has stored"),
    _tab("/config", config, "What a job was submitted with"),
    _tab("/events", events, "What happened to a job"),
)
