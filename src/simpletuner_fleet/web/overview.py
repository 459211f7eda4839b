"""The first page: what needs somebody, what is free, my jobs, the last day, the line."""

from typing import Literal

from msgspec import Struct

from simpletuner_fleet.core.samples import SAMPLES
from simpletuner_fleet.http.deps import Deps, deps
from simpletuner_fleet.http.routes import Call, Reply, Route
from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.orchestrator import overview, read_models
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.orchestrator.overview import DAY_S, GpuKind, Need, Overview, WorkerLane
from simpletuner_fleet.storage import artifacts, metrics
from simpletuner_fleet.web import sparkline
from simpletuner_fleet.web.job_rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.kept import Kept
from simpletuner_fleet.web.page import page, spoken
from simpletuner_fleet.web.reasons import reason_name
from simpletuner_fleet.web.samples import Sample, samples_of

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


class Running(Struct, frozen=True, kw_only=True):
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
    house, may_all = deps(call), call.principal.can(FLEET_VIEW)
    whole = call.query.view == "fleet" or (call.query.view == "" and may_all)
    seen = await overview.look(house.fleet, None if whole and may_all else call.principal.id, lanes=may_all)
    with spoken(call):
        return page(
            call,
            "overview.html",
            seen=seen,
            whole=whole,
            may_all=may_all,
            first_run=not seen.workers and not (seen.mine.running or seen.mine.waiting or seen.mine.ended),
            needs=[attention(need) for need in seen.needs if may_all or need.kind.startswith("jobs_")],
            sentence=start_sentence(seen),
            running=[await _running(house, job_row(one)) for one in seen.mine.running],
            waiting=[job_row(one) for one in seen.mine.waiting],
            ended=[await _finished(house, job_row(one)) for one in seen.mine.ended],
            reasons=[(reason_name(code), count) for code, count in _most(seen.line.by_reason)],
            next_jobs=[job_row(one) for one in seen.line.first],
            lanes=seen.lanes if call.query.all else _liveliest(seen.lanes),
            lanes_hidden=0 if call.query.all else max(0, len(seen.lanes) - LANES_SHOWN),
            since=house.fleet.clock.now() - DAY_S,
            day_s=DAY_S,
            usage=await _usage(house.fleet) if may_all else [],
            pace_text=pace_text,
            risk_text=risk_text,
        )


async def fleet_page(call: Call[None]) -> Reply:
    """What there is and what is free, for everybody who may see jobs."""
    fleet = deps(call).fleet
    seen = await overview.look(fleet, call.principal.id, lanes=False)
    with spoken(call):
        return page(
            call,
            "fleet.html",
            seen=seen,
            sentence=start_sentence(seen),
            workers=await read_models.workers(fleet),
            latest=fleet.gpu_history.latest,
            total=total_of,
        )


def start_sentence(seen: Overview) -> str:
    if not seen.workers:
        return _("No machine has joined yet.")
    if not seen.starts_now and seen.room:
        return _("A job that needs no GPU would start now.")
    if not seen.starts_now:
        return _("Nothing is free: a new job waits in line.")
    return ngettext(
        "A job with %(n)s GPU would start now.", "A job with %(n)s GPUs would start now.", seen.starts_now
    )


def total_of(kind: GpuKind) -> int:
    return kind.free + kind.busy + kind.away


def attention(need: Need) -> Attention:
    n = need.count
    match need.kind:
        case "workers_away":
            text = ngettext("%(n)s worker is offline", "%(n)s workers are offline", n)
            return _about(need, text, "/admin/workers?status=offline", "/admin/workers/", grave=True)
        case "jobs_failed":
            text = ngettext("%(n)s job failed in the last day", "%(n)s jobs failed in the last day", n)
            return _about(need, text, "/jobs?show=failed", "/jobs/", grave=True)
        case "jobs_hopeless":
            text = ngettext("%(n)s job can never start as it is", "%(n)s jobs can never start as they are", n)
            return _about(need, text, "/jobs?show=waiting", "/jobs/", grave=True)
        case "jobs_unapproved":
            text = ngettext("%(n)s job waits for an approval", "%(n)s jobs wait for an approval", n)
            return _about(need, text, "/jobs?show=waiting", "/jobs/")
        case "gpus_unusable":
            text = ngettext(
                "%(n)s worker has GPUs that are unhealthy or used by somebody else",
                "%(n)s workers have GPUs that are unhealthy or used by somebody else",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/")
        case "registrations_refused":
            text = ngettext(
                "%(n)s attempt to join was refused in the last day",
                "%(n)s attempts to join were refused in the last day",
                n,
            )
            return _about(need, text, "/admin/audit?event_type=worker.registration_failed", "")
        case _:
            text = ngettext(
                "%(n)s worker's token is old and should be rotated",
                "%(n)s workers' tokens are old and should be rotated",
                n,
            )
            return _about(need, text, "/admin/workers", "/admin/workers/")


def _about(need: Need, text: str, href: str, each: str, grave: bool = False) -> Attention:
    named = tuple((f"{each}{id}", name) for id, name in need.named)
    return Attention(text=text, href=href, grave=grave, named=named)


async def _running(house: Deps, row: JobRow) -> Running:
    """A curve is read whole, however long the training: not again for every look at a page that looks each second."""

    async def made() -> str:
        curves = await metrics.curves(house.fleet, house.blobs, row.id, ["loss"], SPARK_POINTS, None)
        return sparkline.path(curves.series.get("loss", []))

    spark = await _sparks_kept.get(house.fleet, row.id, made)
    return Running(row=row, spark=spark, pace=pace_text(row.steps.rate), risk=risk_text(row.steps))


async def _finished(house: Deps, row: JobRow) -> Finished:
    manifests = await artifacts.manifests_of(house.fleet, row.id)
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


_usage_kept: Kept[list[tuple[str, float]]] = Kept(USAGE_KEPT_S)
_sparks_kept: Kept[str] = Kept(SPARK_KEPT_S)


async def _usage(fleet: Fleet) -> list[tuple[str, float]]:
    async def made() -> list[tuple[str, float]]:
        return await _owner_names(fleet, await overview.gpu_hours(fleet))

    return await _usage_kept.get(fleet, "", made)


async def _owner_names(fleet: Fleet, hours: list[tuple[str, float]]) -> list[tuple[str, float]]:
    shown = hours[:USERS_SHOWN]
    return await fleet.read(
        lambda view: [(read_models.owner_name(view, owner), spent) for owner, spent in shown]
    )


ROUTES = (
    Route("GET", "/", home, "jobs.read", summary="Overview", query=OverviewQuery),
    Route("GET", "/fleet", fleet_page, "jobs.read", summary="What is free"),
)
