"""Lists approvals that wait for the caller or that their jobs wait for, and manages the rules that ask for them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from simpletuner_fleet.core.bounds import Count, Name, Remark, Seconds
from simpletuner_fleet.core.errors import Forbidden, NotFound, no_such_job
from simpletuner_fleet.core.jobs.job import Hold, Job
from simpletuner_fleet.core.jobs.submitting.submit_request import APPROVE
from simpletuner_fleet.core.people.approvals import (
    Approval,
    ApprovalRule,
    Approvers,
    Voter,
    asked_for,
    may_decide,
    missing,
)
from simpletuner_fleet.core.people.own_roles import permissions_held
from simpletuner_fleet.core.people.teams import TeamRole, role_in
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.engine.memory.setting_documents import RULE_PREFIX
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.ownership import acts_for_itself_alone, holds_by_role
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import approvals
from simpletuner_fleet.orchestrator.organising.approvals import BY_SETTING
from simpletuner_fleet.ports import JobFilter, View

TAGS = ("approvals",)
READ = "queue.read"
PERMISSION = "admin.limits"
APPROVALS = "/api/approvals"
MOST_TOLD = 500

Place = tuple[float, str]
"""When an approval was asked for, and for which job."""


class RequirementView(Struct, kw_only=True):
    why: str
    by: str
    people: list[str]
    count: int


class VoteView(Struct, kw_only=True):
    name: str
    at: str | None
    note: str


class ApprovalView(Struct, kw_only=True):
    id: str
    """The job's: it waits for one decision at a time."""
    job_id: str
    job_name: str
    owner: str
    owner_name: str
    team: str
    gpus: int
    state: str
    status: str
    """The same as `state`."""
    requirements: list[RequirementView]
    missing: list[str]
    """Whose word it still waits for, by the name of the rule."""
    votes: list[VoteView]
    asked_at: str | None
    expires_at: str | None
    """Null: it waits for ever."""
    decided_at: str | None
    decided_by: str
    note: str
    yours_to_decide: bool


class PendingView(Struct):
    approvals: list[ApprovalView]
    at_least: bool = False
    """There are so many that not all are listed."""


class RequestsView(Struct):
    """Lists pending approvals, under the name that the trainer's own guide has for them."""

    requests: list[ApprovalView]
    pending_count: int
    at_least: bool = False
    """There are so many that not all are listed or counted."""


class PendingCount(Struct):
    count: int
    at_least: bool = False
    """There are so many that not all were counted."""


class NoteBody(Struct, kw_only=True, forbid_unknown_fields=True):
    note: Remark = ""


class RuleBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes an approval rule. A job needs an approval where it meets every condition that is named.

    Where none is, every job does.
    """

    name: Name
    gpus_over: Count | None = None
    hours_over: Seconds | None = None
    cost_over_micros: Count | None = None
    """In millionths of the currency's unit, by the estimate; a job of which nobody can say is over."""
    gpu: Name = ""
    first_job: bool = False
    config: Name = ""
    trainer: Name = ""
    team: Name = ""
    """Name or id."""
    by: Approvers = Approvers.LEADS
    people: list[Name] = []
    """Names or ids."""
    count: Count = 1
    expires_s: Seconds = 86_400.0
    exempts_approvers: bool = True


class RulesView(Struct):
    rules: list[ApprovalRule]
    unreadable: list[str]
    """The ids of rules that cannot be read and are not in the list; while there is one every job needs an approval."""


def voter_of(call: Call[Any], job: Job) -> Voter:
    """Returns the caller as a voter; a token votes for a lead only where it may approve."""
    caller, team = call.principal, deps_of(call).fleet.organisation.teams.get(job.team)
    ids = frozenset(one for one in (caller.id, caller.owner_id) if one)
    return Voter(
        ids=ids,
        name=caller.name,
        leads_its_team=team is not None and caller.can(APPROVE) and role_in(team, ids) is TeamRole.LEAD,
        above=holds_by_role(call, APPROVE) and not acts_for_itself_alone(call),
    )


async def voter_for(call: Call[Any]) -> Voter:
    job_id = call.path["id"]
    job = await deps_of(call).fleet.read_now(lambda view: view.job(job_id))
    if job is None:
        raise no_such_job(job_id)
    if _is_too_narrow(call):
        raise Forbidden(APPROVE)
    return voter_of(call, job)


def _is_too_narrow(call: Call[Any]) -> bool:
    """Tells whether the caller is a token that may neither approve nor do all that its user may.

    A rule may name anybody, whatever their role, but not a token that was made for something else.
    """
    caller, organisation = call.principal, deps_of(call).fleet.organisation
    if not caller.owner_id or caller.can(APPROVE):
        return False
    held = permissions_held(organisation.roles.get(caller.owner_id, ""), organisation.own_roles)
    return not all(map(caller.can, held))


async def list_approvals(call: Call[None]) -> PendingView:
    """Lists what the caller may decide on, and what their own jobs wait for; the oldest first."""
    own = {call.principal.id, call.principal.owns_as}
    return await _pending(call, lambda one: one.yours_to_decide or one.owner in own)


async def _pending(call: Call[Any], concerns: Callable[[ApprovalView], bool]) -> PendingView:
    """Reads page by page, however many before them concern others."""
    fleet, theirs = deps_of(call).fleet, list[ApprovalView]()
    after: Place | None = None
    while len(theirs) <= MOST_TOLD:
        page, after = await fleet.read(partial(_page, after=after))
        shown = (_view(call, job, one, owner) for job, one, owner in page)
        theirs += [one for one in shown if concerns(one)]
        if after is None:
            break
    return PendingView(theirs[:MOST_TOLD], at_least=len(theirs) > MOST_TOLD)


def _page(view: View, after: Place | None) -> tuple[list[tuple[Job, Approval, str]], Place | None]:
    """Returns jobs that wait, each with its approval and its owner's name, and where the next page begins."""
    page = view.pending_approvals(after, MOST_TOLD)
    ids = tuple(one.job_id for one in page)
    jobs = {job.id: job for job in view.jobs_page(JobFilter(ids=ids), None, len(ids))}
    names = {owner: name_of(view, owner) for owner in {job.owner for job in jobs.values()}}
    rows = [(job, one, names[job.owner]) for one in page if (job := jobs.get(one.job_id))]
    return rows, (page[-1].asked_at, page[-1].job_id) if len(page) == MOST_TOLD else None


async def list_requests(call: Call[None]) -> RequestsView:
    asked = await _pending(call, lambda one: one.yours_to_decide)
    return RequestsView(asked.approvals, len(asked.approvals), asked.at_least)


async def list_own_requests(call: Call[None]) -> RequestsView:
    own = {call.principal.id, call.principal.owns_as}
    asked = await _pending(call, lambda one: one.owner in own and not one.yours_to_decide)
    return RequestsView(asked.approvals, len(asked.approvals), asked.at_least)


async def count_pending(call: Call[None]) -> PendingCount:
    asked = await list_requests(call)
    return PendingCount(asked.pending_count, asked.at_least)


async def get_approval(call: Call[Any]) -> ApprovalView:
    job_id = call.path["id"]

    def look(view: View) -> tuple[Job | None, Approval | None, str]:
        job = view.job(job_id)
        return job, view.approval(job_id), name_of(view, job.owner) if job else ""

    job, approval, owner = await deps_of(call).fleet.read(look)
    if job is not None and approval is None and job.hold is Hold.APPROVAL:
        approval = asked_for(job, [BY_SETTING], (), job.created_at)
    if job is None or approval is None:
        raise NotFound(f"No approval was ever asked for {job_id}.")
    return _view(call, job, approval, owner)


async def approve(call: Call[NoteBody | None]) -> ApprovalView:
    note = call.body.note if call.body else ""
    await approvals.approve(deps_of(call).fleet, call.path["id"], await voter_for(call), call.actor, note)
    return await get_approval(call)


async def reject(call: Call[NoteBody | None]) -> ApprovalView:
    note = call.body.note if call.body else ""
    await approvals.reject(deps_of(call).fleet, call.path["id"], await voter_for(call), call.actor, note)
    return await get_approval(call)


async def list_rules(call: Call[None]) -> RulesView:
    organisation = deps_of(call).fleet.organisation
    return RulesView(list(organisation.rules), unreadable=organisation.unreadable_ids(RULE_PREFIX))


async def create_rule(call: Call[RuleBody]) -> ApprovalRule:
    asked = {**asdict(call.body), "people": tuple(call.body.people)}
    return await approvals.create_rule(deps_of(call).fleet, ApprovalRule(id="", **asked), call.actor)


async def change_rule(call: Call[RuleBody]) -> ApprovalRule:
    asked = {**asdict(call.body), "people": tuple(call.body.people)}
    rule = ApprovalRule(id=call.path["rule"], **asked)
    return await approvals.change_rule(deps_of(call).fleet, rule, call.actor)


async def delete_rule(call: Call[None]) -> Done:
    await approvals.delete_rule(deps_of(call).fleet, call.path["rule"], call.actor)
    return Done(id=call.path["rule"])


def _view(call: Call[Any], job: Job, approval: Approval, owner_name: str) -> ApprovalView:
    voter = voter_of(call, job)
    undecided = approval.decided_at is None and approval.owner not in voter.ids
    voted = any(vote.by in voter.ids for vote in approval.votes)
    return ApprovalView(
        id=job.id,
        job_id=job.id,
        job_name=job.name or job.config_name,
        owner=job.owner,
        owner_name=owner_name,
        team=job.team,
        gpus=job.requires.gpus,
        state=approval.state,
        status=approval.state,
        requirements=[
            RequirementView(why=one.why, by=one.by, people=list(one.people), count=one.count)
            for one in approval.requirements
        ],
        missing=[one.why for one in missing(approval)],
        votes=[VoteView(name=vote.name, at=rfc3339(vote.at), note=vote.note) for vote in approval.votes],
        asked_at=rfc3339(approval.asked_at),
        expires_at=rfc3339(approval.expires_at),
        decided_at=rfc3339(approval.decided_at),
        decided_by=approval.decided_by,
        note=approval.note,
        yours_to_decide=undecided
        and not voted
        and not _is_too_narrow(call)
        and any(may_decide(one, voter) for one in approval.requirements),
    )


ROUTES = [
    Route(
        "GET",
        APPROVALS,
        list_approvals,
        READ,
        answer=PendingView,
        summary="What waits for the caller's approval, and what their own jobs wait for",
        tags=TAGS,
    ),
    Route(
        "GET", f"{APPROVALS}/rules", list_rules, PERMISSION, answer=RulesView, summary="The rules", tags=TAGS
    ),
    Route(
        "POST",
        f"{APPROVALS}/rules",
        create_rule,
        PERMISSION,
        RuleBody,
        ApprovalRule,
        "Set a rule about which jobs need an approval",
        status=201,
        tags=TAGS,
    ),
    Route(
        "PUT",
        f"{APPROVALS}/rules/{{rule}}",
        change_rule,
        PERMISSION,
        RuleBody,
        ApprovalRule,
        "Change a rule: this takes its place; jobs that wait by it go on waiting for whom it named",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{APPROVALS}/rules/{{rule}}",
        delete_rule,
        PERMISSION,
        answer=Done,
        summary="Delete a rule; jobs that wait by it still need a decision",
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{APPROVALS}/requests",
        list_requests,
        READ,
        answer=RequestsView,
        summary="What waits for the caller's approval",
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{APPROVALS}/me",
        list_own_requests,
        READ,
        answer=RequestsView,
        summary="What the caller's own jobs wait for",
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{APPROVALS}/pending/count",
        count_pending,
        READ,
        answer=PendingCount,
        summary="How many wait for the caller's approval",
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{APPROVALS}/{{id}}",
        get_approval,
        READ,
        answer=ApprovalView,
        summary="Whose word a job waits for, or had",
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{APPROVALS}/{{id}}/approve",
        approve,
        ANY_USER,
        NoteBody,
        ApprovalView,
        "Approve a job of somebody else, with a note",
        body_required=False,
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{APPROVALS}/{{id}}/reject",
        reject,
        ANY_USER,
        NoteBody,
        ApprovalView,
        "Reject a job of somebody else, with a note",
        body_required=False,
        tags=TAGS,
    ),
]
