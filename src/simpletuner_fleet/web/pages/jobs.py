"""Shows all jobs: what runs, what is next in the queue and why it waits, and what has ended.

The search is part of the address.
"""

from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs.finding import (
    FIRST_LARGEST,
    IN_START_ORDER,
    NEWEST_FIRST,
    JobOrder,
    JobSearch,
    JobSort,
    SearchWord,
    read_order,
)
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.jobs.states import AT_WORK, ENDED, TERMINAL, WAITING
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.ownership import may_steer
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.http.views.times import read_moment
from simpletuner_fleet.languages import N_
from simpletuner_fleet.orchestrator.steering import saved_views
from simpletuner_fleet.queries import finding
from simpletuner_fleet.queries.finding import FoundJobs
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.jobs.columns import COLUMNS, shown_columns
from simpletuner_fleet.web.parts.jobs.rows import JobRow, job_row, pace_text, risk_text
from simpletuner_fleet.web.parts.jobs.search import FIELDS, chips

PAGE_SIZE = 50
SECTION_SIZE = 20
MOST_ENDED = 10_000
"""Whoever looks for some of a million ended jobs, or sees some of them only, need not wait until all are counted."""
GROUPS: dict[str, tuple[str, list[JobState]]] = {
    "": (N_("All"), []),
    "running": (N_("Running"), list(AT_WORK)),
    "waiting": (N_("Waiting"), list(WAITING)),
    "failed": (N_("Failed"), [JobState.FAILED]),
    "ended": (N_("Ended"), list(ENDED)),
}
SORTS = {
    JobSort.CREATED: N_("Submitted"),
    JobSort.STARTED: N_("Started"),
    JobSort.FINISHED: N_("Finished"),
    JobSort.NAME: N_("Name"),
    JobSort.CONFIG: N_("Config"),
    JobSort.PRIORITY: N_("Priority"),
    JobSort.ATTEMPTS: N_("Attempts"),
    JobSort.QUEUE: N_("Start order"),
}


ACTS = (
    ("cancel", "jobs.cancel", N_("Cancel")),
    ("retry", "jobs.retry", N_("Retry")),
    ("priority", "queue.priority", N_("Set priority")),
    ("tags", "jobs.edit", N_("Change tags")),
    ("delete", "jobs.cancel", N_("Delete")),
)


class JobsPageQuery(JobSearch, kw_only=True):
    show: SearchWord = ""
    mine: bool = False
    sort: SearchWord = ""
    column: list[SearchWord] = field(default_factory=list)
    cursor: SearchWord | None = None


class JobSection(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    rows: list[JobRow]
    total: int
    at_least: bool
    in_line: bool = False
    all: str | None = None
    """The address of the whole list, where this is its beginning."""


async def jobs(call: Call[None]) -> Reply:
    query: JobsPageQuery = call.query
    if query.show not in GROUPS:
        raise NotFound(f"There is no list '{query.show[:40]}' of jobs.")
    search = asked_for(query, call.principal.id)
    order = _order(query)
    plain = not is_narrowed(query) and not query.show and not query.sort and not query.cursor
    with spoken(call):
        listing, sections = await (_all(call, query) if plain else _some(call, query, search, order))
    views = await saved_views.saved_views(deps_of(call).fleet, call.principal.owns_as)
    own_query = address(query).partition("?")[2]
    shown = sum(len(section.rows) for section in sections)
    return page(
        call,
        "jobs/jobs.html",
        query=query,
        fields=FIELDS,
        chips=chips(query),
        filtered=is_narrowed(query),
        groups=[
            (
                name,
                title,
                _count(listing, states),
                listing.ended_at_least and not TERMINAL.isdisjoint(states or ENDED),
            )
            for name, (title, states) in GROUPS.items()
        ],
        sections=[section for section in sections if section.rows],
        found=listing,
        last=listing.first + shown - 1,
        plain=plain,
        order=order,
        sorts=SORTS,
        first_largest=FIRST_LARGEST,
        columns=shown_columns(query.column),
        all_columns=COLUMNS,
        address=partial(address, query),
        pace_text=pace_text,
        risk_text=risk_text,
        views=views,
        origin_path=address(query),
        view_body=msgspec.json.encode({"query": own_query}).decode(),
        search_json=msgspec.json.encode(search, order="deterministic").decode(),
        acts=[(act, title) for act, permission, title in ACTS if call.principal.can(permission)],
        may_cancel=call.principal.can("jobs.cancel"),
        may_retry=call.principal.can("jobs.retry"),
    )


def asked_for(query: JobsPageQuery, caller: str) -> JobSearch:
    """Returns the page's query as a search of the API."""
    fields = {name: getattr(query, name) for name in JobSearch.__struct_fields__}
    if query.show:
        fields["status"] = GROUPS[query.show][1]
    if query.mine:
        fields["owner"] = caller
    return JobSearch(**fields)


def is_narrowed(query: JobsPageQuery) -> bool:
    return query.mine or any(getattr(query, name) for name in JobSearch.__struct_fields__)


def address(query: JobsPageQuery, **changes: Any) -> str:
    """Returns the address of the same list with these changes, from its first page unless they say otherwise."""
    values = {**asdict(query), "cursor": None, **changes}
    values["mine"] = "true" if values["mine"] else None
    return with_query("/jobs", **{name: value for name, value in values.items() if value is not False})


def _order(query: JobsPageQuery) -> JobOrder:
    if query.sort:
        return read_order(query.sort)
    return IN_START_ORDER if query.show == "waiting" else NEWEST_FIRST


async def _all(call: Call[None], query: JobsPageQuery) -> tuple[FoundJobs, list[JobSection]]:
    """Returns the running jobs first, then the queue in its order, then those that ended last."""
    working = await _found(call, JobSearch(status=list(AT_WORK)), NEWEST_FIRST, None, SECTION_SIZE)
    counted = working.by_state
    waiting = await _found(call, JobSearch(status=list(WAITING)), IN_START_ORDER, None, SECTION_SIZE, counted)
    ended = await _found(call, JobSearch(status=list(ENDED)), NEWEST_FIRST, None, SECTION_SIZE, counted)
    sections = [
        _section(call, "at-work", N_("Running jobs"), working, address(query, show="running")),
        _section(call, "in-line", N_("Waiting, in start order"), waiting, address(query, show="waiting")),
        _section(call, "ended", N_("Ended"), ended, address(query, show="ended")),
    ]
    return working, sections


def _section(call: Call[None], id: str, title: str, listing: FoundJobs, whole: str) -> JobSection:
    return JobSection(
        id=id,
        title=title,
        rows=_rows(call, listing),
        total=listing.total,
        at_least=listing.at_least,
        in_line=id == "in-line",
        all=whole if listing.next else None,
    )


async def _some(
    call: Call[None], query: JobsPageQuery, search: JobSearch, order: JobOrder
) -> tuple[FoundJobs, list[JobSection]]:
    listing = await _found(call, search, order, query.cursor, PAGE_SIZE)
    in_line = order.sort is JobSort.QUEUE
    title = N_("Waiting, in start order") if in_line else GROUPS[query.show][0]
    section = JobSection(
        id="found",
        title=title,
        rows=_rows(call, listing),
        total=listing.total,
        at_least=listing.at_least,
        in_line=in_line,
    )
    return listing, [section]


async def _found(
    call: Call[None],
    search: JobSearch,
    order: JobOrder,
    cursor: str | None,
    limit: int,
    by_state: dict[str, int] | None = None,
) -> FoundJobs:
    fleet = deps_of(call).fleet
    moment = partial(read_moment, now=fleet.clock.now())
    return await finding.find(
        fleet,
        search,
        moment,
        order=order,
        cursor=cursor,
        limit=limit,
        most_ended=MOST_ENDED,
        by_state=by_state,
    )


def _rows(call: Call[None], listing: FoundJobs) -> list[JobRow]:
    return [job_row(info, listing.owners, may_steer=may_steer(call, info.job)) for info in listing.rows]


def _count(listing: FoundJobs, states: list[JobState]) -> int:
    return sum(listing.by_state.get(state, 0) for state in states or JobState)


ROUTES = (Route("GET", "/jobs", jobs, "jobs.read", summary="All jobs", query=JobsPageQuery),)
