"""Lists and shows jobs, explains why they wait, retries and deletes them."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count, Name
from simpletuner_fleet.core.jobs.finding import JobSearch, JobSort, SearchWord, read_order
from simpletuner_fleet.core.jobs.submitting.submit_request import RetryRequest
from simpletuner_fleet.core.placement.forecast import BusyWorker, OtherWay
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import (
    CancelBody,
    PageSize,
    cancel,
    checkpoint_now,
    current,
    listed,
    submitter,
    validate_now,
)
from simpletuner_fleet.http.api.ownership import NotYourJob, may_steer, refuse_job_of_another
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import (
    AttemptsView,
    ExplainView,
    FoundJobsPage,
    JobEventsView,
    WholeJobView,
    attempt_view,
    explain_view,
    job_event_view,
    note_view,
)
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.steering import deleting
from simpletuner_fleet.queries import outlook, read_models

TAGS = ("jobs",)
EVENTS_TOLD = 1000


class JobListQuery(JobSearch, kw_only=True):
    worker_id: SearchWord | None = None
    """The same as `worker`."""
    config_name: SearchWord | None = None
    """The same as `config`."""
    sort: SearchWord = str(JobSort.CREATED)
    """created, started, finished, priority, name, config, attempts or queue; with a minus before it the other way round."""
    cursor: str | None = None
    limit: PageSize = 50


async def list_jobs(call: Call[None]) -> FoundJobsPage:
    query: JobListQuery = call.query
    search = replace(query, worker=query.worker or query.worker_id, config=query.config or query.config_name)
    return await listed(call, search, read_order(query.sort), query.cursor, query.limit)


async def get_job(call: Call[None]) -> WholeJobView:
    return await current(call)


async def explain(call: Call[None]) -> ExplainView:
    return explain_view(await read_models.explained(deps_of(call).fleet, call.path["id"]))


class StartForecastView(Struct, kw_only=True):
    """Forecasts a job's start, if the others end as expected and no other job comes between."""

    at: str | None
    worker: str
    job_id: str
    job: str
    """The one whose end it waits for."""
    ahead: int
    """How many wait before it: with each of them it is less sure."""


class OutlookView(Struct, kw_only=True):
    start: StartForecastView | None
    """Null where nobody can say: no running job that must end before tells how fast it goes."""
    now_with: list[OtherWay]
    """Requests with which it would start now; each differs in one field."""
    busy: list[BusyWorker]
    """Where start is null: workers that would fit, each with a job there of which nobody knows when it ends."""


async def when(call: Call[None]) -> OutlookView:
    prospect = await outlook.outlook(deps_of(call).fleet, call.path["id"])
    start = prospect.start
    return OutlookView(
        start=StartForecastView(
            at=rfc3339(start.at), worker=start.worker, job_id=start.job_id, job=start.job, ahead=start.ahead
        )
        if start
        else None,
        now_with=prospect.now_with,
        busy=prospect.busy,
    )


async def attempts(call: Call[None]) -> AttemptsView:
    rows = await read_models.attempts_of(deps_of(call).fleet, call.path["id"])
    return AttemptsView([attempt_view(attempt) for attempt in rows])


async def events(call: Call[None]) -> JobEventsView:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    await read_models.one_job(fleet, job_id)
    entries, notes = await fleet.read(
        lambda view: (view.job_events(job_id, EVENTS_TOLD), view.notes_of_job(job_id))
    )
    return JobEventsView([job_event_view(entry) for entry in entries], [note_view(note) for note in notes])


class RetryBody(Struct, kw_only=True, forbid_unknown_fields=True):
    resume_from: Name | None = None
    """JOB or JOB:STEP: go on from what that job has stored, usually this one; from the start where it is left out."""
    max_cost_micros: Count | UnsetType | None = UNSET
    """Another cost limit, in millionths of the currency's unit; what the job has cost counts on. null: none any more."""


async def retry(call: Call[RetryBody | None]) -> WholeJobView:
    await refuse_job_of_another(call)
    body = call.body or RetryBody()
    key = call.headers.get("idempotency-key")
    request = RetryRequest(resume_from=body.resume_from, max_cost_micros=body.max_cost_micros)
    job = await submit.retry(deps_of(call).fleet, call.path["id"], submitter(call), request, key)
    return await current(call, job)


class DeletedJobView(Struct, kw_only=True):
    id: str
    deleted_at: str | None


async def delete(call: Call[None]) -> DeletedJobView:
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    await refuse_job_of_another(call)
    gone = await fleet.read_now(lambda view: view.deleted_job(job_id))
    if gone is None:
        gone = await deleting.delete(fleet, job_id, call.actor)
    elif not may_steer(call, gone):
        raise NotYourJob
    return DeletedJobView(id=gone.id, deleted_at=rfc3339(gone.deleted_at))


def _get(path: str, handler: Any, answer: Any, summary: str, query: Any = None) -> Route:
    return Route("GET", path, handler, "jobs.read", answer=answer, summary=summary, query=query, tags=TAGS)


ROUTES = [
    _get("/api/jobs", list_jobs, FoundJobsPage, "Jobs, newest first or in another order", JobListQuery),
    _get("/api/jobs/{id}", get_job, WholeJobView, "One job"),
    _get("/api/jobs/{id}/explain", explain, ExplainView, "Why a job waits, and what would help"),
    _get(
        "/api/jobs/{id}/outlook",
        when,
        OutlookView,
        "When a waiting job would start, and what would start now",
    ),
    _get("/api/jobs/{id}/attempts", attempts, AttemptsView, "Every try at a job, oldest first"),
    _get("/api/jobs/{id}/events", events, JobEventsView, "What happened to a job"),
    Route(
        "POST",
        "/api/jobs/{id}/cancel",
        cancel,
        "jobs.cancel",
        CancelBody,
        WholeJobView,
        "Cancel a job, on request with a checkpoint saved first",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/jobs/{id}/checkpoint",
        checkpoint_now,
        "jobs.cancel",
        answer=WholeJobView,
        summary="Ask a running job for a checkpoint; it trains on",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/jobs/{id}/validate",
        validate_now,
        "jobs.cancel",
        answer=WholeJobView,
        summary="Ask a running job to validate; it trains on",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/jobs/{id}/retry",
        retry,
        "jobs.retry",
        RetryBody,
        WholeJobView,
        "Try an ended job again, as a new job with the same copy of everything",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/jobs/{id}",
        delete,
        "jobs.cancel",
        answer=DeletedJobView,
        summary="Delete an ended job's record, log, curves, checkpoints and artifacts",
        tags=TAGS,
    ),
]
