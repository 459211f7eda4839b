"""Fences the writes of workers with `core/jobs/fencing`, rows and bytes alike.

Rows are checked in the transaction that writes them. Bytes outside the database cannot be: their attempt is checked
before, and again once they are there. If the attempt was lost while they were written, they are removed again, so that
nobody finds them in its log or among its metrics.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.jobs import fencing
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import Blobs, View

Fence = Callable[[View, Claim], Attempt]


def unlost_attempt(view: View, claim: Claim) -> Attempt:
    """Returns the attempt if it may still write its own data."""
    return fencing.unlost_attempt(view.attempt_by_epoch(*claim.turn), claim)


def newest_attempt(view: View, claim: Claim) -> Attempt:
    """Returns the attempt if it may still write data of its job."""
    return fencing.newest_attempt(view.attempt_by_epoch(*claim.turn), view.job(claim.job_id), claim)


def job_run_by(view: View, worker_id: str, job_id: str) -> Job:
    """Returns the job if this worker runs it now."""
    job = view.job(job_id)
    attempt = view.attempt(job.attempt_id) if job and job.attempt_id else None
    fencing.running_attempt(attempt, worker_id)
    assert job is not None
    return job


class Appends:
    """Appends the bytes of one request to blobs, and knows how long each blob was before, to truncate it again."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._sizes: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    async def append(self, key: str, size: int, data: bytes) -> int:
        """Adds data to the end of a blob that is `size` bytes long, and returns its new length."""
        self._sizes.setdefault(key, size)
        return await self._blobs.append(key, size, data)

    async def take_back(self) -> None:
        for key, size in self._sizes.items():
            await self._blobs.truncate(key, size)


@asynccontextmanager
async def fenced_appends(fleet: Fleet, blobs: Blobs, fence: Fence, claim: Claim) -> AsyncIterator[Appends]:
    """Yields an `Appends`, and takes its bytes back where the fence does not hold afterwards.

    The caller holds the lock of what is appended to, so that no other bytes come in between.
    """
    appends = Appends(blobs)
    yield appends
    if not appends:
        return
    try:
        await fleet.read_now(lambda view: fence(view, claim))
    except FleetError:
        await appends.take_back()
        raise
