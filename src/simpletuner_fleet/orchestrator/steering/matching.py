"""Applies one act to all jobs that a search finds: confirmed by their number, some at a time, each by its rules."""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import CountChanged, FleetError
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs.finding import NEWEST_FIRST, JobPlace, JobSearch, read_place, write_place
from simpletuner_fleet.core.jobs.job import TERMINAL, Job, JobState
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import scope_of
from simpletuner_fleet.ports import JobFilter, View

JOBS_PER_TRANSACTION = 100
JOBS_PER_CALL = 500
REFUSALS_TOLD = 20

FilterOf = Callable[[View], tuple[JobFilter, bool]]
"""Returns the filter of a search, and whether it may leave out jobs that match."""
JobStep = Callable[[Transaction, Job], None]


class MassAct(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    PRIORITY = "priority"
    TAGS = "tags"
    DELETE = "delete"


STATES: dict[MassAct, tuple[str, ...]] = {
    MassAct.CANCEL: tuple(
        state for state in JobState if state not in TERMINAL and state is not JobState.CANCELLING
    ),
    MassAct.RETRY: tuple(TERMINAL),
    MassAct.PRIORITY: tuple(state for state in JobState if state not in TERMINAL),
    MassAct.TAGS: tuple(JobState),
    MassAct.DELETE: tuple(TERMINAL),
}


class RefusedJob(Struct, frozen=True, kw_only=True):
    id: str
    code: str
    detail: str


class ActedOn(Struct, frozen=True, kw_only=True):
    done: int
    refused: int
    refusals: list[RefusedJob]
    """The first few of them."""
    next: str | None
    """Where to go on; None when all have had their turn."""
    at_least: bool
    """Of the waiting jobs not all were asked for their reason: others may match as well, and had no turn."""


class MatchCount(Struct, frozen=True, kw_only=True):
    count: int
    at_least: bool


class MatchingJobs(Struct, frozen=True, kw_only=True):
    jobs: list[Job]
    """As many as one call acts on, and one more where there is one."""
    where: JobFilter
    at_least: bool


def narrowed(where: JobFilter, act: MassAct) -> JobFilter:
    """Keeps the matching jobs that the act applies to. A job that was retried already is not retried once more."""
    allowed = STATES[act]
    states = tuple(state for state in where.states or allowed if state in allowed)
    if not states:  # a filter without states would take them all
        return msgspec.structs.replace(where, ids=())
    return msgspec.structs.replace(where, states=states, not_retried=act is MassAct.RETRY)


def _asked(view: View, filter_of: FilterOf, act: MassAct) -> tuple[JobFilter, bool]:
    """Returns the filter of the jobs that the act applies to, and whether it may leave out some."""
    asked, at_least = filter_of(view)
    where = narrowed(asked, act)
    return where, at_least and where.ids is None and not set(WAITING).isdisjoint(where.states)


async def count(fleet: Fleet, filter_of: FilterOf, act: MassAct) -> MatchCount:
    def look(view: View) -> MatchCount:
        where, at_least = _asked(view, filter_of, act)
        return MatchCount(count=sum(view.jobs_matching(where).values()), at_least=at_least)

    return await fleet.scan(look)


async def act_on_all(
    fleet: Fleet,
    filter_of: FilterOf,
    act: MassAct,
    step: JobStep,
    *,
    search: JobSearch,
    actor: Actor,
    expected: int,
    cursor: str | None,
) -> ActedOn:
    """Acts on the next few hundred jobs, newest first: jobs that the act itself creates are not among them.

    A job that matches no more when its turn comes, since somebody else has acted on it meanwhile, is passed over.
    """
    place = read_place(cursor, NEWEST_FIRST) if cursor else None

    def look(view: View) -> MatchingJobs:
        where, at_least = _asked(view, filter_of, act)
        if place is None:  # counted in the look that chooses them: a moment later there may be others
            _check_count(view, where, expected)
        jobs = view.jobs_sorted(where, NEWEST_FIRST, place, JOBS_PER_CALL + 1)
        seen = msgspec.structs.replace(where, seen_by=scope_of(view))
        return MatchingJobs(jobs=jobs, where=seen, at_least=at_least)

    chosen = await fleet.scan(look)
    jobs = chosen.jobs
    refusals: list[RefusedJob] = []
    done = 0
    for at in range(0, min(len(jobs), JOBS_PER_CALL), JOBS_PER_TRANSACTION):
        some = tuple(job.id for job in jobs[at : min(at + JOBS_PER_TRANSACTION, JOBS_PER_CALL)])
        these = msgspec.structs.replace(chosen.where, ids=some)
        acted, refused = await fleet.act(_batch(these, step, act, search, actor))
        refusals += refused
        done += acted
    more = len(jobs) > JOBS_PER_CALL
    last = jobs[JOBS_PER_CALL - 1] if more else None
    return ActedOn(
        done=done,
        refused=len(refusals),
        refusals=refusals[:REFUSALS_TOLD],
        next=write_place(JobPlace(NEWEST_FIRST.text, last.seq, last.seq, 0)) if last else None,
        at_least=chosen.at_least,
    )


def _check_count(view: View, where: JobFilter, expected: int) -> None:
    matching_now = sum(view.jobs_matching(where).values())
    if matching_now != expected:
        raise CountChanged(
            f"The number of matching jobs is {matching_now} now, not {expected}; nothing was changed.",
            count=matching_now,
        )


def _batch(
    where: JobFilter, step: JobStep, act: MassAct, search: JobSearch, actor: Actor
) -> Callable[[Transaction], tuple[int, list[RefusedJob]]]:
    """Returns the step that acts on those that match now; it tells how many it acted on, and which were refused."""

    def run(transaction: Transaction) -> tuple[int, list[RefusedJob]]:
        matching = transaction.tx.jobs_page(where, None, JOBS_PER_TRANSACTION)
        if not matching:
            return 0, []
        refused = []
        transaction.record(_chosen(len(matching), act, search, actor))
        for job in matching:
            try:
                step(transaction, transaction.job(job.id))
            except FleetError as error:
                refused.append(RefusedJob(id=job.id, code=error.code, detail=error.detail))
        return len(matching) - len(refused), refused

    return run


def _chosen(jobs: int, act: MassAct, search: JobSearch, actor: Actor) -> Event:
    """Returns the event that says how the jobs were chosen. What became of each is in its own entry."""
    asked = {name: value for name, value in msgspec.structs.asdict(search).items() if value}
    return Event(
        type=EventType.JOBS_CHOSEN,
        actor=actor,
        target_type="job",
        target_id="",
        details={"act": str(act), "jobs": jobs, "search": asked},
    )
