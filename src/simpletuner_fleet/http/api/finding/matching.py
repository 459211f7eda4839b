"""Applies one act to all matching jobs: it counts them first, and that number then confirms the act."""

from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count, FreeText, Name, Whole
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.finding import JobSearch, check_tags
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.submitting.submit_request import read_priority
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import submitter
from simpletuner_fleet.http.api.ownership import (
    NotYourJob,
    acts_for_itself_alone,
    may_steer,
    refuse_priority_for,
)
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.times import read_moment
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.steering import deleting, marking, matching
from simpletuner_fleet.orchestrator.steering.matching import ActedOn, FilterOf, JobStep, MassAct
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.finding import filter_of

TAGS = ("jobs",)


class SearchBody(JobSearch, kw_only=True, forbid_unknown_fields=True):
    """Describes a search for jobs, with the same fields as the query of the list of jobs."""


class CountBody(Struct, kw_only=True, forbid_unknown_fields=True):
    search: SearchBody
    act: MassAct


class CountView(Struct, kw_only=True):
    count: int
    """How many of the matching jobs the act is for."""
    at_least: bool
    """Of the waiting jobs not all were asked for their reason: others may match as well."""


class MassBody(Struct, kw_only=True, forbid_unknown_fields=True):
    search: SearchBody
    expected: Count
    """How many jobs the caller was told of. Where it is another number by now, nothing is changed and 409 says so."""
    cursor: FreeText | None = None
    """What the call before gave as `next`: some hundred jobs are acted on in one call."""


class MassCancelBody(MassBody, kw_only=True, forbid_unknown_fields=True):
    checkpoint_first: bool = False


class MassPriorityBody(MassBody, kw_only=True, forbid_unknown_fields=True):
    priority: Whole | Name


class MassTagsBody(MassBody, kw_only=True, forbid_unknown_fields=True):
    add: list[FreeText] = field(default_factory=list)
    remove: list[FreeText] = field(default_factory=list)


async def count(call: Call[CountBody]) -> CountView:
    asked = _filter(call, call.body.search)
    counted = await matching.count(deps_of(call).fleet, asked, call.body.act)
    return CountView(count=counted.count, at_least=counted.at_least)


async def cancel(call: Call[MassCancelBody]) -> ActedOn:
    def step(transaction: Transaction, job: Job) -> None:
        submit.cancel_in(transaction, job.id, call.actor, call.body.checkpoint_first, None)

    return await _acted(call, MassAct.CANCEL, step)


async def retry(call: Call[MassBody]) -> ActedOn:
    by = submitter(call)

    def step(transaction: Transaction, job: Job) -> None:
        submit.retry_in(transaction, job.id, by)

    return await _acted(call, MassAct.RETRY, step)


async def set_priority(call: Call[MassPriorityBody]) -> ActedOn:
    number = read_priority(call.body.priority)

    def step(transaction: Transaction, job: Job) -> None:
        refuse_priority_for(call, job, number)
        if job.priority != number:
            transaction.apply(lifecycle.set_priority(job, number, transaction.policy, call.actor))

    return await _acted(call, MassAct.PRIORITY, step)


async def change_tags(call: Call[MassTagsBody]) -> ActedOn:
    add, remove = check_tags(call.body.add, "$.add"), check_tags(call.body.remove, "$.remove")

    def step(transaction: Transaction, job: Job) -> None:
        marking.tag_in(transaction, job.id, add, remove, call.actor)

    return await _acted(call, MassAct.TAGS, step)


async def delete(call: Call[MassBody]) -> ActedOn:
    def step(transaction: Transaction, job: Job) -> None:
        deleting.delete_in(transaction, job.id, call.actor)

    return await _acted(call, MassAct.DELETE, step)


async def _acted(call: Call[Any], act: MassAct, step: JobStep) -> ActedOn:
    body: MassBody = call.body

    def permitted_step(transaction: Transaction, job: Job) -> None:
        if not may_steer(call, job, even_own=act is MassAct.PRIORITY):
            raise NotYourJob
        step(transaction, job)

    return await matching.act_on_all(
        deps_of(call).fleet,
        _filter(call, body.search),
        act,
        permitted_step,
        search=body.search,
        actor=call.actor,
        expected=body.expected,
        cursor=body.cursor,
    )


def _filter(call: Call[Any], search: JobSearch) -> FilterOf:
    """Returns the filter of a search. Most users act only on their own jobs: others' do not match."""
    fleet, caller = deps_of(call).fleet, call.principal
    now, alone, standing = fleet.clock.now(), acts_for_itself_alone(call), fleet.standing()
    moment = partial(read_moment, now=now)

    def read(view: View) -> tuple[JobFilter, bool]:
        where, at_least = filter_of(view, search, moment, now, standing)
        if not alone:
            return where, at_least
        others = where.owner not in (None, caller.id)
        own = replace(where, owner=caller.id, waiting_groups=() if others else where.waiting_groups)
        return own, at_least and not others

    return read


def _post(name: str, handler: Any, permission: str, body: Any, answer: Any, summary: str) -> Route:
    return Route("POST", f"/api/matching/{name}", handler, permission, body, answer, summary, tags=TAGS)


ROUTES = [
    _post("count", count, "jobs.read", CountBody, CountView, "How many matching jobs an act would be for"),
    _post("cancel", cancel, "jobs.cancel", MassCancelBody, ActedOn, "Cancel all matching jobs"),
    _post("retry", retry, "jobs.retry", MassBody, ActedOn, "Try all matching ended jobs again"),
    _post(
        "priority",
        set_priority,
        "queue.priority",
        MassPriorityBody,
        ActedOn,
        "Set the priority of all matching jobs",
    ),
    _post("tags", change_tags, "jobs.edit", MassTagsBody, ActedOn, "Tag all matching jobs"),
    _post(
        "delete", delete, "jobs.cancel", MassBody, ActedOn, "Delete the records of all matching ended jobs"
    ),
]
