"""Decides which jobs need an approval, by whom, by how many and until when.

It holds rules only. Nobody approves what is their own.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid, MayNotApprove
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.money.amounts import MAX_MICROS

DAY_S = 86_400.0
MAX_APPROVERS = 20
MAX_EXPIRY_S = 365 * DAY_S
MAX_RULE_NAME_CHARS = 100
MAX_RULE_HOURS = 87_600.0
"""Ten years: no time limit is longer."""
MAX_RULE_GPUS = 100_000


class Approvers(StrEnum):
    LEADS = "leads"
    """Leads of the job's team, and whoever may approve every job."""
    ADMINS = "admins"
    """Whoever may approve every job."""
    PEOPLE = "people"
    """Those who are named."""


class ApprovalRule(Struct, frozen=True, kw_only=True):
    """An approval rule says which jobs need an approval, and whose.

    It applies to a job where everything that it names matches; a rule that names nothing applies to every job.
    """

    id: str
    name: str
    gpus_over: int | None = None
    hours_over: float | None = None
    """Its time limit in hours; a job without one has no end, and is over."""
    cost_over_micros: int | None = None
    """What it may cost, by its estimate, in millionths of the currency's unit; where that is not known it is over."""
    gpu: str = ""
    """A glob of GPU names: the job could run on no other. Where it could, it is kept off those, and needs no approval."""
    first_job: bool = False
    config: str = ""
    """A glob of config names."""
    trainer: str = ""
    team: str = ""
    """The id of the team whose jobs it is about; empty: everybody's."""
    by: Approvers = Approvers.LEADS
    people: tuple[str, ...] = ()
    """The ids of those named, where it is for people to approve."""
    count: int = 1
    expires_s: float = DAY_S
    exempts_approvers: bool = True
    """Those who may approve every job need no approval of their own."""


class Requirement(Struct, frozen=True, kw_only=True):
    """Sets one condition of a job's approval: how many of which people must say yes."""

    why: str
    """The name of the rule, the setting or the quota."""
    by: Approvers = Approvers.LEADS
    people: tuple[str, ...] = ()
    count: int = 1


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The job was over before anybody decided."""


class Vote(Struct, frozen=True, kw_only=True):
    by: str
    name: str
    at: float
    note: str = ""
    as_lead: bool = False
    above: bool = False


class Approval(Struct, frozen=True, kw_only=True):
    job_id: str
    owner: str
    requirements: tuple[Requirement, ...]
    asked_at: float
    expires_at: float | None
    state: ApprovalState = ApprovalState.PENDING
    votes: tuple[Vote, ...] = ()
    decided_at: float | None = None
    decided_by: str = ""
    """How they are called who rejected it, or gave the last approval."""
    note: str = ""


class Voter(Struct, frozen=True, kw_only=True):
    """Identifies somebody who would approve or reject a job."""

    ids: frozenset[str]
    name: str
    leads_its_team: bool = False
    above: bool = False
    """May approve every job."""


class JobFacts(Struct, frozen=True, kw_only=True):
    """Holds what an approval rule considers besides the job itself."""

    is_first: bool
    only_on: frozenset[str] = frozenset()
    """The globs, among those of the rules, of GPUs without which no worker could take the job."""
    cost_micros: int | None = None
    """The most that it is expected to cost; None where nobody can say."""


def checked_rule(rule: ApprovalRule) -> ApprovalRule:
    if not 1 <= len(rule.name) <= MAX_RULE_NAME_CHARS or not rule.name.isprintable():
        raise Invalid(f"A rule's name has 1 to {MAX_RULE_NAME_CHARS} printable characters.", path="$.name")
    if rule.gpus_over is not None and not 0 <= rule.gpus_over <= MAX_RULE_GPUS:
        raise Invalid(f"A number of GPUs is 0 to {MAX_RULE_GPUS}.", path="$.gpus_over")
    if rule.hours_over is not None and not 0 <= rule.hours_over <= MAX_RULE_HOURS:
        raise Invalid(f"A number of hours is 0 to {MAX_RULE_HOURS:g}.", path="$.hours_over")
    if rule.cost_over_micros is not None and not 0 <= rule.cost_over_micros <= MAX_MICROS:
        raise Invalid(
            "A cost is 0 or more, in whole millionths of the currency's unit.", path="$.cost_over_micros"
        )
    if not 1 <= rule.count <= MAX_APPROVERS:
        raise Invalid(f"It takes 1 to {MAX_APPROVERS} approvals.", path="$.count")
    if not 60.0 <= rule.expires_s <= MAX_EXPIRY_S:
        raise Invalid(
            "A request for approval lasts at least a minute, and at most a year.", path="$.expires_s"
        )
    if (rule.by is Approvers.PEOPLE) != bool(rule.people):
        raise Invalid("A rule for people to approve names them, and no other rule does.", path="$.people")
    if rule.by is Approvers.PEOPLE and rule.count > len(rule.people):
        raise Invalid("A rule needs no more approvals than it names people.", path="$.count")
    return rule


def applies(rule: ApprovalRule, job: Job, facts: JobFacts) -> bool:
    hours = job.time_limit_s / 3600.0 if job.time_limit_s is not None else None
    return (
        (not rule.team or rule.team == job.team)
        and (rule.gpus_over is None or job.requires.gpus > rule.gpus_over)
        and (rule.hours_over is None or hours is None or hours > rule.hours_over)
        and (rule.cost_over_micros is None or is_over(rule.cost_over_micros, facts.cost_micros))
        and (not rule.first_job or facts.is_first)
        and (not rule.config or fnmatchcase(job.config_name, rule.config))
        and (not rule.trainer or rule.trainer == job.requires.trainer)
        and (not rule.gpu or rule.gpu in facts.only_on)
    )


def is_over(ceiling: int, cost: int | None) -> bool:
    """Tells whether a cost is above the ceiling; an unknown cost counts as above."""
    return cost is None or cost > ceiling


def requirement_of(rule: ApprovalRule) -> Requirement:
    return Requirement(why=rule.name, by=rule.by, people=rule.people, count=rule.count)


def may_decide(requirement: Requirement, voter: Voter) -> bool:
    match requirement.by:
        case Approvers.LEADS:
            return voter.leads_its_team or voter.above
        case Approvers.ADMINS:
            return voter.above
        case Approvers.PEOPLE:
            return not voter.ids.isdisjoint(requirement.people)


def counts_for(requirement: Requirement, vote: Vote) -> bool:
    voter = Voter(ids=frozenset({vote.by}), name=vote.name, leads_its_team=vote.as_lead, above=vote.above)
    return may_decide(requirement, voter)


def missing(approval: Approval) -> list[Requirement]:
    """Returns the requirements that still have too few votes."""
    return [
        one
        for one in approval.requirements
        if sum(counts_for(one, vote) for vote in approval.votes) < one.count
    ]


def check_voter(approval: Approval, voter: Voter) -> None:
    if approval.owner in voter.ids:
        raise MayNotApprove("Nobody approves or rejects a job of their own.")
    if not any(may_decide(one, voter) for one in approval.requirements):
        raise MayNotApprove
    if any(vote.by in voter.ids for vote in approval.votes):
        raise MayNotApprove("You have approved it already; it waits for others.")


def is_to_decide(approval: Approval, voter: Voter) -> bool:
    try:
        check_voter(approval, voter)
    except MayNotApprove:
        return False
    return approval.decided_at is None


def with_vote(approval: Approval, voter: Voter, who: str, note: str, now: float) -> Approval:
    """Returns the approval with one more yes; it is given once nothing is missing."""
    check_voter(approval, voter)
    vote = Vote(by=who, name=voter.name, at=now, note=note, as_lead=voter.leads_its_team, above=voter.above)
    after = replace(approval, votes=(*approval.votes, vote))
    if missing(after):
        return after
    return decided(after, ApprovalState.APPROVED, now, by=voter.name, note=note)


def decided(
    approval: Approval, state: ApprovalState, now: float, *, by: str = "", note: str = ""
) -> Approval:
    return replace(approval, state=state, decided_at=now, decided_by=by, note=note)


def waits_for_approval(job: Job) -> bool:
    return job.state is JobState.BLOCKED and job.hold is Hold.APPROVAL


def asked_for(
    job: Job, requirements: Collection[Requirement], expiries: Iterable[float], now: float
) -> Approval:
    """Returns the request for an approval of this job; the rule that expires first sets its deadline."""
    soonest = min(expiries, default=None)
    return Approval(
        job_id=job.id,
        owner=job.owner,
        requirements=tuple(requirements),
        asked_at=now,
        expires_at=now + soonest if soonest is not None else None,
    )
