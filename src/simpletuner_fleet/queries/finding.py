"""Searches jobs by one filter, the same whether they are listed, counted or acted on."""

from collections import Counter
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.configs.datasets import read_id
from simpletuner_fleet.core.jobs.finding import (
    IN_START_ORDER,
    NEWEST_FIRST,
    JobOrder,
    JobPlace,
    JobSearch,
    check_tags,
    read_labels,
    read_place,
    sort_value,
    write_place,
)
from simpletuner_fleet.core.jobs.job import TERMINAL, Job, JobState
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE, REASONS
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import TOKEN, USER, name_of
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.explainer import reasons_of
from simpletuner_fleet.queries.read_models import NOT_COUNTED, SeenJob, ahead_of, with_reasons

WORKER = "w_"

ReadMoment = Callable[[str | None, str], float | None]


class FoundJobs(Struct, frozen=True, kw_only=True):
    rows: list[SeenJob]
    by_state: dict[str, int]
    """The number of jobs in each state that fit all else that was asked for."""
    total: int
    at_least: bool
    """Of the waiting jobs not all were asked for their reason, or of the ended ones not all were counted: more may fit."""
    ended_at_least: bool
    """So it is with the number of jobs in each state in which they have ended."""
    first: int
    """The number of the first row among all that fit; 0 where there are none."""
    next: str | None
    previous: str | None
    owners: dict[str, str]
    """The names of the owners of the rows, by id."""


async def find(
    fleet: Fleet,
    search: JobSearch,
    read_moment: ReadMoment,
    *,
    order: JobOrder = NEWEST_FIRST,
    cursor: str | None = None,
    limit: int,
    most_ended: int | None = None,
    by_state: dict[str, int] | None = None,
) -> FoundJobs:
    """Returns a page of those that fit, with their numbers; of ended jobs no more are counted than `most_ended`.

    `by_state` is what was counted for the same search with other states, and is not counted again.
    """
    now, standing = fleet.clock.now(), fleet.standing()
    place = read_place(cursor, order) if cursor else None

    def look(view: View) -> FoundJobs:
        where, more = filter_of(view, search, read_moment, now, standing)
        page = page_of_jobs(view, where, order, place, limit, now, standing, most_ended, by_state)
        return replace(page, at_least=more or page.at_least)

    is_short = fleet.sees_everything and _is_from_an_index(search, order)
    return await (fleet.read if is_short else fleet.scan)(look)


def _is_from_an_index(search: JobSearch, order: JobOrder) -> bool:
    """Tells whether such a page costs the same however many jobs there are, for whoever sees all of them.

    For others the jobs in each state are counted one by one.
    """
    return order in (NEWEST_FIRST, IN_START_ORDER) and search == JobSearch(status=search.status)


def page_of_jobs(
    view: View,
    where: JobFilter,
    order: JobOrder,
    place: JobPlace | None,
    limit: int,
    now: float,
    standing: FleetStanding,
    most_ended: int | None,
    by_state: dict[str, int] | None,
) -> FoundJobs:
    backwards = place is not None and place.backwards
    read = view.jobs_sorted(where, order.turned if backwards else order, place, limit + 1)
    more, jobs = len(read) > limit, read[:limit]
    if backwards:
        jobs.reverse()
    before = _before(place, len(jobs), more=more)
    if place is None and not more and not where.states:
        by_state = dict(Counter(str(job.state) for job in jobs))
    elif by_state is None:
        by_state = view.jobs_matching(replace(where, states=()), most_ended)
    # So many exactly: there are so many, or the others were not counted.
    ended_at_least = sum(by_state.get(state, 0) for state in TERMINAL) == most_ended
    at_least = ended_at_least and not TERMINAL.isdisjoint(where.states or JobState)
    total, shown = sum(by_state.get(state, 0) for state in where.states or JobState), before + len(jobs)
    if at_least:
        is_last = not more and not backwards
        total, at_least = shown if is_last else max(total, shown + more), not is_last
    return FoundJobs(
        rows=_seen(view, jobs, order, where, now, standing),
        by_state=by_state,
        total=total,
        at_least=at_least,
        ended_at_least=ended_at_least,
        first=before + 1 if jobs else 0,
        next=_cursor(order, jobs[-1], shown) if jobs and (more or backwards) else None,
        previous=_cursor(order, jobs[0], before, backwards=True)
        if jobs and place is not None and (more or not backwards)
        else None,
        owners={owner: name_of(view, owner) for owner in {job.owner for job in jobs}},
    )


def _before(place: JobPlace | None, rows: int, *, more: bool) -> int:
    if place is None:
        return 0
    if not place.backwards:
        return place.shown
    return max(1, place.shown - rows) if more else 0


def _cursor(order: JobOrder, job: Job, shown: int, *, backwards: bool = False) -> str:
    return write_place(JobPlace(order.text, sort_value(job, order.sort), job.seq, shown, backwards))


def _seen(
    view: View, jobs: list[Job], order: JobOrder, where: JobFilter, now: float, standing: FleetStanding
) -> list[SeenJob]:
    in_line = order == IN_START_ORDER and not where.narrows
    return with_reasons(view, jobs, now, standing, ahead_of(view, jobs) if in_line else NOT_COUNTED)


def filter_of(
    view: View, search: JobSearch, read_moment: ReadMoment, now: float, standing: FleetStanding
) -> tuple[JobFilter, bool]:
    """Returns the filter for a search, and whether it may leave out jobs that fit.

    Raises Invalid for words that mean nothing.
    """
    where = JobFilter(
        states=tuple(dict.fromkeys(search.status)),
        owner=_owner(view, search.owner),
        worker_id=_worker(view, search.worker),
        config_name=search.config or None,
        trainer=search.trainer or None,
        dataset=read_id(search.dataset, "$.dataset") if search.dataset else None,
        labels=read_labels(search.label),
        tags=check_tags([tag for tag in search.tag if tag], "$.tag"),
        created_since=read_moment(search.since, "$.since"),
        created_until=read_moment(search.until, "$.until"),
        finished_since=read_moment(search.ended_since, "$.ended_since"),
        finished_until=read_moment(search.ended_until, "$.ended_until"),
        text=(search.q or "").strip() or None,
    )
    return _with_reason(view, where, search.reason, now, standing) if search.reason else (where, False)


def _owner(view: View, text: str | None) -> str | None:
    """Returns the owner's id; a name that nobody has is returned as it is, so that nothing is found."""
    if not text or text.startswith((USER, TOKEN)):
        return text or None
    user = view.user_by_name(text)
    return user.id if user else next((one.id for one in view.api_tokens() if one.name == text), text)


def _worker(view: View, text: str | None) -> str | None:
    if not text or text.startswith(WORKER):
        return text or None
    worker = view.worker_by_name(text)
    return worker.id if worker else text


def _with_reason(
    view: View, where: JobFilter, reason: str, now: float, standing: FleetStanding
) -> tuple[JobFilter, bool]:
    """Adds a reason: a code, its kind or `impossible` says why a job waits; all else is why one ended."""
    codes = {code for code, row in REASONS.items() if reason.upper() == code or reason.lower() == row.kind}
    codes |= IMPOSSIBLE if reason.lower() == "impossible" else set()
    if not codes:
        return replace(where, reason=reason), False
    reasons = reasons_of(view, where, now, standing)
    groups = tuple(group.key for group in reasons.groups if group.code in codes)
    return replace(where, waiting_groups=groups), reasons.more


async def few(fleet: Fleet, search: JobSearch, read_moment: ReadMoment, limit: int) -> list[Job]:
    """Returns the newest jobs that fit, uncounted, for somebody who is still typing."""
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> list[Job]:
        where, _ = filter_of(view, search, read_moment, now, standing)
        return view.jobs_sorted(where, NEWEST_FIRST, None, limit)

    return await fleet.scan(look)


async def workers_named(fleet: Fleet, text: str, limit: int) -> list[tuple[Worker, str]]:
    """Returns the workers with this text in their name or id, and the status of each."""
    asked = text.casefold()

    def look(view: View) -> list[tuple[Worker, str]]:
        named = [one for one in view.workers() if asked in f"{one.name} {one.id}".casefold()]
        return [
            (one, str(one.status(bool(view.live_attempts_of_worker(one.id)))))
            for one in sorted(named, key=lambda one: one.name.casefold())[:limit]
        ]

    return await fleet.read(look)
