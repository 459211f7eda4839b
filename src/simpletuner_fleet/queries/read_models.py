"""Builds the read models that lists and pages show, each from one state of the store."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Whole
from simpletuner_fleet.core.errors import Invalid, no_such_job, no_such_worker
from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState
from simpletuner_fleet.core.jobs.states import WAITING as WAITING
from simpletuner_fleet.core.money.costs import JobCost, cost_of
from simpletuner_fleet.core.placement.explain import Explanation
from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.workers.worker import Worker, gpu_identity
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.readable import readable_attempt, readable_newest_checkpoint
from simpletuner_fleet.engine.visibility import scope_of
from simpletuner_fleet.orchestrator.publishing import readable_publication
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.explainer import Explainer

NOT_COUNTED: Mapping[str, int] = {}


class SeenJob(Struct, frozen=True, kw_only=True):
    job: Job
    attempt: Attempt | None = None
    """The newest one that was not given back or lost."""
    checkpoint_step: int | None = None
    explanation: Explanation | None = None
    position: int | None = None
    """It is 1 for the next in line."""
    publication: Publication | None = None
    """Only where one job alone is looked at."""
    cost: JobCost | None = None
    """The same; None where no price is known."""


class SeenWorker(Struct, frozen=True, kw_only=True):
    worker: Worker
    held: list[Attempt]
    gpu_holders: dict[str, Attempt] = {}
    """By GPU, the attempt that holds it, on this worker or on another one of the same machine."""


async def jobs_page(
    fleet: Fleet, where: JobFilter, cursor: str | None, limit: int
) -> tuple[list[SeenJob], str | None]:
    """Returns a page of jobs, newest first."""
    before: int | None = read_cursor(cursor, Whole) if cursor else None
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> tuple[list[SeenJob], str | None]:
        jobs = view.jobs_page(where, before, limit + 1)
        page, more = jobs[:limit], len(jobs) > limit
        return with_reasons(view, page, now, standing), write_cursor(page[-1].seq) if more else None

    return await fleet.read(look)


async def queue_page(fleet: Fleet, cursor: str | None, limit: int) -> tuple[list[SeenJob], str | None]:
    """Returns the queue in scheduling order, each job with its place and its reason."""
    after: tuple[float, int] | None = read_cursor(cursor, tuple[float, Whole]) if cursor else None
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> tuple[list[SeenJob], str | None]:
        jobs = view.queue_page(after, limit + 1)
        page, more = jobs[:limit], len(jobs) > limit
        cursor = write_cursor((page[-1].rank, page[-1].seq)) if more else None
        return with_reasons(view, page, now, standing, ahead_of(view, page)), cursor

    return await fleet.read(look)


async def one_job(fleet: Fleet, job_id: str) -> SeenJob:
    now, standing = fleet.clock.now(), fleet.standing()
    return await fleet.read(lambda view: _one_job(view, job_id, now, standing))


async def explained(fleet: Fleet, job_id: str) -> Explanation:
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> Explanation:
        job = _job(view, job_id)
        ahead = view.queued_ahead(job.rank, job.seq) if job.state is JobState.QUEUED else 0
        return Explainer(view, standing).explain(job, ahead, now)

    return await fleet.read(look)


async def attempts_of(fleet: Fleet, job_id: str) -> list[Attempt]:
    def look(view: View) -> list[Attempt]:
        _job(view, job_id)
        return view.attempts_of_job(job_id)

    return await fleet.read(look)


async def workers(
    fleet: Fleet, statuses: Sequence[str] = (), labels: Sequence[tuple[str, str]] = ()
) -> list[SeenWorker]:
    def look(view: View) -> list[SeenWorker]:
        held: dict[str, list[Attempt]] = {}
        live = view.live_attempts()
        for attempt in live:
            held.setdefault(attempt.worker_id, []).append(attempt)
        holders = holders_by_identity(live)
        return [
            SeenWorker(worker=one, held=held.get(one.id, []), gpu_holders=gpu_holders(one, holders))
            for one in view.workers()
        ]

    return [
        seen
        for seen in await fleet.read(look)
        if (not statuses or seen.worker.status(bool(seen.held)) in statuses)
        and labels_match(tuple(labels), seen.worker.effective_labels)
    ]


async def one_worker(fleet: Fleet, worker_id: str) -> SeenWorker:
    neighbours = fleet.neighbours(worker_id)

    def look(view: View) -> SeenWorker:
        worker = view.worker(worker_id)
        if worker is None:
            raise no_such_worker(worker_id)
        held = view.live_attempts_of_worker(worker_id)
        return SeenWorker(
            worker=worker, held=held, gpu_holders=gpu_holders_near(view, worker, held, neighbours)
        )

    return await fleet.read(look)


def holders_by_identity(live: Iterable[Attempt]) -> dict[str, Attempt]:
    """Returns the attempt that holds each GPU, by the GPU's identity."""
    return {gpu_identity(one.worker_id, uuid): one for one in live for uuid in one.gpus}


def gpu_holders_near(
    view: View, worker: Worker, held: Sequence[Attempt], neighbours: Sequence[str]
) -> dict[str, Attempt]:
    """Returns who holds a worker's GPUs, from its own attempts and its neighbours' alone."""
    near = [attempt for other in neighbours for attempt in view.live_attempts_of_worker(other)]
    return gpu_holders(worker, holders_by_identity([*near, *held]))


def gpu_holders(worker: Worker, holders: Mapping[str, Attempt]) -> dict[str, Attempt]:
    """Returns the worker's GPUs that are held, through whichever worker."""
    identities = {gpu.uuid: gpu_identity(worker.id, gpu.uuid) for gpu in worker.gpus}
    return {uuid: holders[identity] for uuid, identity in identities.items() if identity in holders}


def _job(view: View, job_id: str) -> Job:
    job = view.job(job_id)
    if job is None:
        raise no_such_job(job_id)
    return job


def _one_job(view: View, job_id: str, now: float, standing: FleetStanding) -> SeenJob:
    job = _job(view, job_id)
    return replace(
        with_reasons(view, [job], now, standing, ahead_of(view, [job]))[0],
        publication=readable_publication(view, job_id),
        cost=cost_of(view.attempts_of_job(job_id), now) if job.attempts else None,
    )


def ahead_of(view: View, jobs: Sequence[Job]) -> dict[str, int]:
    """Returns by id how many jobs are ahead of each of those that are queued; they are given in the queue's order.

    Jobs that the caller may not see are ahead all the same.
    """
    queued = [job for job in jobs if job.state is JobState.QUEUED]
    follow_each_other = scope_of(view).above
    counts: dict[str, int] = {}
    ahead, last = 0, None
    for job in queued:
        if last is None:
            ahead = view.queued_ahead(job.rank, job.seq)
        elif follow_each_other:
            ahead += 1
        else:
            ahead += view.queued_ahead(job.rank, job.seq, (last.rank, last.seq))
        counts[job.id], last = ahead, job
    return counts


def with_reasons(
    view: View,
    jobs: list[Job],
    now: float,
    standing: FleetStanding,
    ahead: Mapping[str, int] = NOT_COUNTED,
    *,
    known: Explainer | None = None,
) -> list[SeenJob]:
    """Adds reasons, and the positions of the jobs of which `ahead` says how many are before them.

    `known` explains where the same look has asked before.
    """
    any_waits = any(job.state in WAITING for job in jobs)
    explainer = (known or Explainer(view, standing)) if any_waits else None
    attempts = [readable_attempt(view, job.attempt_id) if job.attempt_id else None for job in jobs]
    return [
        SeenJob(
            job=job,
            attempt=attempts[at],
            checkpoint_step=_checkpoint_step(view, job, attempts[at]),
            explanation=explainer.explain(job, ahead.get(job.id, 0), now)
            if explainer and job.state in WAITING
            else None,
            position=ahead[job.id] + 1 if job.id in ahead else None,
        )
        for at, job in enumerate(jobs)
    ]


def _checkpoint_step(view: View, job: Job, attempt: Attempt | None) -> int | None:
    """Returns the step of the newest stored checkpoint, which an earlier attempt or another job may have made."""
    if attempt and (attempt.live or attempt.checkpoint_step is not None):
        return attempt.checkpoint_step
    if not job.attempts and not job.resume_from:
        return None
    newest = readable_newest_checkpoint(view, job.id)
    return newest.step if newest else None


def write_cursor(place: int | tuple[float, int | str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_cursor(cursor: str, kind: Any) -> Any:
    """Returns what the cursor holds; `kind` is its type, with bounds for what anybody could put there."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Invalid("This cursor was not issued by this server.", path="$.cursor") from None
