"""How a job gets into each state that it can be in."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from devtools.fuzz.in_process_server import MODEL, Headers, InProcessServer, InProcessWorker, Json, Refused
from simpletuner_fleet.core.jobs.job import JobState

NOBODY = "nobody-has-this"


class MadeJob(Struct, frozen=True):
    id: str
    state: JobState
    offer: Json | None = None
    """What its worker was offered, where one was."""


async def _blocked(server: InProcessServer, by: Headers, worker: InProcessWorker) -> tuple[str, Json | None]:
    if server.fleet.policy.require_approval:
        return await server.submit(by, worker.name, approved=False), None
    other = await server.submit(by, NOBODY)
    return await server.submit(by, worker.name, depends_on=[other]), None


async def _queued(server: InProcessServer, by: Headers, worker: InProcessWorker) -> tuple[str, Json | None]:
    return await server.submit(by, NOBODY), None


async def _dispatched(
    server: InProcessServer, by: Headers, worker: InProcessWorker
) -> tuple[str, Json | None]:
    job_id = await server.submit(by, worker.name)
    return job_id, await worker.offer_of(job_id)


async def _running(server: InProcessServer, by: Headers, worker: InProcessWorker) -> tuple[str, Json]:
    job_id = await server.submit(by, worker.name)
    offer = await worker.offer_of(job_id)
    await worker.accept(offer)
    await worker.report(offer, "running")
    return job_id, offer


async def _cancelling(
    server: InProcessServer, by: Headers, worker: InProcessWorker
) -> tuple[str, Json | None]:
    job_id, offer = await _running(server, by, worker)
    await server.good("POST", f"/api/jobs/{job_id}/cancel", {})
    return job_id, offer


async def _completed(
    server: InProcessServer, by: Headers, worker: InProcessWorker
) -> tuple[str, Json | None]:
    job_id, offer = await _running(server, by, worker)
    await worker.upload(offer, MODEL)
    await worker.report(offer, "completed", exit_code=0)
    return job_id, offer


async def _failed(server: InProcessServer, by: Headers, worker: InProcessWorker) -> tuple[str, Json | None]:
    job_id, offer = await _running(server, by, worker)
    await worker.report(offer, "failed", exit_code=1, error="it broke")
    return job_id, offer


async def _cancelled(
    server: InProcessServer, by: Headers, worker: InProcessWorker
) -> tuple[str, Json | None]:
    job_id, offer = await _cancelling(server, by, worker)
    assert offer
    await worker.report(offer, "cancelled")
    return job_id, offer


Maker = Callable[[InProcessServer, Headers, InProcessWorker], Awaitable[tuple[str, Any]]]
MAKERS: dict[JobState, Maker] = {
    JobState.BLOCKED: _blocked,
    JobState.QUEUED: _queued,
    JobState.DISPATCHED: _dispatched,
    JobState.RUNNING: _running,
    JobState.CANCELLING: _cancelling,
    JobState.COMPLETED: _completed,
    JobState.FAILED: _failed,
    JobState.CANCELLED: _cancelled,
}


async def make_job(server: InProcessServer, state: JobState, by: Headers, worker: InProcessWorker) -> MadeJob:
    """A job of this caller that is in this state now."""
    job_id, offer = await MAKERS[state](server, by, worker)
    job = await server.fleet.read(lambda view: view.job(job_id))
    if job is None or job.state is not state:
        raise Refused(f"{job_id} did not become {state}: {job}")
    return MadeJob(job_id, state, offer)
