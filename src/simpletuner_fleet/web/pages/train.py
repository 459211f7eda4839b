"""Shows the page that configures and submits a job, and forecasts its start with every change."""

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle, read_bundle
from simpletuner_fleet.core.configs.options import Option, Options
from simpletuner_fleet.core.errors import FleetError, Invalid
from simpletuner_fleet.core.jobs.job import Job, JobState, Target
from simpletuner_fleet.core.jobs.submitting.submit_request import SET_PRIORITY, SUBMIT_LOCAL
from simpletuner_fleet.core.people.ownership import may_change
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.policy import PRIORITY_NAMES
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.deps import visibility_scope_of
from simpletuner_fleet.http.api.jobs.queue import MAX_SUBMIT_BYTES, SubmitBody, submitter
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_, _, current, ngettext
from simpletuner_fleet.languages.code_texts import fix_texts, funnel_texts, reason_text
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.estimates import estimate_texts
from simpletuner_fleet.orchestrator import submit, trainer_options
from simpletuner_fleet.orchestrator.configs import bundle_of
from simpletuner_fleet.orchestrator.submit import Submitted
from simpletuner_fleet.orchestrator.trainer_options import CheckedOptions
from simpletuner_fleet.ports import ConfigVersion
from simpletuner_fleet.queries import drafts
from simpletuner_fleet.queries.drafts import Draft, LastRun
from simpletuner_fleet.web.frame.environment import data_block, environment
from simpletuner_fleet.web.frame.page import PAGE_HEADERS, page, spoken
from simpletuner_fleet.web.parts.jobs.differences import Differences, differences
from simpletuner_fleet.web.parts.jobs.train_fields import FIELDS, STARTER_NAMES, STARTERS

PRIORITIES = {
    "urgent": N_("Urgent"),
    "high": N_("High"),
    "normal": N_("Normal"),
    "low": N_("Low"),
}
DIFFERENCES_SHOWN = 100
ASKED_FOR_OPTIONS = "simpletuner"
"""The trainer whose settings only a worker that has it can judge."""
HOUR_S = 3600.0


class TrainQuery(Struct, kw_only=True):
    config: Annotated[str, Meta(max_length=200)] = ""
    version: Annotated[int, Meta(ge=1)] | None = None
    job: Annotated[str, Meta(max_length=200)] = ""
    new: Annotated[str, Meta(max_length=40)] = ""
    resume_from: Annotated[str, Meta(max_length=200)] = ""


class JobForm(Struct, frozen=True, kw_only=True):
    """Holds the values that the job panel of the page begins with."""

    target: str = Target.WORKER
    gpus: int | None = None
    nodes: int | None = None
    min_vram_gb: float | None = None
    max_price_micros: int | None = None
    max_cost_micros: int | None = None
    on_max_cost: str = "stop"
    labels: tuple[tuple[str, str], ...] = ()
    priority: str = "normal"
    time_limit_h: float | None = None
    on_time_limit: str = "fail"
    name: str = ""


class FieldProblem(Struct, frozen=True, kw_only=True):
    detail: str
    path: str
    next: str


class SettingsFinding(Struct, frozen=True, kw_only=True):
    """Describes an error or a warning that the trainer itself would report for a setting."""

    is_error: bool
    setting: str
    detail: str
    next: str


class WrongField(Struct, frozen=True):
    path: str
    text: str
    """What is wrong with it and what would help, as it stands beside the field."""


class Outlook(Struct, frozen=True, kw_only=True):
    """Describes what would happen to the job if it were submitted now."""

    look: str
    headline: str
    matches: str
    reason: str
    then: list[str]
    cost: list[str]
    """What it would cost, then how sure that is; empty where no price is known."""
    funnel: list[tuple[int, str]]
    fixes: list[str]
    no_workers: bool


class ChangesSince(Struct, frozen=True, kw_only=True):
    """Holds what changed since the saved version, and since what the page compares with: the last run, if any."""

    saved: Differences
    base: Differences


class Checked(Struct, frozen=True, kw_only=True):
    """Holds the answer to a check of the form. `outlook` and `changes` are HTML fragments of the page."""

    ok: bool
    """The job could be sent off."""
    sound: bool
    """The config could be saved."""
    wrong: list[WrongField]
    """The fields that are wrong, the first to be looked at first."""
    odd: list[WrongField]
    """The fields that look odd to the trainer, and keep nothing from being sent off."""
    changed: bool
    saves_as: int
    may_save: bool
    """A config of this name is the reader's to change, or there is none yet."""
    outlook: str
    changes: str


async def train(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    draft = await _draft(call)
    around = await drafts.surroundings(
        deps.fleet, visibility_scope_of(call), datasets=call.principal.can("data.read")
    )
    bundle = msgspec.to_builtins(draft.bundle)
    schema = await trainer_options.newest_options(deps.fleet, ASKED_FOR_OPTIONS)
    with spoken(call):
        return page(
            call,
            "training/train.html",
            draft=draft,
            resume_from=call.query.resume_from,
            form=form_of(draft.job, priorities_for(call)),
            around=around,
            pools=around.pools if deps.provisioner else [],
            currency=deps.fleet.organisation.prices.currency,
            trainers=sorted({*FIELDS, *around.trainers, draft.bundle.trainer}),
            fields=FIELDS,
            starters=STARTER_NAMES,
            new=query.new,
            priorities=priorities_for(call),
            may_save=call.principal.can("configs.write"),
            may_local=call.principal.can(SUBMIT_LOCAL),
            may_upload=call.principal.can("data.write"),
            schema=schema,
            told_by=ASKED_FOR_OPTIONS,
            data=data_block(
                {"bundle": bundle, "known": _known_keys(), "options": {ASKED_FOR_OPTIONS: _options(schema)}}
            ),
        )


async def check(call: Call[SubmitBody]) -> Reply:
    """Checks the form by the rules of a submission and stores nothing; answers in the reader's language."""
    deps, request = deps_of(call), call.body
    name = request.config_name or ""
    former, saved = await drafts.before(deps.fleet, name) if name else (None, None)
    dry_run = replace(request, dry_run=True, no_wait=False, idempotency_key=None)
    result: Submitted | FleetError
    try:
        result = await submit.submit(deps.fleet, submitter(call), dry_run, local_enabled=deps.local_enabled)
    except FleetError as error:
        result = error
    bundle = _sound(request)
    options = await trainer_options.check_config(deps.fleet, bundle) if bundle else None
    changes = await _changes_since(bundle, former, saved) if bundle else None
    with spoken(call):
        checked = _checked(call, result, bundle, options, changes, former, saved)
        return Reply(body=msgspec.json.encode(checked), headers=PAGE_HEADERS)


async def _draft(call: Call[None]) -> Draft:
    query = call.query
    draft = None
    if query.new not in STARTERS:
        draft = await drafts.draft_of(
            deps_of(call).fleet,
            call.principal.id,
            name=query.config or None,
            version=query.version,
            job_id=query.job or None,
        )
    starter = STARTERS.get(query.new, STARTERS["simpletuner"])
    return draft or Draft(name="", version=None, bundle=read_bundle(starter))


def priorities_for(call: Call[Any]) -> dict[str, str]:
    """Returns the priorities that the reader may submit a job with."""
    may_raise = call.principal.can(SET_PRIORITY)
    return {name: title for name, title in PRIORITIES.items() if may_raise or PRIORITY_NAMES[name] <= 0}


def form_of(job: Job | None, priorities: Collection[str]) -> JobForm:
    """Returns the values of a job, to submit it again; a priority that the user may not set becomes normal."""
    if job is None:
        return JobForm()
    names = {PRIORITY_NAMES[name]: name for name in priorities}
    return JobForm(
        target=job.requires.target,
        gpus=job.requires.gpus,
        nodes=job.requires.nodes,
        min_vram_gb=job.requires.min_vram_gb or None,
        max_price_micros=job.requires.max_price_micros,
        max_cost_micros=job.max_cost_micros,
        on_max_cost=job.on_max_cost,
        labels=job.requires.labels,
        priority=names.get(job.priority, "normal"),
        time_limit_h=job.time_limit_s / HOUR_S if job.time_limit_s else None,
        on_time_limit=job.on_time_limit,
        name=job.name or "",
    )


def _known_keys() -> dict[str, list[str]]:
    return {trainer: [key for field in fields for key in field.keys] for trainer, fields in FIELDS.items()}


def _options(schema: Options | None) -> list[Option]:
    """Returns the options that can be set, in the order of their names."""
    return sorted(schema.options, key=lambda option: option.names[:1]) if schema else []


def _checked(
    call: Call[SubmitBody],
    result: Submitted | FleetError,
    bundle: Bundle | None,
    options: CheckedOptions | None,
    changes: ChangesSince | None,
    former: LastRun | None,
    saved: ConfigVersion | None,
) -> Checked:
    problem = problem_of(result) if isinstance(result, FleetError) else None
    findings = findings_of(options) if options else []
    wrong, odd = (
        [
            WrongField(f"settings.{finding.setting}", f"{finding.detail} {finding.next}".strip())
            for finding in findings
            if finding.is_error is is_error and finding.setting
        ]
        for is_error in (True, False)
    )
    if problem and problem.path:
        wrong.insert(0, WrongField(problem.path, f"{problem.detail} {problem.next}".strip()))
    return Checked(
        ok=problem is None,
        sound=bundle is not None,
        wrong=wrong,
        odd=odd,
        changed=changes is not None and (saved is None or bool(changes.saved.rows)),
        saves_as=(saved.version if saved else 0) + 1,
        may_save=saved is None or may_change(writer_of(call), saved.owner),
        outlook=_piece(
            "training/train_outlook.html",
            problem=problem,
            outlook=None if isinstance(result, FleetError) else outlook(result),
            findings=findings,
            release=options.version if options and bundle and bundle.trainer == ASKED_FOR_OPTIONS else None,
            unchecked=bundle is not None
            and bundle.trainer == ASKED_FOR_OPTIONS
            and not (options and options.version),
            may_create=call.principal.can("admin.workers"),
        ),
        changes=_changes(changes.base, former, saved) if changes else "",
    )


def _sound(request: SubmitBody) -> Bundle | None:
    """Returns the config if it is valid: it may be worth saving even if no worker can run it now."""
    try:
        return read_bundle(request.config)
    except Invalid:
        return None


def problem_of(error: FleetError) -> FieldProblem:
    words = current()
    errors = error.params.get("errors") if isinstance(error, Invalid) else None
    return FieldProblem(
        detail=detail_text(words, error.detail),
        path=_field_path(str(errors[0]["path"])) if errors else "",
        next=detail_text(words, error.next or ""),
    )


def _field_path(path: str) -> str:
    """Returns the path as the form has it: without the root, and without dashes before a setting's name."""
    part, dot, name = path.removeprefix("$").removeprefix(".").partition(".")
    return part + dot + (name.lstrip("-") if part == "settings" else name)


def findings_of(options: CheckedOptions) -> list[SettingsFinding]:
    """Returns the findings in the reader's language, errors before warnings."""
    words = current()
    findings = [
        SettingsFinding(
            is_error=one.level == "error",
            setting=one.path.removeprefix("$.settings").removeprefix(".").lstrip("-"),
            detail=detail_text(words, one.detail),
            next=detail_text(words, one.next or ""),
        )
        for one in options.findings
    ]
    return sorted(findings, key=lambda finding: not finding.is_error)


def outlook(result: Submitted) -> Outlook:
    why, fleet = result.explanation, result.fleet
    possible, free = (fleet.possible, fleet.free) if fleet else (0, 0)
    look = "ok" if result.would_start_now else "bad" if not possible else "warn"
    words = current()
    return Outlook(
        look=look,
        headline=_headline(result, possible),
        matches=ngettext(
            "Matches %(n)s worker, %(idle)s idle", "Matches %(n)s workers, %(idle)s idle", possible, idle=free
        ),
        reason=_reason(result, free),
        then=_what_happens(result, possible),
        cost=estimate_texts(result.estimate) if result.estimate else [],
        funnel=funnel_texts(words, fleet.funnel) if fleet and not result.would_start_now else [],
        fixes=fix_texts(words, why) if why else [],
        no_workers=why is not None and why.code is Code.NO_WORKERS,
    )


def _reason(result: Submitted, free: int) -> str:
    why = result.explanation
    if why is None:
        return ""
    if free and why.code in (Code.ALL_MATCHING_BUSY, Code.BEHIND_OTHERS, Code.OVER_SHARE):
        return _(
            "Matching workers are free, but other jobs come first or the workers have not reported back yet."
        )
    return reason_text(current(), why)


def _headline(result: Submitted, possible: int) -> str:
    if result.would_start_now:
        return _("Would start now")
    if result.job.state is JobState.BLOCKED:
        return _("Would wait for an approval or another job")
    return _("Would wait") if possible else _("Cannot start as configured")


def _what_happens(result: Submitted, possible: int) -> list[str]:
    if result.would_start_now:
        return [_("A matching worker is offered the job at once.")]
    steps = []
    if result.position is not None:
        steps.append(_("The job is at position %(place)s in the queue.", place=result.position))
    if possible:
        steps.append(_("It starts automatically when its turn comes."))
    else:
        steps.append(_("It waits until a matching worker joins, or until you cancel it."))
    return steps


async def _changes_since(bundle: Bundle, former: LastRun | None, saved: ConfigVersion | None) -> ChangesSince:
    since_saved = await differences(bundle_of(saved), bundle) if saved else Differences()
    base = await differences(former.bundle, bundle) if former else since_saved
    return ChangesSince(saved=since_saved, base=base)


def _changes(changes: Differences, former: LastRun | None, saved: ConfigVersion | None) -> str:
    unlisted = len(changes.rows[DIFFERENCES_SHOWN:])
    return _piece(
        "training/train_changes.html",
        former=former.job if former else None,
        saved=saved.version if saved else None,
        changes=replace(changes, rows=changes.rows[:DIFFERENCES_SHOWN], hidden=changes.hidden + unlisted),
    )


def _piece(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)


ROUTES = (
    Route("GET", "/train", train, "queue.submit", summary="Configure a training", query=TrainQuery),
    Route(
        "POST",
        "/train/check",
        check,
        "queue.submit",
        SubmitBody,
        summary="What would become of a job",
        max_body_bytes=MAX_SUBMIT_BYTES,
    ),
)
