"""What workers call: one row per message of the protocol."""

import base64
import binascii

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid, InvalidToken, StaleAttempt, Superseded, TooLarge
from simpletuner_fleet.core.worker import Worker
from simpletuner_fleet.http.deps import deps, own_worker
from simpletuner_fleet.http.routes import KIB, UPLOAD, WORKER, Call, Route
from simpletuner_fleet.http.whose import refuse_other_worker
from simpletuner_fleet.orchestrator import attendance, report
from simpletuner_fleet.protocol.messages import (
    FINAL_REPORTS,
    Accept,
    Accepted,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    LogAnswer,
    LogChunk,
    Register,
    Registered,
    ReportAnswer,
    StatusReport,
)

MAX_LOG_BYTES = 2 * 1024 * KIB * KIB
TAGS = ("workers",)


class HasJobs(Struct):
    has_jobs: bool


class WorkerQuery(Struct, kw_only=True):
    worker_id: str | None = None


class Left(Struct):
    success: bool = True


async def register(call: Call[Register]) -> Registered:
    house = deps(call)
    try:
        return await attendance.register(
            house.fleet, call.principal.id, call.body, ip=call.ip, base_url=house.base_url(call)
        )
    except (Invalid, Superseded) as error:
        if house.noted_refusals.take(call.principal.id) == 0.0:
            await attendance.registration_failed(house.fleet, call.ip, f"{call.principal.id}: {error.detail}")
        raise


async def heartbeat(call: Call[Heartbeat]) -> HeartbeatAnswer:
    refuse_other_worker(call, call.body.worker_id)
    house = deps(call)
    worker = await own_worker(call)
    return await attendance.heartbeat(house.fleet, worker, call.body, base_url=house.base_url(call))


async def accept(call: Call[Accept]) -> Accepted:
    return await report.accept(deps(call).fleet, call.principal.id, call.path["id"], call.body)


async def status(call: Call[StatusReport]) -> ReportAnswer:
    house, job_id = deps(call), call.path["id"]
    if call.principal.attempt:
        answer = await report.report_of_attempt(house.fleet, call.principal.id, job_id, call.body)
    else:
        answer = await report.report(house.fleet, await _known_worker(call), job_id, call.body)
    if call.body.status in FINAL_REPORTS:
        house.log_bells.ring(job_id)
    return answer


async def _known_worker(call: Call[StatusReport]) -> Worker:
    """As remembered at the door: the report itself reads the row anew."""
    worker = await deps(call).credentials.worker(call.principal.token_hash)
    if worker is None:
        raise InvalidToken
    return worker


async def logs(call: Call[LogChunk]) -> LogAnswer:
    house, job_id, chunk = deps(call), call.path["id"], call.body
    attempt = call.principal.attempt
    if attempt and (attempt.job_id, attempt.epoch) != (job_id, chunk.epoch):
        raise StaleAttempt
    try:
        data = base64.b64decode(chunk.data, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid("data is base64.", path="$.data") from None
    if chunk.offset < 0:
        raise Invalid("offset is 0 or more.", path="$.offset")
    if chunk.offset + len(data) > MAX_LOG_BYTES:
        raise TooLarge(f"The log of one attempt may have at most {MAX_LOG_BYTES} bytes.")
    worker_id = attempt.worker_id if attempt else call.principal.id
    size = await report.append_log(
        house.fleet, house.blobs, worker_id, job_id, chunk.epoch, chunk.offset, data
    )
    house.log_bells.ring(job_id)
    return LogAnswer(next_offset=size)


async def disconnect(call: Call[Goodbye | None]) -> Left:
    message = call.body or Goodbye()
    refuse_other_worker(call, message.worker_id)
    await attendance.goodbye(deps(call).fleet, await own_worker(call), message, ip=call.ip)
    return Left()


async def queue(call: Call[None]) -> HasJobs:
    refuse_other_worker(call, call.query.worker_id)
    return HasJobs(await attendance.has_jobs(deps(call).fleet, (await own_worker(call)).id))


ROUTES = [
    Route(
        "POST",
        "/api/workers/register",
        register,
        WORKER,
        Register,
        Registered,
        "Register and report capabilities",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/heartbeat",
        heartbeat,
        WORKER,
        Heartbeat,
        HeartbeatAnswer,
        "Periodic keepalive; the answer carries the same instructions as the stream",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/accept",
        accept,
        WORKER,
        Accept,
        Accepted,
        "Take an offer; saying so again is harmless",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/status",
        status,
        UPLOAD,
        StatusReport,
        ReportAnswer,
        "Report job progress and its end",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/logs",
        logs,
        UPLOAD,
        LogChunk,
        LogAnswer,
        "Append to the log of an attempt, resumable by offset",
        max_body_bytes=2 * KIB * KIB,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/disconnect",
        disconnect,
        WORKER,
        Goodbye,
        Left,
        "Graceful shutdown notification",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/workers/queue",
        queue,
        WORKER,
        answer=HasJobs,
        summary="Whether this worker still has a job to do, asked by older agents before they leave",
        query=WorkerQuery,
        tags=TAGS,
    ),
]
