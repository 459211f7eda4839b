"""Shows the queue: all of it in order, the caller's part of it, how many jobs wait and for how long."""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import asdict

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.finding import SearchWord
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import PageSize, shown
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import JobsPage, JobView
from simpletuner_fleet.orchestrator import limits
from simpletuner_fleet.ports import JobFilter
from simpletuner_fleet.queries import outlook, queue_stats, read_models

TAGS = ("queue",)
PENDING = WAITING
AT_WORK = queue_stats.AT_WORK
OLDER_STATES: dict[str, tuple[JobState, ...]] = {
    "pending": (JobState.QUEUED,),
    "ready": (JobState.DISPATCHED,),
    "running": AT_WORK,
}
"""What the trainer's own guides call them; all other states have the same name."""
OWN_TOLD = 50
WORKER_STATES = ("idle", "busy", "draining", "offline")


class PageQuery(Struct, kw_only=True):
    cursor: str | None = None
    limit: PageSize = 100


class QueueQuery(PageQuery, kw_only=True):
    status: list[SearchWord] = []
    """These alone, newest first; may be repeated. `pending` is another name of queued, and `running` has those that are
    on their way or being stopped with it."""
    include_completed: bool = False
    """Jobs that have ended, too: newest first."""


class MineQuery(PageQuery, kw_only=True):
    status: list[JobState] = []


class OwnQueueView(JobsPage, kw_only=True):
    """Lists the caller's own jobs, newest first, with their counts."""

    counts: dict[str, int]
    """By status."""
    pending_count: int
    """How many wait in line."""
    blocked_count: int
    """How many wait for something else: an approval, another job."""
    running_count: int
    best_position: int | None
    """Of those that wait in line: 1 for the next."""
    pending_jobs: list[JobView]
    """The newest fifty of those that wait in line."""
    running_jobs: list[JobView]
    """The newest fifty."""


class WorkerCountsView(Struct, kw_only=True):
    total_workers: int
    idle_workers: int
    busy_workers: int
    draining_workers: int
    offline_workers: int


class LocalView(queue_stats.OwnMachine, frozen=True, kw_only=True):
    """Describes the orchestrator's own machine."""

    max_concurrent_jobs: int
    """The same as `max_jobs`."""


class StatsView(Struct, kw_only=True):
    total: int
    queue_depth: int
    """How many wait."""
    running: int
    by_status: dict[str, int]
    """The same as `by_state`; with `pending`, the other name of queued."""
    by_user: dict[str, int]
    """How many jobs of whom wait or run."""
    max_concurrent: int | None
    """The limits, as /api/queue/concurrency has them; null where there is none."""
    user_max_concurrent: int | None
    team_max_concurrent: int | None
    enable_fair_share: bool
    workers: WorkerCountsView
    local: LocalView | None
    """Null where the orchestrator runs no jobs itself."""
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
    estimated_wait_seconds: float | None
    """Null where nobody can say: no running job that must end before tells how fast it goes."""


async def list_queue(call: Call[None]) -> JobsPage:
    """Lists the queue. Ended jobs are not in it: asked for by status, jobs come newest first."""
    query: QueueQuery = call.query
    if query.status or query.include_completed:
        where = JobFilter(states=tuple(states_named(query.status)))
        page, following = await read_models.jobs_page(deps_of(call).fleet, where, query.cursor, query.limit)
        return JobsPage(jobs=[shown(seen) for seen in page], next=following)
    page, following = await read_models.queue_page(deps_of(call).fleet, call.query.cursor, call.query.limit)
    return JobsPage(jobs=[shown(seen) for seen in page], next=following)


def states_named(names: Iterable[str]) -> list[JobState]:
    return list(dict.fromkeys(one for name in names for one in _states(name)))


def _states(name: str) -> tuple[JobState, ...]:
    if name not in (*JobState, *OLDER_STATES):
        raise Invalid(f"There is no status '{name}'; there are {', '.join(JobState)}.", path="$.status")
    return OLDER_STATES.get(name) or (JobState(name),)


async def list_mine(call: Call[None]) -> OwnQueueView:
    fleet, owner = deps_of(call).fleet, call.principal.owns_as
    where = JobFilter(owner=owner, states=tuple(call.query.status))
    page, following = await read_models.jobs_page(fleet, where, call.query.cursor, call.query.limit)
    own = await queue_stats.own_queue(fleet, owner)
    waiting = await _newest(fleet, owner, (JobState.QUEUED,))
    return OwnQueueView(
        jobs=[shown(seen) for seen in page],
        next=following,
        counts=own.by_state,
        pending_count=own.by_state[JobState.QUEUED],
        blocked_count=own.by_state[JobState.BLOCKED],
        running_count=_of_states(own.by_state, AT_WORK),
        best_position=own.best_position,
        pending_jobs=waiting,
        running_jobs=await _newest(fleet, owner, AT_WORK),
    )


async def _newest(fleet: Fleet, owner: str, states: tuple[JobState, ...]) -> list[JobView]:
    page, _ = await read_models.jobs_page(fleet, JobFilter(owner=owner, states=states), None, OWN_TOLD)
    return [shown(seen) for seen in page]


def _of_states(counts: Mapping[str, int], states: Iterable[JobState]) -> int:
    return sum(counts.get(state, 0) for state in states)


async def stats(call: Call[None]) -> StatsView:
    fleet = deps_of(call).fleet
    stats, chosen = await queue_stats.queue_stats(fleet), await limits.get_limits(fleet)
    local = stats.own_machine
    return StatsView(
        total=sum(stats.by_state.values()),
        queue_depth=_of_states(stats.by_state, PENDING),
        running=_of_states(stats.by_state, AT_WORK),
        by_status={**stats.by_state, "pending": stats.by_state[JobState.QUEUED]},
        by_user=stats.by_owner,
        max_concurrent=chosen.global_running,
        user_max_concurrent=chosen.user_running,
        team_max_concurrent=chosen.team_running,
        enable_fair_share=fleet.organisation.fair_share.enabled,
        workers=WorkerCountsView(
            total_workers=sum(stats.workers.values()),
            **{f"{one}_workers": stats.workers.get(one, 0) for one in WORKER_STATES},
        ),
        local=LocalView(**asdict(local), max_concurrent_jobs=local.max_jobs) if local else None,
        by_state=stats.by_state,
        by_reason=stats.by_reason,
        reasons_counted=stats.reasons_counted,
        reasons_at_least=stats.reasons_at_least,
        avg_wait_seconds=stats.mean_wait_s,
    )


async def position(call: Call[None]) -> PositionView:
    fleet = deps_of(call).fleet
    seen = await read_models.one_job(fleet, call.path["id"])
    start = (await outlook.outlook(fleet, seen.job.id)).start
    return PositionView(
        job_id=seen.job.id,
        status=seen.job.state,
        queue_position=seen.position,
        position=seen.position,
        priority=seen.job.priority,
        queued_at=rfc3339(seen.job.created_at),
        estimated_wait_seconds=max(0.0, start.at - fleet.clock.now()) if start else None,
    )


ROUTES = [
    Route(
        "GET",
        "/api/queue",
        list_queue,
        "queue.read",
        answer=JobsPage,
        summary="The queue in scheduling order, each waiting job with its reason",
        query=QueueQuery,
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
