"""All jobs: what runs, who is next in line and why, and what has ended. Filters live in the address."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_
from simpletuner_fleet.ports import JobFilter
from simpletuner_fleet.queries import read_models
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.job_rows import JobRow, job_row, pace_text, risk_text

PAGE_SIZE = 100
AT_WORK = (JobState.RUNNING, JobState.CANCELLING, JobState.DISPATCHED)
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
GROUPS = {
    "": (N_("All"), ()),
    "running": (N_("Running"), AT_WORK),
    "waiting": (N_("Waiting"), (JobState.QUEUED, JobState.BLOCKED)),
    "failed": (N_("Failed"), (JobState.FAILED,)),
    "ended": (N_("Ended"), ENDED),
}


class JobsPageQuery(Struct, kw_only=True):
    show: str = ""
    q: Annotated[str, Meta(max_length=200)] = ""
    mine: bool = False
    worker: Annotated[str, Meta(max_length=200)] = ""
    cursor: str | None = None


class JobSection(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    rows: list[JobRow]
    in_line: bool = False
    following: str | None = None


async def jobs(call: Call[None]) -> Reply:
    fleet, query = deps_of(call).fleet, call.query
    if query.show not in GROUPS:
        raise NotFound(f"There is no list '{query.show[:40]}' of jobs.")
    where = JobFilter(
        owner=call.principal.id if query.mine else None,
        worker_id=query.worker or None,
        text=query.q.strip() or None,
    )
    filtered = bool(where.owner or where.worker_id or where.text)
    counts = (await read_models.queue_stats(fleet)).by_state
    with spoken(call):
        if query.show == "" and not filtered and not query.cursor:
            sections = await _all(fleet)
        elif query.show == "waiting" and not filtered:
            sections = [await _line(fleet, query.cursor, PAGE_SIZE)]
        else:
            sections = [await _some(fleet, where, query.show, query.cursor)]
    return page(
        call,
        "jobs/jobs.html",
        query=query,
        filtered=filtered,
        groups=[(name, title, _count(counts, states)) for name, (title, states) in GROUPS.items()],
        sections=[section for section in sections if section.rows],
        total=sum(counts.values()),
        with_query=with_query,
        pace_text=pace_text,
        risk_text=risk_text,
        may_cancel=call.principal.can("jobs.cancel"),
        may_retry=call.principal.can("jobs.retry"),
    )


async def _all(fleet: Fleet) -> list[JobSection]:
    """Returns what is at work first, then the line in its order, then the newest that ended."""
    working, _ = await read_models.jobs_page(fleet, JobFilter(states=AT_WORK), None, PAGE_SIZE)
    blocked, _ = await read_models.jobs_page(fleet, JobFilter(states=(JobState.BLOCKED,)), None, PAGE_SIZE)
    line = await _line(fleet, None, PAGE_SIZE)
    ended, following = await read_models.jobs_page(fleet, JobFilter(states=ENDED), None, PAGE_SIZE)
    more = with_query("/jobs", show="ended", cursor=following) if following else None
    return [
        JobSection(id="at-work", title=N_("Running"), rows=[job_row(info) for info in working]),
        JobSection(
            id="in-line",
            title=line.title,
            rows=[*line.rows, *(job_row(info) for info in blocked)],
            in_line=True,
            following=line.following,
        ),
        JobSection(id="ended", title=N_("Ended"), rows=[job_row(info) for info in ended], following=more),
    ]


async def _line(fleet: Fleet, cursor: str | None, size: int) -> JobSection:
    waiting, following = await read_models.queue_page(fleet, cursor, size)
    more = with_query("/jobs", show="waiting", cursor=following) if following else None
    rows = [job_row(info) for info in waiting]
    return JobSection(
        id="in-line", title=N_("Waiting, in start order"), rows=rows, in_line=True, following=more
    )


async def _some(fleet: Fleet, where: JobFilter, show: str, cursor: str | None) -> JobSection:
    title, states = GROUPS[show]
    narrowed = JobFilter(states=states, owner=where.owner, worker_id=where.worker_id, text=where.text)
    jobs, following = await read_models.jobs_page(fleet, narrowed, cursor, PAGE_SIZE)
    more = (
        with_query(
            "/jobs",
            show=show,
            q=where.text,
            mine="true" if where.owner else None,
            worker=where.worker_id,
            cursor=following,
        )
        if following
        else None
    )
    return JobSection(id="found", title=title, rows=[job_row(info) for info in jobs], following=more)


def _count(counts: dict[str, int], states: tuple[JobState, ...]) -> int:
    return sum(counts.get(state, 0) for state in states or JobState)


ROUTES = (Route("GET", "/jobs", jobs, "jobs.read", summary="All jobs", query=JobsPageQuery),)
