"""One job: what it does and how it goes, its curves, log, checkpoints, config and history."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.bundle import Bundle, read_bundle
from simpletuner_fleet.core.failure import advice_for
from simpletuner_fleet.core.job import Attempt, JobState
from simpletuner_fleet.core.policy import PRIORITY_NAMES
from simpletuner_fleet.http.deps import deps
from simpletuner_fleet.http.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, current
from simpletuner_fleet.languages.names import event_name, failure_name, target_name
from simpletuner_fleet.languages.told import fix_texts, funnel_texts
from simpletuner_fleet.orchestrator import read_models
from simpletuner_fleet.orchestrator.read_models import SeenJob
from simpletuner_fleet.ports import JobNote, View
from simpletuner_fleet.storage import artifacts
from simpletuner_fleet.web.audit_rows import detail_pairs
from simpletuner_fleet.web.differences import differences, json_text
from simpletuner_fleet.web.job_rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.job_state import began_text, outcome_text, state_sentence
from simpletuner_fleet.web.named import all_names
from simpletuner_fleet.web.page import page, spoken
from simpletuner_fleet.web.samples import samples_of

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


class Told(Struct, frozen=True, kw_only=True):
    """An event or a remark, in one list."""

    at: float
    what: str
    who: str
    details: str
    remark: bool = False


async def overview(call: Call[None]) -> Reply:
    house, job_id = deps(call), call.path["id"]
    explained = await read_models.explained(house.fleet, job_id)
    attempts = await read_models.attempts_of(house.fleet, job_id)
    manifests = await artifacts.manifests_of(house.fleet, job_id)
    notes = await house.fleet.read(lambda view: view.notes_of_job(job_id))
    with spoken(call):
        words = current()
        return await _job_page(
            call,
            "job_overview.html",
            "",
            attempts=[attempt for attempt in reversed(attempts) if attempt.accepted_at is not None],
            offers=len(attempts),
            manifests=manifests,
            samples=samples_of(manifests, 24),
            failure=_failure(attempts),
            funnel=funnel_texts(words, explained.funnel),
            fixes=fix_texts(words, explained),
            notes=list(reversed(notes))[:5],
            outcome_text=outcome_text,
            began_text=began_text,
        )


async def logs(call: Call[None]) -> Reply:
    attempts = await read_models.attempts_of(deps(call).fleet, call.path["id"])
    told = [attempt for attempt in attempts if attempt.accepted_at is not None]
    with spoken(call):
        return await _job_page(call, "job_logs.html", "logs", attempts=told, outcome_text=outcome_text)


async def metrics_tab(call: Call[None]) -> Reply:
    attempts = await read_models.attempts_of(deps(call).fleet, call.path["id"])
    return await _job_page(call, "job_metrics.html", "metrics", attempts=attempts)


async def checkpoints(call: Call[None]) -> Reply:
    manifests = await artifacts.manifests_of(deps(call).fleet, call.path["id"])
    return await _job_page(
        call,
        "job_checkpoints.html",
        "checkpoints",
        artifacts=[one for one in reversed(manifests) if one.kind == "artifact"],
        checkpoints=sorted(
            (one for one in manifests if one.kind == "checkpoint"),
            key=lambda one: one.step or 0,
            reverse=True,
        ),
        samples=samples_of(manifests),
    )


async def config(call: Call[None]) -> Reply:
    fleet, job_id = deps(call).fleet, call.path["id"]
    seen = await read_models.one_job(fleet, job_id)

    def look(view: View) -> tuple[Bundle, Bundle | None, int | None]:
        own = read_bundle(msgspec.json.decode(view.job_bundle(job_id) or b"{}"))
        earlier = _earlier_run(view, seen)
        return (own, *earlier)

    own, former, version = await fleet.read(look)
    with spoken(call):
        return await _job_page(
            call,
            "job_config.html",
            "config",
            text=json_text(msgspec.to_builtins(own)),
            differences=differences(former, own) if former else [],
            former_version=version,
        )


async def events(call: Call[None]) -> Reply:
    fleet, job_id = deps(call).fleet, call.path["id"]
    entries, notes, names = await fleet.read(
        lambda view: (view.job_events(job_id, EVENTS_SHOWN), view.notes_of_job(job_id), all_names(view))
    )
    with spoken(call):
        words = current()
        told = [
            *(
                Told(
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
            call, "job_events.html", "events", told=sorted(told, key=lambda one: one.at, reverse=True)
        )


async def _job_page(call: Call[Any], template: str, tab: str, **context: Any) -> Reply:
    fleet, job_id = deps(call).fleet, call.path["id"]
    seen = await read_models.one_job(fleet, job_id)
    owner = await fleet.read(lambda view: read_models.owner_name(view, seen.job.owner))
    own = not call.principal.only_own or seen.job.owner == call.principal.id
    with spoken(call):
        row: JobRow = job_row(seen)
        return page(
            call,
            template,
            job=seen.job,
            row=row,
            owner=owner,
            attempt=seen.attempt,
            checkpoint_step=seen.checkpoint_step,
            sentence=state_sentence(seen),
            target=target_name(current(), seen.job.requires.target),
            tab=tab,
            tabs=TABS,
            pace=pace_text(row.steps.rate),
            risk=risk_text(row.steps),
            priorities=PRIORITY_NAMES,
            may_cancel=own and call.principal.can("jobs.cancel") and not seen.job.terminal,
            may_retry=own and call.principal.can("jobs.retry") and seen.job.terminal,
            may_order=call.principal.can("queue.priority") and not seen.job.terminal,
            may_approve=call.principal.can("queue.approve") and seen.job.hold == "approval",
            runs=seen.job.state in (JobState.RUNNING, JobState.CANCELLING),
            **context,
        )


def _failure(attempts: list[Attempt]) -> Failure | None:
    """Of the newest try that failed, unless a later one went well."""
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


def _earlier_run(view: View, seen: SeenJob) -> tuple[Bundle | None, int | None]:
    """The version of the config before the one this job was submitted with."""
    job = seen.job
    former = view.config(job.config_name, job.config_version - 1) if job.config_version > 1 else None
    return (read_bundle(msgspec.json.decode(former.bundle)), former.version) if former else (None, None)


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return " · ".join(f"{name}: {value}" for name, value in pairs)


def _remark(note: JobNote) -> Told:
    data = ((name, str(value)) for name, value in note.data.items() if value not in (None, "", [], {}))
    return Told(at=note.at, what=note.text, who="", details=_joined(data), remark=True)


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
