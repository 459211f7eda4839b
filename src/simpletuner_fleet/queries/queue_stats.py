"""Counts the queue: how many wait and why, whose jobs they are, and how many workers there are."""

from collections import Counter
from statistics import fmean

from msgspec import Struct

from simpletuner_fleet.core.jobs.finding import IN_START_ORDER
from simpletuner_fleet.core.jobs.job import JobState, Target
from simpletuner_fleet.core.jobs.states import AT_WORK as AT_WORK
from simpletuner_fleet.core.placement.gpu_states import GpuState, gpu_states
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.explainer import Explainer, WaitingReasons, reasons_of

MOST_AT_WORK = 10_000
WAITS_OF_S = 86_400.0
WAITS_COUNTED = 100


class OwnMachine(Struct, frozen=True, kw_only=True):
    """Describes the orchestrator's own machine, where it takes jobs itself."""

    running_jobs: int
    pending_jobs: int
    """Those in line that can run nowhere else, as far as their reasons were counted."""
    allocated_gpus: list[int]
    """By index: those that a job holds, of this worker or of another one of the machine."""
    available_gpus: list[int]
    """Those that a job could be given now."""
    total_gpus: int
    max_jobs: int


class QueueStats(Struct, frozen=True, kw_only=True):
    by_state: dict[str, int]
    by_reason: dict[str, int]
    reasons_counted: int
    """The number of waiting jobs whose reasons were counted: all, unless there are very many kinds of them."""
    reasons_at_least: bool
    """There are so many kinds: the figures of `by_reason` are the least there is of each."""
    by_owner: dict[str, int]
    """How many jobs of whom wait or are at work, as far as their reasons were counted."""
    workers: dict[str, int]
    """By status."""
    own_machine: OwnMachine | None
    """None where the orchestrator runs no jobs itself."""
    mean_wait_s: float | None
    """Of those that began last, from their submission to their first offer; None where none has begun."""


class OwnQueue(Struct, frozen=True, kw_only=True):
    """Describes what one person has in the queue."""

    by_state: dict[str, int]
    best_position: int | None
    """Of those that wait in line; None where none does."""


async def queue_stats(fleet: Fleet) -> QueueStats:
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> QueueStats:
        counts, workers = view.job_counts(), view.workers()
        held = Counter(one.worker_id for one in view.live_attempts())
        explainer = Explainer(view, standing)
        reasons = reasons_of(view, JobFilter(), now, standing, known=explainer)
        by_reason = reasons.counts()
        return QueueStats(
            by_state={state: counts.get(state, 0) for state in JobState},
            by_reason=by_reason,
            reasons_counted=sum(by_reason.values()),
            reasons_at_least=reasons.more,
            by_owner=_by_owner(view, reasons),
            workers=Counter(str(one.status(held[one.id] > 0)) for one in workers),
            own_machine=next(
                (_own_machine(view, explainer.roster, one, reasons) for one in workers if one.local), None
            ),
            mean_wait_s=_mean_wait_s(view, now),
        )

    return await fleet.scan(look)


def _by_owner(view: View, reasons: WaitingReasons) -> dict[str, int]:
    """Counts jobs by owner; all jobs of one group have the same owner."""
    owners = Counter({group.first.owner: 0 for group in reasons.groups})
    for group in reasons.groups:
        owners[group.first.owner] += group.jobs
    owners.update(job.owner for job in view.jobs_page(JobFilter(states=AT_WORK), None, MOST_AT_WORK))
    return dict(owners)


def _own_machine(view: View, roster: Roster, worker: Worker, reasons: WaitingReasons) -> OwnMachine:
    """Describes it; all jobs of one group of reasons have the same target."""
    in_line = [group for group in reasons.groups if group.first.state is JobState.QUEUED]
    states = {gpu.index: state for gpu, state in gpu_states([worker], roster.occupancy)}
    return OwnMachine(
        running_jobs=len(view.live_attempts_of_worker(worker.id)),
        pending_jobs=sum(group.jobs for group in in_line if group.first.requires.target is Target.LOCAL),
        allocated_gpus=[index for index, state in states.items() if state is GpuState.BUSY],
        available_gpus=[index for index, state in states.items() if state is GpuState.FREE],
        total_gpus=len(worker.gpus),
        max_jobs=worker.max_jobs,
    )


async def own_queue(fleet: Fleet, owner: str) -> OwnQueue:
    def look(view: View) -> OwnQueue:
        counts = view.job_counts(owner=owner)
        own = JobFilter(owner=owner, states=(JobState.QUEUED,))
        first = view.jobs_sorted(own, IN_START_ORDER, None, 1)
        return OwnQueue(
            by_state={state: counts.get(state, 0) for state in JobState},
            best_position=view.queued_ahead(first[0].rank, first[0].seq) + 1 if first else None,
        )

    return await fleet.scan(look)


def _mean_wait_s(view: View, now: float) -> float | None:
    recent = view.attempts_since(now - WAITS_OF_S, WAITS_COUNTED)[:WAITS_COUNTED]
    begun = [one for one in recent if one.number == 1]
    jobs = ((one, readable_job(view, one.job_id)) for one in begun)
    waits = [max(0.0, one.offered_at - job.created_at) for one, job in jobs if job]
    return fmean(waits) if waits else None
