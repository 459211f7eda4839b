"""Predicts when a waiting job would start, and finds what would start now instead."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import no_such_job
from simpletuner_fleet.core.jobs.job import Hold, JobState
from simpletuner_fleet.core.jobs.states import AT_WORK
from simpletuner_fleet.core.placement.forecast import (
    BusyWorker,
    OtherWay,
    RunningJob,
    StartForecast,
    busy_without_end,
    forecast,
    is_busy,
    other_ways,
)
from simpletuner_fleet.core.placement.matching import Occupancy, has_refused, is_too_dear, why_not_paid
from simpletuner_fleet.core.placement.place import limit_of
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import held_until, read_limits
from simpletuner_fleet.engine.memory.running import running_by_worker
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.visibility import unrestricted
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.explainer import Explainer
from simpletuner_fleet.queries.queue_stats import MOST_AT_WORK


class JobOutlook(Struct, frozen=True, kw_only=True):
    start: StartForecast | None = None
    """None where nobody can say."""
    now_with: list[OtherWay] = []
    busy: list[BusyWorker] = []
    """Told where nobody can say when it starts."""


async def outlook(fleet: Fleet, job_id: str) -> JobOutlook:
    now, by_shares, standing = (
        fleet.clock.now(),
        fleet.organisation.fair_share.enabled,
        fleet.standing(),
    )
    explained = await fleet.read(lambda view: _outlook(view, standing, job_id, now))
    # By shares it is not the first in the queue who starts next: who runs meanwhile decides it.
    return replace(explained, start=None, busy=[]) if by_shares else explained


def _outlook(view: View, standing: FleetStanding, job_id: str, now: float) -> JobOutlook:
    job = view.job(job_id)
    if job is None:
        raise no_such_job(job_id)
    if job.state is not JobState.QUEUED or job.hold is not Hold.NONE:
        return JobOutlook()
    held = held_until(unrestricted(view))
    if held is not None and now < held:
        return JobOutlook()
    roster = Explainer(view, standing).roster
    if limit_of(roster, job, read_limits(unrestricted(view))) is not None:
        return JobOutlook()
    requires = job.requires
    allowlist = roster.allowlists.get(requires.team)
    workers = [one for one in roster.workers.values() if allowlist is None or allowlist.allows_worker(one)]
    usable = [
        _as_far_as_the_team_may(worker, allowlist) if allowlist else worker
        for worker in workers
        if not is_too_dear(worker, requires, roster.prices)
        and why_not_paid(worker, requires, allowlist, roster.prices) is None
    ]
    requires = requires.at_any_cost

    refused_by = frozenset(job.refused_by)

    def candidates() -> Iterable[tuple[Worker, Occupancy]]:
        return (
            (worker, roster.occupancy(worker.id)) for worker in usable if not has_refused(worker, refused_by)
        )

    full = [worker for worker, occupancy in candidates() if is_busy(worker, occupancy, requires)]
    running = _running(view, now) if full else {}
    busy = [(worker, running.get(worker.id, ())) for worker in full]
    ahead = view.queued_ahead(job.rank, job.seq)
    start = forecast(requires, busy, ahead, now)
    return JobOutlook(
        start=start,
        now_with=other_ways(requires, candidates),
        busy=[] if start else busy_without_end(requires, busy),
    )


def _running(view: View, now: float) -> dict[str, Sequence[RunningJob]]:
    """Returns what every worker runs, from two looks into the store: one for each worker would take a second."""
    at_work = view.jobs_page(JobFilter(states=AT_WORK), None, MOST_AT_WORK)
    return running_by_worker(unrestricted(view).live_attempts(), {job.id: job for job in at_work}, now)


def _as_far_as_the_team_may(worker: Worker, allowlist: TeamAllowlist) -> Worker:
    return replace(worker, gpus=tuple(gpu for gpu in worker.gpus if allowlist.allows_gpu(gpu.name)))
