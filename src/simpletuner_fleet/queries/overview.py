"""Summarizes the fleet on one page: what is free, what needs a person, and who waits."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.finding import NEWEST_FIRST
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.jobs.states import AT_WORK, ENDED, WAITING
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import unreadable_now
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.visibility import scope_of
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries import attention
from simpletuner_fleet.queries.attention import Need
from simpletuner_fleet.queries.explainer import Explainer, WaitingReasons, reasons_of
from simpletuner_fleet.queries.free_now import FreeNow, free_now
from simpletuner_fleet.queries.read_models import SeenJob, ahead_of, with_reasons

NEXT_IN_LINE = 3


class QueueSummary(Struct, frozen=True, kw_only=True):
    waiting: int
    by_reason: dict[str, int]
    at_least: bool
    """There are so many kinds of waiting jobs that not all were asked for their reason."""
    oldest_at: float | None
    first: tuple[SeenJob, ...]


class Mine(Struct, frozen=True, kw_only=True):
    running: list[SeenJob]
    waiting: list[SeenJob]
    ended: list[SeenJob]


class Overview(Struct, frozen=True, kw_only=True):
    free: FreeNow
    needs: list[Need]
    line: QueueSummary | None
    mine: Mine


async def look(
    fleet: Fleet, owner: str | None, *, machines: bool = True, line: bool = True, hired: bool = False
) -> Overview:
    """Reads everything the front page shows; `owner` narrows what is called mine, None means everybody's.

    With `hired`, it includes which machines of pools cost and do nothing. Without `machines`, it leaves out what those
    who maintain them have to do; without `line`, the whole queue.
    """
    now, policy, standing = fleet.clock.now(), fleet.policy, fleet.standing()
    unreadable_documents = fleet.organisation.unreadable

    def read(view: View) -> Overview:
        explainer = Explainer(view, standing)
        roster = explainer.roster
        unreadable = (*unreadable_documents, *unreadable_now(view))
        own = reasons_of(view, JobFilter(owner=owner), now, standing, known=explainer)
        return Overview(
            free=free_now(roster, standing, scope_of(view)),
            needs=[
                *(attention.of_machines(view, now) if hired else ()),
                *(attention.of_fleet(view, roster, standing, unreadable, policy, now) if machines else ()),
                *attention.of_jobs(view, own, owner, now),
                *attention.of_notifications(view, owner, now),
            ],
            line=_line(view, own if owner is None else None, now, standing, explainer) if line else None,
            mine=_mine(view, owner, now, standing, explainer),
        )

    # For whoever sees a part, all jobs of the line are counted one by one.
    return await (fleet.read if fleet.sees_everything or not line else fleet.scan)(read)


def _line(
    view: View, known: WaitingReasons | None, now: float, standing: FleetStanding, explainer: Explainer
) -> QueueSummary:
    reasons = known or reasons_of(view, JobFilter(), now, standing, known=explainer)
    counts = view.job_counts()
    oldest = view.jobs_sorted(JobFilter(states=WAITING), NEWEST_FIRST.turned, None, 1)
    first = view.queue_page(None, NEXT_IN_LINE)
    return QueueSummary(
        waiting=sum(counts.get(state, 0) for state in WAITING),
        by_reason=reasons.counts(),
        at_least=reasons.more,
        oldest_at=oldest[0].created_at if oldest else None,
        first=tuple(with_reasons(view, first, now, standing, ahead_of(view, first), known=explainer)),
    )


def _mine(view: View, owner: str | None, now: float, standing: FleetStanding, explainer: Explainer) -> Mine:
    def some(states: tuple[JobState, ...], limit: int) -> list[SeenJob]:
        jobs = view.jobs_page(JobFilter(states=states, owner=owner), None, limit)
        return with_reasons(view, jobs, now, standing, known=explainer)

    return Mine(running=some(AT_WORK, 8), waiting=some(WAITING, 8), ended=some(ENDED, 6))
