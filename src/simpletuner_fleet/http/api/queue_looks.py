"""Looks at the queue: all of it in order, one's own part of it, how many wait and for how long."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import PageSize, shown
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import JobsPage
from simpletuner_fleet.ports import JobFilter
from simpletuner_fleet.queries import read_models

TAGS = ("queue",)
PENDING = (JobState.QUEUED, JobState.BLOCKED)
AT_WORK = (JobState.DISPATCHED, JobState.RUNNING, JobState.CANCELLING)


class PageQuery(Struct, kw_only=True):
    cursor: str | None = None
    limit: PageSize = 100


class MineQuery(PageQuery, kw_only=True):
    status: list[JobState] = []


class OwnQueueView(JobsPage, kw_only=True):
    """The caller's own jobs, newest first, and how many they are."""

    counts: dict[str, int]
    """By status."""
    pending_count: int
    """How many wait, in line or for something else."""
    running_count: int
    best_position: int | None
    """Of those that wait in line: 1 for the next."""


class StatsView(Struct, kw_only=True):
    total: int
    queue_depth: int
    """How many wait."""
    running: int
    by_status: dict[str, int]
    """The same as `by_state`."""
    by_state: dict[str, int]
    by_reason: dict[str, int]
    """How many wait for which reason."""
    reasons_counted: int
    reasons_at_least: bool
    """There are so many kinds of waiting jobs that not all were asked: the figures of `by_reason` are the least there is."""
    avg_wait_seconds: float | None
    """Of the hundred jobs of the last day that began last, from submission to the first offer; null where none began."""


class PositionView(Struct, kw_only=True):
    job_id: str
    status: str
    queue_position: int | None
    """1 for the next in line; null when the job is not queued."""
    position: int | None
    """The same."""
    priority: int
    queued_at: str | None


async def list_queue(call: Call[None]) -> JobsPage:
    page, following = await read_models.queue_page(deps_of(call).fleet, call.query.cursor, call.query.limit)
    return JobsPage(jobs=[shown(seen) for seen in page], next=following)


async def list_mine(call: Call[None]) -> OwnQueueView:
    fleet, owner = deps_of(call).fleet, call.principal.owns_as
    where = JobFilter(owner=owner, states=tuple(call.query.status))
    page, following = await read_models.jobs_page(fleet, where, call.query.cursor, call.query.limit)
    own = await read_models.own_queue(fleet, owner)
    return OwnQueueView(
        jobs=[shown(seen) for seen in page],
        next=following,
        counts=own.by_state,
        pending_count=_of_states(own.by_state, PENDING),
        running_count=_of_states(own.by_state, AT_WORK),
        best_position=own.best_position,
    )


def _of_states(counts: Mapping[str, int], states: Iterable[JobState]) -> int:
    return sum(counts.get(state, 0) for state in states)


async def stats(call: Call[None]) -> StatsView:
    stats = await read_models.queue_stats(deps_of(call).fleet)
    return StatsView(
        total=sum(stats.by_state.values()),
        queue_depth=_of_states(stats.by_state, PENDING),
        running=_of_states(stats.by_state, AT_WORK),
        by_status=stats.by_state,
        by_state=stats.by_state,
        by_reason=stats.by_reason,
        reasons_counted=stats.reasons_counted,
        reasons_at_least=stats.reasons_at_least,
        avg_wait_seconds=stats.mean_wait_s,
    )


async def position(call: Call[None]) -> PositionView:
    seen = await read_models.one_job(deps_of(call).fleet, call.path["id"])
    return PositionView(
        job_id=seen.job.id,
        status=seen.job.state,
        queue_position=seen.position,
        position=seen.position,
        priority=seen.job.priority,
        queued_at=rfc3339(seen.job.created_at),
    )


ROUTES = [
    Route(
        "GET",
        "/api/queue",
        list_queue,
        "queue.read",
        answer=JobsPage,
        summary="The queue in scheduling order, each waiting job with its reason",
        query=PageQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/queue/stats",
        stats,
        "queue.read",
        answer=StatsView,
        summary="How many jobs are in which state, and why they wait",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/queue/me",
        list_mine,
        "queue.read",
        answer=OwnQueueView,
        summary="The caller's own jobs, newest first, how many wait and run, and the best place in line",
        query=MineQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/queue/position/{id}",
        position,
        "queue.read",
        answer=PositionView,
        summary="Where a job stands in line",
        tags=TAGS,
    ),
]
