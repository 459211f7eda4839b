"""Shows the first page: what needs attention, what is free, one's own jobs, the last day and the queue."""

from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from simpletuner_fleet.core.money.reports import NOT_SHOWN
from simpletuner_fleet.core.people.visibility import knows_of
from simpletuner_fleet.core.training.samples import SAMPLES
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.http.api.deps import Deps, visibility_scope_of
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.code_texts import reason_label
from simpletuner_fleet.ports import StoredManifest
from simpletuner_fleet.queries import free_now, last_day, overview
from simpletuner_fleet.queries.attention import MACHINES_USELESS, POOLS_UNSEEN
from simpletuner_fleet.queries.free_now import FreeNow, GpuKind
from simpletuner_fleet.queries.last_day import LastDay, WorkerLane
from simpletuner_fleet.queries.overview import QueueSummary
from simpletuner_fleet.queries.worker_details import machines
from simpletuner_fleet.storage.metrics import curves
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts.attention import attention
from simpletuner_fleet.web.parts.cache import TimedCache
from simpletuner_fleet.web.parts.charts import sparkline
from simpletuner_fleet.web.parts.charts.lanes import lane_drawing
from simpletuner_fleet.web.parts.charts.timeline import TimeWindow, window_of
from simpletuner_fleet.web.parts.jobs.demo import demo_job
from simpletuner_fleet.web.parts.jobs.rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.parts.jobs.state import outcome_name
from simpletuner_fleet.web.parts.samples.files import Sample, samples_of

SPARK_POINTS = 60
THUMBNAILS = 4
LANES_SHOWN = 40
MOST_LANES = 400
MACHINES_SHOWN = 100
USAGE_KEPT_S = 60.0
LANES_KEPT_S = 15.0
SPARK_KEPT_S = 10.0
USERS_SHOWN = 8
FLEET_VIEW = "admin.workers"
MACHINES_VIEW = "machines.read"


class OverviewQuery(Struct, kw_only=True):
    view: Literal["", "mine", "fleet"] = ""
    all: bool = False
    hours: Annotated[int, Meta(ge=1, le=24)] = 24
    """How much of the last day the timeline shows, and how many hours ago that ends."""
    back: Annotated[float, Meta(ge=0, le=24)] = 0.0


class FleetQuery(Struct, kw_only=True):
    page: Annotated[int, Meta(ge=1, le=10_000)] = 1


class RunningJobCard(Struct, frozen=True, kw_only=True):
    row: JobRow
    spark: str
    pace: str
    risk: str


class KeptDay(Struct, frozen=True, kw_only=True):
    day: LastDay
    liveliest: list[WorkerLane]


NO_DAY = KeptDay(day=LastDay(lanes=[]), liveliest=[])


class Finished(Struct, frozen=True, kw_only=True):
    row: JobRow
    samples: list[Sample]
    download: str | None


async def home(call: Call[None]) -> Reply:
    deps, may_all = deps_of(call), call.principal.can(FLEET_VIEW)
    sees_machines = call.principal.can(MACHINES_VIEW)
    whole = call.query.view == "fleet" or (call.query.view == "" and may_all)
    owner = None if whole and may_all else call.principal.id
    state = await overview.look(deps.fleet, owner, machines=may_all, line=whole, hired=sees_machines)
    kept = (
        await _days_kept.get(deps.fleet, call.principal.id, partial(_made_day, deps.fleet))
        if may_all and whole
        else NO_DAY
    )
    now, day, window = deps.fleet.clock.now(), kept.day, window_of(call.query.hours, call.query.back)
    with spoken(call):
        return page(
            call,
            "workers/overview.html",
            state=state,
            whole=whole,
            may_all=may_all,
            first_run=not state.free.workers
            and not any(need.kind in (MACHINES_USELESS, POOLS_UNSEEN) for need in state.needs)
            and not (state.mine.running or state.mine.waiting or state.mine.ended),
            demo=demo_job("demo", "local" if _runs_here(deps) else "auto", 0),
            demo_starts_now=_runs_here(deps),
            needs=sorted((attention(need, owner) for need in state.needs), key=lambda one: not one.grave),
            sentence=start_sentence(state.free),
            running=[await _running(deps, job_row(one)) for one in state.mine.running],
            waiting=[job_row(one) for one in state.mine.waiting],
            ended=await _finished(deps.fleet, [job_row(one) for one in state.mine.ended]),
            reasons=_reasons(state.line) if state.line else [],
            next_jobs=[job_row(one) for one in state.line.first] if state.line else [],
            outcome_name=outcome_name,
            lanes=day.lanes[:MOST_LANES] if call.query.all else kept.liveliest,
            lanes_hidden=0 if call.query.all else len(day.lanes) - len(kept.liveliest),
            day=day,
            window=window,
            at=now,
            since=window.since(now),
            until=window.until(now),
            lane_drawing=lane_drawing,
            steps=_steps(window, all_lanes=call.query.all),
            usage=await _usage(deps.fleet, call.principal.id) if may_all else [],
            not_shown=NOT_SHOWN,
            pace_text=pace_text,
            risk_text=risk_text,
        )


def _runs_here(deps: Deps) -> bool:
    return deps.local_enabled and not deps.local_problem()


async def fleet_page(call: Call[None]) -> Reply:
    """Shows which GPUs there are and which are free, to everybody who may see jobs."""
    fleet = deps_of(call).fleet
    query = call.query
    free, scope = await free_now.look(fleet), visibility_scope_of(call)
    listing = await machines(
        fleet,
        lambda worker, _: knows_of(scope, worker.audience),
        lambda *_: False,
        query.page - 1,
        MACHINES_SHOWN,
        with_jobs=False,
    )
    with spoken(call):
        return page(
            call,
            "workers/fleet.html",
            free=free,
            sentence=start_sentence(free),
            found=listing,
            first=(query.page - 1) * MACHINES_SHOWN + 1,
            page_number=query.page,
            total=total_of,
        )


def start_sentence(free: FreeNow) -> str:
    if not free.workers:
        return _("No machine has joined yet.")
    if not free.starts_now and free.room:
        return _("A job that needs no GPU would start now.")
    if not free.starts_now:
        return _("Nothing is free: a new job will wait in the queue.")
    return ngettext(
        "A job with %(n)s GPU would start now.", "A job with %(n)s GPUs would start now.", free.starts_now
    )


def total_of(kind: GpuKind) -> int:
    return kind.free + kind.busy + kind.away


async def _running(deps: Deps, row: JobRow) -> RunningJobCard:
    """Returns a job's card. Its curve is cached, since it is read as a whole, and the page refreshes every second."""

    async def make_path() -> str:
        curve_set = await curves.curves(deps.storage, row.id, ["loss"], SPARK_POINTS)
        return sparkline.path(curve_set.series.get("loss", []))

    spark = await _sparks.get(deps.fleet, row.id, make_path)
    return RunningJobCard(row=row, spark=spark, pace=pace_text(row.steps.rate), risk=risk_text(row.steps))


async def _finished(fleet: Fleet, rows: list[JobRow]) -> list[Finished]:
    stored = await fleet.read(lambda view: [view.manifests_of_job(row.id) for row in rows])
    return [_finished_card(row, manifests) for row, manifests in zip(rows, stored, strict=True)]


def _finished_card(row: JobRow, manifests: list[StoredManifest]) -> Finished:
    results = [one for one in manifests if one.kind == "artifact" and one.name != SAMPLES]
    final = results[-1] if results else None
    return Finished(
        row=row,
        samples=samples_of(manifests, THUMBNAILS),
        download=f"/api/jobs/{row.id}/artifacts/{final.id}/archive" if final else None,
    )


def _reasons(line: QueueSummary) -> list[tuple[str, int]]:
    most = sorted(line.by_reason.items(), key=lambda item: -item[1])
    return [(reason_label(current(), code), count) for code, count in most]


def _liveliest(lanes: list[WorkerLane]) -> list[WorkerLane]:
    """Returns the workers with the most attempts first where not all fit; otherwise all in their order."""
    if len(lanes) <= LANES_SHOWN:
        return lanes
    return sorted(lanes, key=lambda lane: (-len(lane.bars), lane.name))[:LANES_SHOWN]


async def _made_day(fleet: Fleet) -> KeptDay:
    day = await last_day.lanes_of(fleet)
    return KeptDay(day=day, liveliest=_liveliest(day.lanes))


_usage_kept: TimedCache[list[tuple[str, float]]] = TimedCache(USAGE_KEPT_S)
_sparks: TimedCache[str] = TimedCache(SPARK_KEPT_S)
_days_kept: TimedCache[KeptDay] = TimedCache(LANES_KEPT_S)


def _steps(window: TimeWindow, *, all_lanes: bool) -> list[tuple[str, str, str, str | None]]:
    """Returns each step of the timeline as name, icon, title and address, which is None at the end of the range."""
    more = "&all=true" if all_lanes else ""

    def address(to: TimeWindow | None) -> str | None:
        return f"/?view=fleet{more}&hours={to.hours}&back={to.back:g}#timeline" if to else None

    return [
        ("earlier", "chevron-left", _("Earlier"), address(window.earlier)),
        ("later", "chevron-right", _("Later"), address(window.later)),
        ("wider", "\N{MINUS SIGN}", _("Zoom out"), address(window.wider)),
        ("closer", "+", _("Zoom in"), address(window.closer)),
    ]


async def _usage(fleet: Fleet, person_id: str) -> list[tuple[str, float]]:
    async def made() -> list[tuple[str, float]]:
        return await _owner_names(fleet, await last_day.gpu_hours(fleet))

    return await _usage_kept.get(fleet, person_id, made)


async def _owner_names(fleet: Fleet, hours: list[tuple[str, float]]) -> list[tuple[str, float]]:
    most = hours[:USERS_SHOWN]
    return await fleet.read(
        lambda view: [(owner if owner == NOT_SHOWN else name_of(view, owner), spent) for owner, spent in most]
    )


ROUTES = (
    Route("GET", "/", home, "jobs.read", summary="Overview", query=OverviewQuery),
    Route("GET", "/fleet", fleet_page, "jobs.read", summary="What is free", query=FleetQuery),
)
