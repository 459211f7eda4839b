"""Checks ownership: a worker acts only for itself, and most users act only on their own jobs."""

from functools import wraps
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import FleetError, Forbidden, no_such_job
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.jobs.submitting.submit_request import SET_PRIORITY, refuse_priority_beyond
from simpletuner_fleet.core.people.own_roles import only_own_jobs, permissions_held
from simpletuner_fleet.core.people.ownership import Writer, stands_above
from simpletuner_fleet.core.people.permissions import allowed, may_steer_job
from simpletuner_fleet.core.people.teams import priority_ceiling
from simpletuner_fleet.engine.visibility import ScopedFleet
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import Access, Answer, Call, Route

ABOUT_ONE_JOB = (
    "/api/jobs/{id}",
    "/api/queue/{id}",
    "/api/queue/position/{id}",
    "/api/approvals/{id}",
    "/jobs/{id}",
)


class OtherWorker(Forbidden):
    """This token belongs to another worker."""

    code = "other_worker"
    next_step = "Use the worker_id returned by the registration."

    def __init__(self) -> None:
        FleetError.__init__(self)


def refuse_other_worker(call: Call[Any], named: str | None) -> None:
    """Raises OtherWorker where `named`, the worker that the message names as its sender, is not the caller.

    Older agents name one everywhere.
    """
    if named and named != call.principal.id:
        raise OtherWorker


class NotYourJob(Forbidden):
    """This job belongs to someone else."""

    code = "not_your_job"
    next_step = "Ask its owner or an administrator."

    def __init__(self) -> None:
        FleetError.__init__(self)


def writer_of(call: Call[Any]) -> Writer:
    caller = call.principal
    return Writer(
        actor=call.actor,
        owns_as=caller.owns_as,
        above=stands_above(caller.permissions),
        scope=visibility_scope_of(call),
    )


def acts_for_itself_alone(call: Call[Any]) -> bool:
    """Tells whether the caller, or the user that a token acts for, may act only on their own jobs."""
    caller = call.principal
    if not caller.owner_id:
        return caller.only_own
    organisation = deps_of(call).fleet.organisation
    role = organisation.roles.get(caller.owner_id)
    return role is None or only_own_jobs(role, organisation.own_roles)


def holds_by_role(call: Call[Any], permission: str) -> bool:
    """Tells whether the caller holds the permission by their role, not only as the lead of some team."""
    caller, organisation = call.principal, deps_of(call).fleet.organisation
    user_id = caller.owner_id or caller.id
    if not caller.can(permission) or not organisation.leads_any(user_id):
        return caller.can(permission)
    role = organisation.roles.get(user_id)
    return role is not None and allowed(permissions_held(role, organisation.own_roles), permission)


def refuse_priority_for(call: Call[Any], job: Job, number: int) -> None:
    """Raises for a priority that the caller may not set: a lead raises a team's job as far as its rules allow."""
    team = deps_of(call).fleet.organisation.teams.get(job.team)
    ids = frozenset({call.principal.id, call.principal.owns_as})
    may_raise = holds_by_role(call, SET_PRIORITY)
    refuse_priority_beyond(priority_ceiling(team, ids), number, may_raise=may_raise)


async def refuse_job_of_another(call: Call[Any], *, even_own: bool = False) -> None:
    """Raises NotYourJob for another's job. A job keeps its owner and team, so checking before the act is enough.

    With `even_own` the owner may not do it either, but only who leads the job's team.
    """
    if not acts_for_itself_alone(call):
        return
    job = await deps_of(call).fleet.read_now(lambda view: view.job(call.path["id"]))
    if job is not None and not may_steer(call, job, even_own=even_own):
        raise NotYourJob


def may_steer(call: Call[Any], job: Job | DeletedJob, *, even_own: bool = False) -> bool:
    ids = frozenset({call.principal.id, call.principal.owns_as})
    return may_steer_job(
        only_own=acts_for_itself_alone(call),
        callers=() if even_own else ids,
        owner=job.owner,
        leads_its_team=bool(job.team) and job.team in deps_of(call).fleet.organisation.led_by(ids),
    )


def guarded(row: Route) -> Route:
    """Returns the row with a check first: to a caller who may not see a job, there is no such job, whatever they ask.

    It is one rule for every such row.
    """
    if not row.path.startswith(ABOUT_ONE_JOB) or row.permission in (Access.WORKER, Access.UPLOAD):
        return row
    handler = row.handler

    @wraps(handler)
    async def look_first(call: Call[Any]) -> Answer:
        deps = deps_of(call)
        if isinstance(deps.fleet, ScopedFleet):
            job_id = call.path["id"]
            seen = await deps.fleet.read_now(lambda view: view.job(job_id) or view.deleted_job(job_id))
            if seen is None or (isinstance(seen, DeletedJob) and row.method != "DELETE"):
                raise no_such_job(job_id)
        return await handler(call)

    return replace(row, handler=look_first)
