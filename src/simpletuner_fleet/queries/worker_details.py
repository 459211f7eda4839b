"""Builds the read models of workers: the list for administrators, one in detail, and one that is joining."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.errors import no_such_worker
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.placement.matching import Occupancy, gpus_left_idle, is_open
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import roster_of
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.engine.visibility import unrestricted
from simpletuner_fleet.ports import AuditFilter, View
from simpletuner_fleet.queries.free_now import machines_of
from simpletuner_fleet.queries.read_models import SeenJob, gpu_holders_near, with_reasons

LAST_ATTEMPTS = 20
LAST_EVENTS = 20
REFUSALS_READ = 50
DATASETS_NAMED = 50


class HeldJob(Struct, frozen=True, kw_only=True):
    job_id: str
    title: str


class ListedWorker(Struct, frozen=True, kw_only=True):
    worker: Worker
    status: str
    is_open: bool
    """It may be given a job now."""
    held: tuple[HeldJob, ...]


class WorkerList(Struct, frozen=True, kw_only=True):
    counts: dict[str, int]
    """The number of workers by status, of all there are."""
    shown: list[ListedWorker]
    fitting: int
    """How many fit, on all pages."""
    more: bool
    folded: list[ListedWorker]
    """Those of the fitting workers that nobody needs to look at."""


class StandingWorker(NamedTuple):
    worker: Worker
    status: str


class KnownWorkers(Struct, frozen=True, kw_only=True):
    by_name: list[StandingWorker]
    counts: dict[str, int]
    """Their number by status."""


class PastAttempt(Struct, frozen=True, kw_only=True):
    attempt: Attempt
    title: str


class WorkerDetails(Struct, frozen=True, kw_only=True):
    worker: Worker
    status: str
    is_open: bool
    """It may be given a job now."""
    gpu_holders: dict[str, Attempt]
    """By GPU, the attempt that holds it, on this worker or on another one of the same machine."""
    idle_gpus: int
    """Those that no job gets, since it takes no more jobs at a time."""
    running: list[SeenJob]
    runs: list[PastAttempt]
    """The last ones that ended, newest first."""
    events: list[AuditEntry]
    datasets: list[tuple[str, str]]
    """Pairs of id and name of what its cache holds; an unknown one has no name."""


class Joining(Struct, frozen=True, kw_only=True):
    worker: Worker
    status: str
    refusals: list[AuditEntry]
    """The refused attempts since its token was made, as this worker or as nobody we know, newest first."""


async def machines(
    fleet: Fleet,
    fits: Callable[[Worker, str], bool],
    folds: Callable[[Worker, str], bool],
    page: int,
    size: int,
    *,
    with_jobs: bool = True,
) -> WorkerList:
    """Lists a page of workers, and what they run; `fits` and `folds` get the worker and its status."""
    standing = fleet.standing()

    def look(view: View) -> WorkerList:
        roster = standing.roster or roster_of(unrestricted(view))
        known = known_workers(roster, standing)
        open_ones: list[StandingWorker] = []
        folded: list[StandingWorker] = []
        for one in known.by_name:
            if fits(one.worker, one.status):
                (folded if folds(one.worker, one.status) else open_ones).append(one)
        rows, folded = open_ones[page * size : (page + 1) * size], folded[:size]
        busy = [one.worker.id for one in (*rows, *folded) if roster.has_attempts(one.worker.id)]
        held = _held(view, busy) if with_jobs else {}

        def seen(one: StandingWorker) -> ListedWorker:
            return ListedWorker(
                worker=with_newest_heartbeat(fleet, one.worker),
                status=one.status,
                is_open=is_open(one.worker, roster.occupancy(one.worker.id)),
                held=held.get(one.worker.id, ()),
            )

        return WorkerList(
            counts=known.counts,
            shown=[seen(one) for one in rows],
            fitting=len(open_ones),
            more=len(open_ones) > (page + 1) * size,
            folded=[seen(one) for one in folded],
        )

    return await fleet.read(look)


def known_workers(roster: Roster, standing: FleetStanding) -> KnownWorkers:
    """Returns all workers with their statuses, computed once as long as no worker changes."""
    figures = standing.figures if standing.roster is not None else {}
    if "known_workers" not in figures:
        by_name = [
            StandingWorker(worker, str(worker.status(roster.has_attempts(worker.id))))
            for worker in sorted(machines_of(roster), key=lambda one: (one.name.casefold(), one.id))
        ]
        counts = dict(Counter(one.status for one in by_name))
        figures["known_workers"] = KnownWorkers(by_name=by_name, counts=counts)
    known: KnownWorkers = figures["known_workers"]
    return known


def _held(view: View, worker_ids: Sequence[str]) -> dict[str, tuple[HeldJob, ...]]:
    """Returns what each worker runs; a job that may not be seen has no name."""
    attempts = {worker_id: view.live_attempts_of_worker(worker_id) for worker_id in worker_ids}
    titles = view.job_titles([one.job_id for some in attempts.values() for one in some])
    return {
        worker_id: tuple(HeldJob(job_id=one.job_id, title=titles.get(one.job_id, "")) for one in some)
        for worker_id, some in attempts.items()
    }


async def machine(fleet: Fleet, worker_id: str) -> WorkerDetails:
    now, neighbours, standing = fleet.clock.now(), fleet.neighbours(worker_id), fleet.standing()

    def look(view: View) -> WorkerDetails:
        worker = _worker(fleet, view, worker_id)
        live = view.live_attempts_of_worker(worker_id)
        jobs = [job for job in (readable_job(view, attempt.job_id) for attempt in live) if job]
        ended = [one for one in view.attempts_of_worker(worker_id, LAST_ATTEMPTS + len(live)) if not one.live]
        holders = gpu_holders_near(view, worker, live, neighbours)
        return WorkerDetails(
            worker=worker,
            status=worker.status(bool(live)),
            is_open=is_open(worker, (standing.roster or roster_of(unrestricted(view))).occupancy(worker_id)),
            gpu_holders=holders,
            idle_gpus=gpus_left_idle(worker, Occupancy(len(live), frozenset(holders))),
            running=with_reasons(view, jobs, now, standing),
            runs=[
                PastAttempt(attempt=one, title=_title(readable_job(view, one.job_id)))
                for one in ended[:LAST_ATTEMPTS]
            ],
            events=view.audit_page(AuditFilter(target_type="worker", target_id=worker_id), LAST_EVENTS, 0),
            datasets=[(id, _dataset_name(view, id)) for id in worker.datasets[:DATASETS_NAMED]],
        )

    return await fleet.read(look)


async def joining(fleet: Fleet, worker_id: str) -> Joining:
    def look(view: View) -> Joining:
        worker = _worker(fleet, view, worker_id)
        where = AuditFilter(event_type=EventType.WORKER_REGISTRATION_FAILED, since=worker.token_created_at)
        refused = view.audit_page(where, REFUSALS_READ, 0)
        return Joining(
            worker=worker,
            status=worker.status(bool(view.live_attempts_of_worker(worker_id))),
            refusals=[entry for entry in refused if entry.target_id in ("", worker_id)],
        )

    return await fleet.read(look)


def with_newest_heartbeat(fleet: Fleet, worker: Worker) -> Worker:
    """Returns the worker with its newest heartbeat: the store gets heartbeats only now and then, in batches."""
    heard = fleet.presence.heard_at(worker.id)
    return replace(worker, last_heartbeat=heard) if heard is not None else worker


def _worker(fleet: Fleet, view: View, worker_id: str) -> Worker:
    worker = view.worker(worker_id)
    if worker is None:
        raise no_such_worker(worker_id)
    return with_newest_heartbeat(fleet, worker)


def _title(job: Job | None) -> str:
    return (job.name or job.config_name) if job else ""


def _dataset_name(view: View, dataset_id: str) -> str:
    dataset = view.dataset(dataset_id)
    return dataset.name if dataset else ""
