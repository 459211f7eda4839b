"""Applies one act to all jobs that a search finds: confirmed by their number, some at a time, each by its rules."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import CountChanged, FleetError
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs.finding import NEWEST_FIRST, JobPlace, JobSearch, read_place, write_place
from simpletuner_fleet.core.jobs.job import TERMINAL, Job, JobState
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import JobFilter, View

JOBS_PER_TRANSACTION = 100
JOBS_PER_CALL = 500
REFUSALS_TOLD = 20

FilterOf = Callable[[View], JobFilter]
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


def narrowed(where: JobFilter, act: MassAct) -> JobFilter:
    """Keeps the matching jobs that the act applies to. A job that was retried already is not retried once more."""
    allowed = STATES[act]
    states = tuple(state for state in where.states or allowed if state in allowed)
    if not states:  # a filter without states would take them all
        return msgspec.structs.replace(where, waiting_groups=())
    return msgspec.structs.replace(where, states=states, not_retried=act is MassAct.RETRY)


async def count(fleet: Fleet, filter_of: FilterOf, act: MassAct) -> int:
    return await fleet.read(lambda view: sum(view.jobs_matching(narrowed(filter_of(view), act)).values()))


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
    """Acts on the next few hundred jobs, newest first: jobs that the act itself creates are not among them."""
    place = read_place(cursor, NEWEST_FIRST) if cursor else None
    if place is None:
        matching_now = await count(fleet, filter_of, act)
        if matching_now != expected:
            raise CountChanged(
                f"The number of matching jobs is {matching_now} now, not {expected}; nothing was changed.",
                count=matching_now,
            )

    def look(view: View) -> list[Job]:
        return view.jobs_sorted(narrowed(filter_of(view), act), NEWEST_FIRST, place, JOBS_PER_CALL + 1)

    jobs = await fleet.read(look)
    refusals: list[RefusedJob] = []
    done = 0
    for at in range(0, min(len(jobs), JOBS_PER_CALL), JOBS_PER_TRANSACTION):
        some = jobs[at : min(at + JOBS_PER_TRANSACTION, JOBS_PER_CALL)]
        acted = await fleet.act(_batch([job.id for job in some], step, act, search, actor))
        refusals += acted
        done += len(some) - len(acted)
    more = len(jobs) > JOBS_PER_CALL
    last = jobs[JOBS_PER_CALL - 1] if more else None
    return ActedOn(
        done=done,
        refused=len(refusals),
        refusals=refusals[:REFUSALS_TOLD],
        next=write_place(JobPlace(NEWEST_FIRST.text, last.seq, last.seq, 0)) if last else None,
    )


def _batch(
    job_ids: Sequence[str], step: JobStep, act: MassAct, search: JobSearch, actor: Actor
) -> Callable[[Transaction], list[RefusedJob]]:
    def run(transaction: Transaction) -> list[RefusedJob]:
        refused = []
        transaction.record(_chosen(len(job_ids), act, search, actor))
        for job_id in job_ids:
            try:
                step(transaction, transaction.job(job_id))
            except FleetError as error:
                refused.append(RefusedJob(id=job_id, code=error.code, detail=error.detail))
        return refused

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
