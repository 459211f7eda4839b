"""Submits jobs to the queue, lists them in order, and changes, approves or cancels them."""

from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Name, Remark, Seconds, Whole
from simpletuner_fleet.core.jobs.finding import JobOrder, JobSearch
from simpletuner_fleet.core.jobs.job import Hold, Job
from simpletuner_fleet.core.jobs.submitting.going_on import READ_JOBS
from simpletuner_fleet.core.jobs.submitting.submit_request import (
    APPROVE,
    SET_PRIORITY,
    SUBMIT_COMMAND,
    SUBMIT_LOCAL,
    SubmitRequest,
    Submitter,
    read_priority,
)
from simpletuner_fleet.core.money.estimate import Estimate
from simpletuner_fleet.http.api.admin.approvals import NoteBody, voter_for
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of, whole_deps
from simpletuner_fleet.http.api.ownership import (
    acts_for_itself_alone,
    holds_by_role,
    refuse_job_of_another,
    refuse_priority_for,
)
from simpletuner_fleet.http.edge.routes import KIB, Call, Route
from simpletuner_fleet.http.views.jobs import (
    ExplainView,
    FoundJobsPage,
    JobView,
    WholeJobView,
    explain_view,
    job_view,
    whole_job_view,
)
from simpletuner_fleet.http.views.times import read_moment
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.organising import approvals
from simpletuner_fleet.orchestrator.steering import trainer_requests
from simpletuner_fleet.queries import finding, read_models

TAGS = ("queue",)
MAX_SUBMIT_BYTES = 6 * KIB * KIB
MOST_SUBMITTERS = 1_000
"""So many are remembered, each from one address."""
PageSize = Annotated[int, Meta(ge=1, le=500)]


class SubmitBody(SubmitRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the job to submit. A misspelt field is an error, not ignored."""


class SubmitAnswer(Struct, kw_only=True):
    success: bool
    job_id: str | None
    status: str
    queue_position: int | None
    allocated_worker_id: str | None
    allocated_gpus: list[str]
    explain: ExplainView | None
    config: submit.ConfigUsed | None = None
    """The saved config that it runs, in which version and by whom; null where the config came with the request."""
    repeated: bool = False
    """The same request with the same idempotency key had been carried out before."""
    idempotent_hit: bool = False
    """The same as `repeated`."""
    requires_approval: bool = False
    """It waits for somebody's approval; in a dry run, it would."""
    dry_run: bool = False
    would_start_now: bool | UnsetType = UNSET
    matching_workers: int | UnsetType = UNSET
    """In a dry run, how many workers could ever take the job."""
    idle_workers: int | UnsetType = UNSET
    """In a dry run, how many of them have room for it now."""
    estimate: Estimate | None = None
    """In a dry run, what the job would cost and how sure that is; null where no price is known."""
    quotas: list[dict[str, Any]] = []
    """Quotas that are nearly or wholly used: which, whose, how much of it, and when some comes back."""


class PriorityBody(Struct, kw_only=True, forbid_unknown_fields=True):
    priority: Whole | Name


class RejectBody(Struct, kw_only=True, forbid_unknown_fields=True):
    reason: Remark = ""


class RejectQuery(Struct, kw_only=True):
    reason: Remark = ""
    """The same as in the body, for who sends none."""


class CancelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    checkpoint_first: bool = False
    """Ask the trainer for a checkpoint, store it, then stop. A second call without it hurries."""
    grace_s: Seconds | None = None
    """The time from the request to end to the kill; the server's own where it is left out."""


def submitter(call: Call[Any]) -> Submitter:
    """Returns who submits and what they may.

    That follows from the caller, the address and the organisation alone, none of which is ever changed in place: it is
    worked out anew only where one of them is another.
    """
    deps, key = whole_deps(call), (call.principal, call.ip)
    organisation = deps.fleet.organisation
    if deps.submitters_in is not organisation or len(deps.submitters) >= MOST_SUBMITTERS:
        deps.submitters, deps.submitters_in = {}, organisation
    known = deps.submitters.get(key)
    if known is None:
        known = deps.submitters[key] = _submitter(call)
    return known


def _submitter(call: Call[Any]) -> Submitter:
    return Submitter(
        actor=call.actor,
        may_run_locally=call.principal.can(SUBMIT_LOCAL),
        may_approve=holds_by_role(call, APPROVE) and not acts_for_itself_alone(call),
        may_raise_priority=holds_by_role(call, SET_PRIORITY),
        may_lead=call.principal.can(SET_PRIORITY),
        owns_as=call.principal.owns_as,
        may_read_jobs=call.principal.can(READ_JOBS),
        may_run_commands=call.principal.can(SUBMIT_COMMAND),
        scope=visibility_scope_of(call),
    )


async def submit_job(call: Call[SubmitBody]) -> SubmitAnswer:
    deps, request = deps_of(call), call.body
    key = call.headers.get("idempotency-key")
    if key:
        request = replace(request, idempotency_key=key)
    submitted = await submit.submit(deps.fleet, submitter(call), request, local_enabled=deps.local_enabled)
    job = submitted.job
    return SubmitAnswer(
        success=True,
        job_id=None if request.dry_run else job.id,
        status=job.state,
        queue_position=submitted.position,
        allocated_worker_id=job.worker_id,
        allocated_gpus=list(job.gpus),
        explain=explain_view(submitted.explanation) if submitted.explanation else None,
        config=submitted.config,
        repeated=submitted.repeated,
        idempotent_hit=submitted.repeated,
        requires_approval=job.hold is Hold.APPROVAL,
        dry_run=request.dry_run,
        would_start_now=UNSET if submitted.would_start_now is None else submitted.would_start_now,
        matching_workers=submitted.fleet.possible if submitted.fleet else UNSET,
        idle_workers=submitted.fleet.free if submitted.fleet else UNSET,
        estimate=submitted.estimate,
        quotas=submitted.quotas,
    )


async def listed(
    call: Call[Any], search: JobSearch, order: JobOrder, cursor: str | None, limit: int
) -> FoundJobsPage:
    fleet = deps_of(call).fleet
    moment = partial(read_moment, now=fleet.clock.now())
    page = await finding.find(fleet, search, moment, order=order, cursor=cursor, limit=limit)
    return FoundJobsPage(
        jobs=[shown(seen) for seen in page.rows],
        next=page.next,
        previous=page.previous,
        total=page.total,
        at_least=page.at_least,
        first=page.first,
        by_state=page.by_state,
    )


async def cancel(call: Call[CancelBody | None]) -> WholeJobView:
    await refuse_job_of_another(call)
    options = call.body or CancelBody()
    await submit.cancel(
        deps_of(call).fleet,
        call.path["id"],
        call.actor,
        checkpoint_first=options.checkpoint_first,
        grace_s=options.grace_s,
    )
    return await current(call)


async def checkpoint_now(call: Call[None]) -> WholeJobView:
    await refuse_job_of_another(call)
    await trainer_requests.checkpoint_now(deps_of(call).fleet, call.path["id"], call.actor)
    return await current(call)


async def validate_now(call: Call[None]) -> WholeJobView:
    await refuse_job_of_another(call)
    await trainer_requests.validate_now(deps_of(call).fleet, call.path["id"], call.actor)
    return await current(call)


async def set_priority(call: Call[PriorityBody]) -> WholeJobView:
    await refuse_job_of_another(call, even_own=True)
    fleet, job_id = deps_of(call).fleet, call.path["id"]
    job = await fleet.read_now(lambda view: view.job(job_id))
    if job is not None:
        refuse_priority_for(call, job, read_priority(call.body.priority))
    await submit.set_priority(fleet, job_id, call.body.priority, call.actor)
    return await current(call)


async def approve(call: Call[NoteBody | None]) -> WholeJobView:
    await refuse_job_of_another(call, even_own=True)
    note, voter = call.body.note if call.body else "", await voter_for(call)
    await approvals.approve(deps_of(call).fleet, call.path["id"], voter, call.actor, note)
    return await current(call)


async def reject(call: Call[RejectBody | None]) -> WholeJobView:
    await refuse_job_of_another(call, even_own=True)
    why = (call.body.reason if call.body else "") or call.query.reason
    voter = await voter_for(call)
    await approvals.reject(deps_of(call).fleet, call.path["id"], voter, call.actor, why)
    return await current(call)


async def current(call: Call[Any], job: Job | None = None) -> WholeJobView:
    """Returns the job as it is after the act, in the same form as everywhere else."""
    seen = await read_models.one_job(deps_of(call).fleet, job.id if job else call.path["id"])
    fleet = deps_of(call).fleet
    return whole_job_view(shown(seen), seen.publication, seen.cost, fleet.organisation.prices.currency)


def shown(seen: read_models.SeenJob) -> JobView:
    return job_view(seen.job, seen.attempt, seen.explanation, seen.position, seen.checkpoint_step)


ROUTES = [
    Route(
        "POST",
        "/api/queue/submit",
        submit_job,
        "queue.submit",
        SubmitBody,
        SubmitAnswer,
        "Submit a job",
        max_body_bytes=MAX_SUBMIT_BYTES,
        tags=TAGS,
        prompt=True,
    ),
    Route(
        "POST",
        "/api/queue/{id}/cancel",
        cancel,
        "queue.cancel",
        CancelBody,
        WholeJobView,
        "Cancel a job, on request with a checkpoint saved first",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/queue/{id}/priority",
        set_priority,
        "queue.priority",
        PriorityBody,
        WholeJobView,
        "Move a job in the queue",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/queue/{id}/approve",
        approve,
        "queue.approve",
        NoteBody,
        WholeJobView,
        "Let a job that waits for an approval queue",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/queue/{id}/reject",
        reject,
        "queue.approve",
        RejectBody,
        WholeJobView,
        "Refuse a job that waits for an approval",
        query=RejectQuery,
        body_required=False,
        tags=TAGS,
    ),
]
