"""Answers requests about one's own training as older guides write them.

Their server ran one job at a time, so requests do not name a job.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.bounds import Count
from simpletuner_fleet.core.errors import AskedOtherwise, Conflict
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.states import AT_WORK
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs import jobs as jobs_api
from simpletuner_fleet.http.api.jobs import queue as queue_api
from simpletuner_fleet.http.api.older.forms import form_fields
from simpletuner_fleet.http.api.older.wording import Older, WordedRequest, Wording, key_of, on_behalf
from simpletuner_fleet.http.api.ownership import guarded
from simpletuner_fleet.http.edge.bodies import as_type
from simpletuner_fleet.http.edge.routes import Answer, Call
from simpletuner_fleet.ports import JobFilter

TRAINING = "/api/training"
ROWS_MEANT = {key_of(row): guarded(row) for row in (*jobs_api.ROUTES, *queue_api.ROUTES)}
NO_ENVIRONMENT = (
    'No environment is active here: a job names its config, POST /api/queue/submit with {"config_name": NAME}, or brings it '
    'whole, with {"config": {…}}.'
)
DATALOADER = (
    'The dataloader goes with the config: {"config": {"settings": {…}, "dataloader": […]}} to POST /api/queue/submit. '
    "'simpletuner jobs submit' reads the file and sends it; 'simpletuner data push' brings the pictures."
)
SAY_WHICH = "Say which: with job_id, or as POST /api/jobs/ID/cancel, /checkpoint, /validate."
OWN_QUEUE = "See them all with GET /api/queue/me."
SAVED = "A config is saved under a name, with its versions: PUT /api/configs/NAME."
LIVE = (
    "Events come as they happen from GET /api/events, and a job's log from GET /api/jobs/ID/logs?follow=true."
)


class EventsQuery(Struct, kw_only=True):
    since_index: Count = 0
    job_id: str = ""


class OneJobQuery(Struct, kw_only=True):
    job_id: str = ""


def fields_of(call: Call[bytes | None]) -> dict[str, str]:
    return form_fields(call.body, call.headers.get("content-type", "")) if call.body else {}


def the_one(jobs: Iterable[Job]) -> Job | None:
    """Returns the running job; None where nothing runs.

    With more than one, raises Conflict: the caller has to say which.
    """
    running = list(jobs)
    if len(running) > 1:
        raise Conflict(
            "More than one job of yours is running.",
            next_step=SAY_WHICH,
            jobs=[job.id for job in running],
        )
    return running[0] if running else None


async def own_job(call: Call[Any], named: str = "") -> str | None:
    """Returns the caller's own running job, whatever others are doing."""
    if named:
        return named
    where = JobFilter(owner=call.principal.owns_as, states=AT_WORK)
    one = the_one(await deps_of(call).fleet.read(lambda view: view.jobs_page(where, None, 20)))
    return one.id if one else None


async def _ask(call: Call[Any], meant: str, job_id: str | None, said: Wording | None = None) -> Wording:
    if job_id is None:
        raise Conflict("No job of yours is running.", next_step=OWN_QUEUE)
    row = ROWS_MEANT[meant]
    body = as_type(said, row.body) if said is not None else None
    answer = await row.handler(on_behalf(call, row, body, WordedRequest(path={"id": job_id}, body={})))
    plain: Wording = msgspec.to_builtins(answer)
    return plain


async def status(call: Call[None]) -> Answer:
    job_id = await own_job(call, call.query.job_id)
    if job_id is None:
        return {"status": "idle", "job_id": None}
    return {**await _ask(call, "GET /api/jobs/{id}", job_id), "job_id": job_id}


async def events(call: Call[None]) -> Answer:
    job_id = await own_job(call, call.query.job_id)
    if job_id is None:
        return {"events": [], "next_index": 0, "job_id": None}
    shown = (await _ask(call, "GET /api/jobs/{id}/events", job_id))["events"]
    return {"events": shown[call.query.since_index :], "next_index": len(shown), "job_id": job_id}


async def stop(call: Call[bytes | None]) -> Answer:
    job_id = await own_job(call, fields_of(call).get("job_id", ""))
    return _done(await _ask(call, "POST /api/jobs/{id}/cancel", job_id, {"checkpoint_first": False}), job_id)


async def checkpoint(call: Call[bytes | None]) -> Answer:
    job_id = await own_job(call, fields_of(call).get("job_id", ""))
    return _done(await _ask(call, "POST /api/jobs/{id}/checkpoint", job_id), job_id)


async def validation(call: Call[bytes | None]) -> Answer:
    job_id = await own_job(call, fields_of(call).get("job_id", ""))
    return _done(await _ask(call, "POST /api/jobs/{id}/validate", job_id), job_id)


def _done(answer: Wording, job_id: str | None) -> Wording:
    return {**answer, "success": True, "job_id": job_id}


async def start(call: Call[bytes | None]) -> Answer:
    return await _submit(call, dry_run=False)


async def validate(call: Call[bytes | None]) -> Answer:
    return await _submit(call, dry_run=True)


async def _submit(call: Call[bytes | None], *, dry_run: bool) -> Answer:
    said = fields_of(call)
    settings = {name.lstrip("-"): value for name, value in said.items() if not name.startswith("__")}
    if "model_family" not in settings:
        raise AskedOtherwise(next_step=NO_ENVIRONMENT)
    if not settings.get("data_backend_config", "/").startswith("/"):
        raise AskedOtherwise(next_step=DATALOADER)
    body: Wording = {"config": {"settings": settings}, "dry_run": dry_run}
    return await _ask(call, "POST /api/queue/submit", "", body)


def _form(path: str, does: Any, permission: str) -> Older:
    return Older(asked=f"POST {TRAINING}/{path}", does=does, permission=permission, form=True)


ROWS = [
    Older(asked=f"GET {TRAINING}/status", does=status, permission="jobs.read", query=OneJobQuery),
    Older(asked=f"GET {TRAINING}/events", does=events, permission="jobs.read", query=EventsQuery),
    Older(asked=f"GET {TRAINING}/events/stream", instead=LIVE),
    _form("start", start, "queue.submit"),
    _form("validate", validate, "queue.submit"),
    _form("stop", stop, "jobs.cancel"),
    _form("cancel", stop, "jobs.cancel"),
    _form("checkpoint/run", checkpoint, "jobs.cancel"),
    _form("validation/run", validation, "jobs.cancel"),
    Older(asked=f"POST {TRAINING}/config", instead=SAVED),
]
