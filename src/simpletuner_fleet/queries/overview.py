"""The fleet in one look: what is free, what needs somebody, who is in line, what ran in the last day."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState, Requirements, Results
from simpletuner_fleet.core.notices.timing import in_trouble
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.matching import (
    FREE,
    Occupancy,
    allocate,
    gpus_left_idle,
    in_service,
    is_open,
)
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE
from simpletuner_fleet.core.placement.roster import Roster
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Connection, Gpu, Worker, WorkerType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import AuditFilter, JobFilter, View
from simpletuner_fleet.queries.explainer import Explainer
from simpletuner_fleet.queries.read_models import SeenJob, with_reasons

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
MOST_BARS = 2_000
MOST_ATTEMPTS = 3_000
MOST_WAITING = 500
MOST_CHANGES = 2_000
MOST_GPUS_ASKED = 64
SHOWN_OF_EACH = 5
NEXT_IN_LINE = 3
AT_WORK = (JobState.RUNNING, JobState.DISPATCHED, JobState.CANCELLING)
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
WAITS = (JobState.QUEUED, JobState.BLOCKED)


class GpuKind(Struct, frozen=True, kw_only=True):
    """All GPUs of one name and size."""

    name: str
    vram_gb: float
    free: int
    busy: int
    away: int
    """Draining, offline or unusable."""


class Need(Struct, frozen=True, kw_only=True):
    """Something that will not mend itself. `kind` names the sentence, `named` what it is about."""

    kind: str
    count: int
    named: tuple[tuple[str, str], ...] = ()
    """Pairs of id and name of the first few."""


class AttemptBar(Struct, frozen=True, kw_only=True):
    job_id: str
    title: str
    start: float
    end: float
    outcome: str
    """It is empty while the attempt runs."""
    gpus: int


class WorkerLane(Struct, frozen=True, kw_only=True):
    """One worker's last day."""

    worker_id: str
    name: str
    status: str
    bars: tuple[AttemptBar, ...]
    away: tuple[tuple[float, float], ...]
    """The spans in which it was not connected."""


class QueueSummary(Struct, frozen=True, kw_only=True):
    waiting: int
    by_reason: dict[str, int]
    oldest_at: float | None
    first: tuple[SeenJob, ...]


class Mine(Struct, frozen=True, kw_only=True):
    running: list[SeenJob]
    waiting: list[SeenJob]
    ended: list[SeenJob]


class Overview(Struct, frozen=True, kw_only=True):
    workers: int
    gpus: list[GpuKind]
    starts_now: int
    """The largest number of GPUs that one job would get at once; 0 for none."""
    room: bool
    """Some worker would take a job that needs no GPU."""
    needs: list[Need]
    line: QueueSummary
    mine: Mine
    lanes: list[WorkerLane]


async def look(fleet: Fleet, owner: str | None, *, lanes: bool) -> Overview:
    """Reads everything the front page shows; `owner` narrows what is called mine, None means everybody's."""
    now, policy = fleet.clock.now(), fleet.policy

    def read(view: View) -> Overview:
        explainer = Explainer(view, fleet.book)
        roster = explainer.roster
        workers = [worker for worker in roster.workers.values() if not worker.local or worker.gpus]
        occupancy = {worker.id: roster.occupancy(worker.id) for worker in workers}
        waiting = view.queue_page(None, MOST_WAITING)
        explained = [(job, explainer.explain(job, ahead, now)) for ahead, job in enumerate(waiting)]
        hopeless = [job for job, why in explained if why.code in IMPOSSIBLE]
        return Overview(
            workers=len(workers),
            gpus=gpu_kinds(workers, occupancy),
            starts_now=largest_start(workers, occupancy),
            room=any(is_open(worker, occupancy.get(worker.id, FREE)) for worker in workers),
            needs=[*_needs(view, workers, occupancy, hopeless, policy, now), *_untold(view, owner, now)],
            line=QueueSummary(
                waiting=sum(view.job_counts().get(state, 0) for state in WAITS),
                by_reason=dict(Counter(str(why.code) for _, why in explained)),
                oldest_at=min((job.created_at for job in waiting), default=None),
                first=tuple(with_reasons(view, waiting[:NEXT_IN_LINE], now, fleet.book, 0)),
            ),
            mine=_mine(view, owner, now, fleet.book),
            lanes=_lanes(view, workers, roster, now) if lanes else [],
        )

    return await fleet.read(read)


async def gpu_hours(fleet: Fleet) -> list[tuple[str, float]]:
    """Returns last week's hours by owner, most first. It reads as many jobs as there were attempts: not for every look."""
    now = fleet.clock.now()

    def read(view: View) -> list[tuple[str, float]]:
        hours: dict[str, float] = {}
        for attempt in view.attempts_since(now - WEEK_S, MOST_ATTEMPTS):
            begun = attempt.started_at or attempt.accepted_at
            job = view.job(attempt.job_id) if begun is not None and attempt.gpus else None
            if job and begun is not None:
                lasted = (attempt.ended_at or now) - max(begun, now - WEEK_S)
                spent = max(0.0, lasted) * len(attempt.gpus) / 3600.0
                hours[job.owner] = hours.get(job.owner, 0.0) + spent
        return sorted(hours.items(), key=lambda item: -item[1])

    return await fleet.read(read)


def gpu_kinds(workers: Sequence[Worker], occupancy: dict[str, Occupancy]) -> list[GpuKind]:
    """Counts the GPUs of each kind, the most capable first."""
    kinds: dict[tuple[str, float], list[int]] = {}
    for worker in workers:
        held = occupancy.get(worker.id, FREE)
        full = in_service(worker) and not is_open(worker, held)
        for gpu in worker.gpus:
            counts = kinds.setdefault((gpu.name, round(gpu.vram_gb, 1)), [0, 0, 0])
            counts[_place(worker, gpu, held, full)] += 1
    all_kinds = [
        GpuKind(name=name, vram_gb=vram, free=free, busy=busy, away=away)
        for (name, vram), (free, busy, away) in kinds.items()
    ]
    return sorted(all_kinds, key=lambda kind: (-kind.vram_gb, kind.name))


def _place(worker: Worker, gpu: Gpu, held: Occupancy, full: bool) -> int:
    if gpu.uuid in held.gpus:
        return 1
    if not in_service(worker) or gpu.unusable:
        return 2
    return 1 if full else 0


def largest_start(workers: Sequence[Worker], occupancy: dict[str, Occupancy]) -> int:
    largest = 0
    for worker in workers:
        held = occupancy.get(worker.id, FREE)
        if not is_open(worker, held):
            continue
        while largest < MOST_GPUS_ASKED and allocate(worker, held, Requirements(gpus=largest + 1)):
            largest += 1
    return largest


def _needs(
    view: View,
    workers: Sequence[Worker],
    occupancy: Mapping[str, Occupancy],
    hopeless: Sequence[Job],
    policy: Policy,
    now: float,
) -> list[Need]:
    away = [
        worker
        for worker in workers
        if worker.connection is Connection.OFFLINE and worker.worker_type is WorkerType.PERSISTENT
    ]
    unusable = [
        worker for worker in workers if in_service(worker) and any(gpu.unusable for gpu in worker.gpus)
    ]
    idle = [
        worker
        for worker in workers
        if worker.worker_type is WorkerType.PERSISTENT
        and gpus_left_idle(worker, occupancy.get(worker.id, FREE))
    ]
    failed = [
        job
        for job in view.jobs_page(JobFilter(states=(JobState.FAILED,)), None, MOST_WAITING)
        if (job.finished_at or 0) >= now - DAY_S
    ]
    unstored = [
        job
        for state in (JobState.COMPLETED, JobState.RUNNING)
        for job in view.jobs_page(JobFilter(states=(state,)), None, MOST_WAITING)
        if job.results is Results.MISSING or "waiting_for" in (job.progress.more if job.progress else {})
    ]
    refused = view.audit_count(AuditFilter(event_type="worker.registration_failed", since=now - DAY_S))
    blocked = view.jobs_page(JobFilter(states=(JobState.BLOCKED,)), None, MOST_WAITING)
    unapproved = [job for job in blocked if job.hold == "approval"]
    old = [worker for worker in workers if now - worker.token_created_at > policy.token_warn_age_s]
    set_aside = view.rows_set_aside()
    needs = (
        Need(
            kind="rows_unreadable",
            count=len(set_aside),
            named=tuple((one.id, f"{one.table} {one.id}") for one in set_aside[:SHOWN_OF_EACH]),
        ),
        _of_workers("workers_set_aside", [one for one in workers if one.takes_a_pause]),
        _of_workers("workers_away", away),
        _of_jobs("jobs_failed", failed),
        _of_jobs("jobs_without_results", unstored),
        _of_jobs("jobs_hopeless", hopeless),
        _of_jobs("jobs_unapproved", unapproved),
        _of_workers("gpus_unusable", unusable),
        _of_workers("gpus_idle", idle),
        Need(kind="registrations_refused", count=refused),
        _of_workers("tokens_old", old),
    )
    return [need for need in needs if need.count]


def _untold(view: View, owner: str | None, now: float) -> list[Need]:
    """What cannot be told to this person, or, without an owner, to anybody."""
    failing = [one for one in view.endpoints() if owner in (None, one.owner) and in_trouble(one, now)]
    named = tuple((one.id, one.name) for one in failing[:SHOWN_OF_EACH])
    return [Need(kind="endpoints_failing", count=len(failing), named=named)] if failing else []


def _of_workers(kind: str, workers: Sequence[Worker]) -> Need:
    named = tuple((worker.id, worker.name) for worker in workers[:SHOWN_OF_EACH])
    return Need(kind=kind, count=len(workers), named=named)


def _of_jobs(kind: str, jobs: Sequence[Job]) -> Need:
    named = tuple((job.id, job.name or job.config_name) for job in jobs[:SHOWN_OF_EACH])
    return Need(kind=kind, count=len(jobs), named=named)


def _mine(view: View, owner: str | None, now: float, book: QuotaBook | None) -> Mine:
    def some(states: tuple[JobState, ...], limit: int) -> list[SeenJob]:
        jobs = view.jobs_page(JobFilter(states=states, owner=owner), None, limit)
        return with_reasons(view, jobs, now, book)

    return Mine(running=some(AT_WORK, 8), waiting=some(WAITS, 8), ended=some(ENDED, 6))


def _lanes(view: View, workers: Sequence[Worker], roster: Roster, now: float) -> list[WorkerLane]:
    since = now - DAY_S
    bars: dict[str, list[AttemptBar]] = {}
    titles: dict[str, str] = {}
    for attempt in reversed(view.attempts_since(since, MOST_BARS)):
        begun = attempt.accepted_at or attempt.started_at
        if begun is not None:
            bars.setdefault(attempt.worker_id, []).append(_bar(view, attempt, begun, since, now, titles))
    away = _away(view, since)
    return [
        WorkerLane(
            worker_id=worker.id,
            name=worker.name,
            # Not by its places: a training that has ended leaves its own, and its results may still be on their way.
            status=str(worker.status(roster.has_attempts(worker.id))),
            bars=tuple(bars.get(worker.id, ())),
            away=tuple(_spans_of(worker, away.get(worker.id, []), since, now)),
        )
        for worker in workers
    ]


def _bar(
    view: View, attempt: Attempt, begun: float, since: float, now: float, titles: dict[str, str]
) -> AttemptBar:
    if attempt.job_id not in titles:
        job = view.job(attempt.job_id)
        titles[attempt.job_id] = (job.name or job.config_name) if job else attempt.job_id
    return AttemptBar(
        job_id=attempt.job_id,
        title=titles[attempt.job_id],
        start=max(begun, since),
        end=attempt.ended_at or now,
        outcome=str(attempt.outcome or ""),
        gpus=len(attempt.gpus),
    )


def _away(view: View, since: float) -> dict[str, list[tuple[float, bool]]]:
    """Returns for each worker, in order of time, when it left (True) or came. In a busy fleet the oldest are left out."""
    absences: dict[str, list[tuple[float, bool]]] = {}
    where = AuditFilter(event_type="worker.status_changed", since=since)
    for entry in view.audit_page(where, MOST_CHANGES, 0):
        if "offline" in (entry.details.get("to"), entry.details.get("from")):
            absences.setdefault(entry.target_id, []).append((entry.at, entry.details.get("to") == "offline"))
    return {worker_id: sorted(changes) for worker_id, changes in absences.items()}


def _spans_of(
    worker: Worker, changes: Sequence[tuple[float, bool]], since: float, now: float
) -> list[tuple[float, float]]:
    """Returns the spans from departure to return; a worker that is away now has been so since it was last heard."""
    spans: list[tuple[float, float]] = []
    left: float | None = None
    for at, is_leaving in changes:
        if is_leaving:
            left = at if left is None else left
        elif left is not None:
            spans.append((left, at))
            left = None
    if worker.connection is Connection.OFFLINE:
        spans.append((max(since, left if left is not None else worker.offline_since or since), now))
    return spans
