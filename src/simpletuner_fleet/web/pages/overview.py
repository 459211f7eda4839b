"""The first page: what needs somebody, what is free, my jobs, the last day, the line."""

from typing import Literal

from msgspec import Struct

from simpletuner_fleet.core.training.samples import SAMPLES
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.owners import name_of
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.code_texts import reason_label
from simpletuner_fleet.queries import overview, read_models
from simpletuner_fleet.queries.overview import DAY_S, GpuKind, Need, Overview, WorkerLane
from simpletuner_fleet.storage import artifacts
from simpletuner_fleet.storage.metrics import curves
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts import sparkline
from simpletuner_fleet.web.parts.cache import TimedCache
from simpletuner_fleet.web.parts.demo_job import demo_job
from simpletuner_fleet.web.parts.job_rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.parts.job_state import outcome_name
from simpletuner_fleet.web.parts.samples import Sample, samples_of

SPARK_POINTS = 60
THUMBNAILS = 4
LANES_SHOWN = 40
USAGE_KEPT_S = 60.0
SPARK_KEPT_S = 10.0
USERS_SHOWN = 8
FLEET_VIEW = "admin.workers"


class OverviewQuery(Struct, kw_only=True):
    view: Literal["", "mine", "fleet"] = ""
    all: bool = False


class RunningJobCard(Struct, frozen=True, kw_only=True):
    row: JobRow
    spark: str
    pace: str
    risk: str


class Finished(Struct, frozen=True, kw_only=True):
    row: JobRow
    samples: list[Sample]
    download: str | None


class Attention(Struct, frozen=True, kw_only=True):
    text: str
    href: str
    grave: bool
    named: tuple[tuple[str, str], ...]
    """(address, name)"""


async def home(call: Call[None]) -> Reply:
    deps, may_all = deps_of(call), call.principal.can(FLEET_VIEW)
    whole = call.query.view == "fleet" or (call.query.view == "" and may_all)
    state = await overview.look(deps.fleet, None if whole and may_all else call.principal.id, lanes=may_all)
    with spoken(call):
        return page(
            call,
            "workers/overview.html",
            state=state,
            whole=whole,
            may_all=may_all,
            first_run=not state.workers
            and not (state.mine.running or state.mine.waiting or state.mine.ended),
            demo=demo_job("demo", "local" if _runs_here(deps) else "auto", 0),
            demo_starts_now=_runs_here(deps),
            needs=[
                attention(need)
                for need in state.needs
                if may_all or need.kind.startswith(("jobs_", "endpoints_"))
            ],
            sentence=start_sentence(state),
            running=[await _running(deps, job_row(one)) for one in state.mine.running],
            waiting=[job_row(one) for one in state.mine.waiting],
            ended=[await _finished(deps, job_row(one)) for one in state.mine.ended],
            reasons=[(reason_label(current(), code), count) for code, count in _most(state.line.by_reason)],
            next_jobs=[job_row(one) for one in state.line.first],
            outcome_name=outcome_name,
            lanes=state.lanes if call.query.all else _liveliest(state.lanes),
            lanes_hidden=0 if call.query.all else max(0, len(state.lanes) - LANES_SHOWN),
            since=deps.fleet.clock.now() - DAY_S,
            day_s=DAY_S,
            usage=await _usage(deps.fleet) if may_all else [],
            pace_text=pace_text,
            risk_text=risk_text,
        )


def _runs_here(deps: Deps) -> bool:
    return deps.local_enabled and not deps.local_problem()


async def fleet_page(call: Call[None]) -> Reply:
    """Shows what there is and what is free, to everybody who may see jobs."""
    fleet = deps_of(call).fleet
    state = await overview.look(fleet, call.principal.id, lanes=False)
    with spoken(call):
        return page(
            call,
            "workers/fleet.html",
            state=state,
            sentence=start_sentence(state),
            workers=await read_models.workers(fleet),
            latest=fleet.gpu_history.latest,
            total=total_of,
        )


def start_sentence(state: Overview) -> str:
    if not state.workers:
        return _("No machine has joined yet.")
    if not state.starts_now and state.room:
        return _("A job that needs no GPU would start now.")
    if not state.starts_now:
        return _("Nothing is free: a new job will wait in the queue.")
    return ngettext(
        "A job with %(n)s GPU would start now.", "A job with %(n)s GPUs would start now.", state.starts_now
    )


def total_of(kind: GpuKind) -> int:
    return kind.free + kind.busy + kind.away


def attention(need: Need) -> Attention:
    return _untold(need) if need.kind == "endpoints_failing" else _of_the_fleet(need)


def _untold(need: Need) -> Attention:
    text = ngettext(
        "%(n)s notification cannot be delivered or is paused",
        "%(n)s notifications cannot be delivered or are paused",
        need.count,
    )
    return _about(need, text, "/notifications", "/notifications?endpoint=")


def _of_the_fleet(need: Need) -> Attention:
    n = need.count
    match need.kind:
        case "rows_unreadable":
            text = ngettext(
                "%(n)s unreadable database row was set aside: run simpletuner doctor server",
                "%(n)s unreadable database rows were set aside: run simpletuner doctor server",
                n,
            )
            return _about(need, text, "/admin/audit", "/admin/audit?target=", grave=True)
        case "workers_set_aside":
            text = ngettext(
                "%(n)s worker failed to start its jobs and is set aside",
                "%(n)s workers failed to start their jobs and are set aside",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/", grave=True)
        case "workers_away":
            text = ngettext("%(n)s worker is offline", "%(n)s workers are offline", n)
            return _about(need, text, "/admin/workers?status=offline", "/admin/workers/", grave=True)
        case "jobs_failed":
            text = ngettext(
                "%(n)s job failed in the last 24 hours", "%(n)s jobs failed in the last 24 hours", n
            )
            return _about(need, text, "/jobs?show=failed", "/jobs/", grave=True)
        case "jobs_without_results":
            text = ngettext(
                "the results of %(n)s job are not stored",
                "the results of %(n)s jobs are not stored",
                n,
            )
            return _about(need, text, "/jobs", "/jobs/", grave=True)
        case "jobs_hopeless":
            text = ngettext(
                "%(n)s job can never start as submitted", "%(n)s jobs can never start as submitted", n
            )
            return _about(need, text, "/jobs?show=waiting", "/jobs/", grave=True)
        case "jobs_unapproved":
            text = ngettext("%(n)s job is waiting for approval", "%(n)s jobs are waiting for approval", n)
            return _about(need, text, "/jobs?show=waiting", "/jobs/")
        case "gpus_unusable" | "gpus_idle":
            return _about(need, _gpus_text(need), "/admin/workers", "/admin/workers/")
        case "registrations_refused":
            text = ngettext(
                "%(n)s join attempt was refused in the last 24 hours",
                "%(n)s join attempts were refused in the last 24 hours",
                n,
            )
            return _about(need, text, "/admin/audit?event=worker.registration_failed", "")
        case _:
            text = ngettext(
                "%(n)s worker's token is old and should be rotated",
                "%(n)s workers' tokens are old and should be rotated",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/")


def _gpus_text(need: Need) -> str:
    if need.kind == "gpus_idle":
        return ngettext(
            "%(n)s worker has unused GPUs: it takes no more jobs at a time (--max-jobs auto)",
            "%(n)s workers have unused GPUs: they take no more jobs at a time (--max-jobs auto)",
            need.count,
        )
    return ngettext(
        "%(n)s worker has GPUs that are unhealthy or in use by another program",
        "%(n)s workers have GPUs that are unhealthy or in use by another program",
        need.count,
    )


def _about(need: Need, text: str, href: str, each: str, grave: bool = False) -> Attention:
    links = tuple((f"{each}{id}", name) for id, name in need.named)
    return Attention(text=text, href=href, grave=grave, named=links)


async def _running(deps: Deps, row: JobRow) -> RunningJobCard:
    """A curve is read whole, however long the training: not again for every look at a page that looks each second."""

    async def make_path() -> str:
        curve_set = await curves.curves(deps.storage, row.id, ["loss"], SPARK_POINTS)
        return sparkline.path(curve_set.series.get("loss", []))

    spark = await _sparks.get(deps.fleet, row.id, make_path)
    return RunningJobCard(row=row, spark=spark, pace=pace_text(row.steps.rate), risk=risk_text(row.steps))


async def _finished(deps: Deps, row: JobRow) -> Finished:
    manifests = await artifacts.manifests_of(deps.fleet, row.id)
    results = [one for one in manifests if one.kind == "artifact" and one.name != SAMPLES]
    final = results[-1] if results else None
    return Finished(
        row=row,
        samples=samples_of(manifests, THUMBNAILS),
        download=f"/api/jobs/{row.id}/artifacts/{final.id}/archive" if final else None,
    )


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _liveliest(lanes: list[WorkerLane]) -> list[WorkerLane]:
    """Where much happened comes first when there is no room for all; otherwise they stay in their order."""
    if len(lanes) <= LANES_SHOWN:
        return lanes
    return sorted(lanes, key=lambda lane: (-len(lane.bars), lane.name))[:LANES_SHOWN]


_usage_kept: TimedCache[list[tuple[str, float]]] = TimedCache(USAGE_KEPT_S)
_sparks: TimedCache[str] = TimedCache(SPARK_KEPT_S)


async def _usage(fleet: Fleet) -> list[tuple[str, float]]:
    async def made() -> list[tuple[str, float]]:
        return await _owner_names(fleet, await overview.gpu_hours(fleet))

    return await _usage_kept.get(fleet, "", made)


async def _owner_names(fleet: Fleet, hours: list[tuple[str, float]]) -> list[tuple[str, float]]:
    most = hours[:USERS_SHOWN]
    return await fleet.read(lambda view: [(name_of(view, owner), spent) for owner, spent in most])


ROUTES = (
    Route("GET", "/", home, "jobs.read", summary="Overview", query=OverviewQuery),
    Route("GET", "/fleet", fleet_page, "jobs.read", summary="What is free"),
)
