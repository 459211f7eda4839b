"""Serves the workers' messages: one row per message of the protocol."""

from collections.abc import Awaitable

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid, InvalidToken, Superseded
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.http.access.auth import refuse_misshapen
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.api.ownership import refuse_other_worker
from simpletuner_fleet.http.edge.routes import KIB, PUBLIC, UPLOAD, WORKER, Call, Route
from simpletuner_fleet.orchestrator import trainer_options as options_of
from simpletuner_fleet.orchestrator.machines import joining
from simpletuner_fleet.orchestrator.workers import attendance, registration, report
from simpletuner_fleet.protocol.messages import (
    FINAL_REPORTS,
    Accept,
    Accepted,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    JoinMachine,
    MachineJoined,
    Register,
    Registered,
    ReportAnswer,
    StatusReport,
    TrainerOptions,
)

TAGS = ("workers",)
MAX_OPTIONS_BYTES = 2 * KIB * KIB


class HasJobs(Struct):
    has_jobs: bool
    name: str
    """How the worker is called that the token belongs to."""


class WorkerIdQuery(Struct, kw_only=True):
    worker_id: str | None = None


class Left(Struct):
    success: bool = True


async def join(call: Call[JoinMachine]) -> MachineJoined:
    """Lets a machine join: whoever has the token is the machine.

    A used or unknown token is refused, with no details.
    """
    token = call.headers.get("x-worker-token", "")
    refuse_misshapen(token, tokens.JOIN)
    joined = await joining.join(deps_of(call).fleet, token, call.body.home)
    return MachineJoined(worker_id=joined.worker_id, name=joined.name, token=joined.token)


async def register(call: Call[Register]) -> Registered:
    deps = deps_of(call)
    try:
        answer = await registration.register(
            deps.fleet,
            call.principal.id,
            call.body,
            ip=call.ip,
            base_url=deps.base_url(call),
            token_hash=call.principal.token_hash,
        )
    except (Invalid, Superseded) as error:
        if deps.noted_refusals.take(call.principal.id) == 0.0:
            refusal = registration.FailedRegistration(
                ip=call.ip, why=error.detail, code=error.code, worker_id=call.principal.id
            )
            await registration.registration_failed(deps.fleet, refusal)
        raise
    answer.ends, answer.addresses = call.ends(), [deps.base_url(call)]
    return answer


async def heartbeat(call: Call[Heartbeat]) -> HeartbeatAnswer:
    refuse_other_worker(call, call.body.worker_id)
    deps = deps_of(call)
    return await attendance.heartbeat(
        deps.fleet,
        call.principal.id,
        call.body,
        base_url=deps.base_url(call),
        token_hash=call.principal.token_hash,
    )


def accept(call: Call[Accept]) -> Awaitable[Accepted]:
    return report.accept(deps_of(call).fleet, call.principal.id, call.path["id"], call.body)


async def status(call: Call[StatusReport]) -> ReportAnswer:
    deps, job_id = deps_of(call), call.path["id"]
    if call.principal.attempt:
        answer = await report.report_of_attempt(deps.fleet, call.principal.id, job_id, call.body)
    else:
        token_hash = call.principal.token_hash
        worker = deps.credentials.worker_in_memory(token_hash) or await _known_worker(deps, token_hash)
        answer = await report.report(deps.fleet, worker, job_id, call.body)
    if call.body.status in FINAL_REPORTS:
        deps.log_wakeups.wake(job_id)
    return answer


async def _known_worker(deps: Deps, token_hash: str) -> Worker:
    """Returns the worker whose token this still is: the report itself reads the row anew."""
    worker = await deps.credentials.worker(token_hash)
    if worker is None:
        raise InvalidToken
    return worker


async def disconnect(call: Call[Goodbye | None]) -> Left:
    message = call.body or Goodbye()
    refuse_other_worker(call, message.worker_id)
    sender = call.principal
    await attendance.goodbye(
        deps_of(call).fleet, sender.id, message, ip=call.ip, token_hash=sender.token_hash
    )
    return Left()


async def trainer_options(call: Call[TrainerOptions]) -> Left:
    await options_of.keep_options(
        deps_of(call).fleet, call.principal.id, call.body.trainer, call.body.options
    )
    return Left()


async def queue(call: Call[None]) -> HasJobs:
    refuse_other_worker(call, call.query.worker_id)
    has_jobs = await attendance.has_jobs(deps_of(call).fleet, call.principal.id)
    return HasJobs(has_jobs, call.principal.name)


ROUTES = [
    Route(
        "POST",
        "/api/workers/join",
        join,
        PUBLIC,
        JoinMachine,
        MachineJoined,
        "Exchange a machine's one-time token, sent in X-Worker-Token, for a worker's own",
        tags=TAGS,
    ),
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
        prompt=True,
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
        prompt=True,
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
        prompt=True,
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
        "POST",
        "/api/workers/trainer-options",
        trainer_options,
        WORKER,
        TrainerOptions,
        Left,
        "Tell which options a trainer of this worker takes",
        max_body_bytes=MAX_OPTIONS_BYTES,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/workers/queue",
        queue,
        WORKER,
        answer=HasJobs,
        summary="Whether this worker still has a job to do, asked by older agents before they leave",
        query=WorkerIdQuery,
        tags=TAGS,
    ),
]
