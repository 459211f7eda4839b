"""Manages jobs that need an approval: asked for at the submission, then given, refused or expired."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Conflict, Invalid, NotFound, UnreadableRow, WrongJobState
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import job_event
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Requirements
from simpletuner_fleet.core.money.estimate import most_expected
from simpletuner_fleet.core.people.approvals import (
    Approval,
    ApprovalRule,
    ApprovalState,
    JobFacts,
    Requirement,
    Voter,
    applies,
    asked_for,
    check_voter,
    checked_rule,
    decided,
    requirement_of,
    waits_for_approval,
    with_vote,
)
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.placement.matching import why_never
from simpletuner_fleet.core.placement.ordering import class_id
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.setting_documents import RULE_PREFIX
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.estimates import estimate_in
from simpletuner_fleet.orchestrator.organising.naming import known_team
from simpletuner_fleet.orchestrator.organising.unreadable import delete_if_unreadable
from simpletuner_fleet.ports import JobFilter, View

MAX_RULES = 200
EXPIRIES_PER_ROUND = 500
EXPIRIES_PER_TRANSACTION = 50
BY_SETTING = Requirement(why="SIMPLETUNER_REQUIRE_APPROVAL")


def with_approval(
    transaction: Transaction,
    job: Job,
    others: Sequence[Requirement],
    *,
    is_approver: bool,
    scope: VisibilityScope,
) -> tuple[Job, Approval | None]:
    """Returns the job as it may go on, and the approval that it waits for, if any.

    `others` are reasons for an approval beside the rules: the server's setting, a quota.
    """
    holding: list[ApprovalRule] = []
    if rules := transaction.organisation.rules_in_force:
        rules = tuple(rule for rule in rules if not (is_approver and rule.exempts_approvers))
        job, holding = _held_by(transaction, job, rules, scope)
    requirements = [*others, *map(requirement_of, holding)]
    if job.hold is Hold.APPROVAL and not requirements:
        requirements = [BY_SETTING]
    if not requirements:
        return job, None
    held = replace(job, state=JobState.BLOCKED, hold=Hold.APPROVAL, not_before=None)
    return held, asked_for(held, requirements, (rule.expires_s for rule in holding), transaction.now)


def _held_by(
    transaction: Transaction, job: Job, rules: Sequence[ApprovalRule], scope: VisibilityScope
) -> tuple[Job, list[ApprovalRule]]:
    """Returns the job, kept off what it can do without, and those of the rules that still apply to it."""
    job, only_on = _kept_off(transaction, job, rules)
    facts = JobFacts(
        is_first=_is_first(transaction, job, rules),
        only_on=only_on,
        cost_micros=_cost(transaction, job, rules, scope),
    )
    return job, [rule for rule in rules if applies(rule, job, facts)]


def _kept_off(
    transaction: Transaction, job: Job, rules: Sequence[ApprovalRule]
) -> tuple[Job, frozenset[str]]:
    """Keeps the job off GPUs that need an approval, where it can run without them; returns those where it cannot."""
    only_on: set[str] = set()
    for glob in {rule.gpu for rule in rules if rule.gpu and (not rule.team or rule.team == job.team)}:
        avoiding = replace(job.requires, avoids=tuple(sorted({*job.requires.avoids, glob})))
        if _somebody_fits(transaction, avoiding) or not _somebody_fits(transaction, job.requires):
            job = replace(job, requires=avoiding, class_id=class_id(avoiding))
        else:
            only_on.add(glob)
    return job, frozenset(only_on)


def _somebody_fits(transaction: Transaction, requires: Requirements) -> bool:
    roster = transaction.index.roster
    allowlist = roster.allowlists.get(requires.team)
    workers = roster.workers.values()
    return any(why_never(worker, requires, allowlist, roster.prices) is None for worker in workers)


def _is_first(transaction: Transaction, job: Job, rules: Sequence[ApprovalRule]) -> bool:
    if not any(rule.first_job for rule in rules):
        return False
    completed = JobFilter(states=(JobState.COMPLETED,), owner=job.owner)
    return not transaction.tx.jobs_page(completed, None, 1)


def _cost(
    transaction: Transaction, job: Job, rules: Sequence[ApprovalRule], scope: VisibilityScope
) -> int | None:
    if all(rule.cost_over_micros is None for rule in rules):
        return None
    estimate = estimate_in(transaction, job, scope)
    return most_expected(estimate) if estimate else None


async def approve(fleet: Fleet, job_id: str, voter: Voter, actor: Actor, note: str = "") -> Job:
    return await fleet.act(lambda transaction: approve_within(transaction, job_id, voter, actor, note))


async def reject(fleet: Fleet, job_id: str, voter: Voter, actor: Actor, why: str = "") -> Job:
    return await fleet.act(lambda transaction: reject_within(transaction, job_id, voter, actor, why))


def approve_within(transaction: Transaction, job_id: str, voter: Voter, actor: Actor, note: str) -> Job:
    job, approval = _pending(transaction, job_id)
    after = with_vote(approval, voter, _votes_as(voter, actor), note, transaction.now)
    transaction.tx.put_approval(after)
    if after.state is ApprovalState.PENDING:
        transaction.record(job_event(EventType.JOB_APPROVAL_GIVEN, job, actor, note=note))
        return job
    others = map(transaction.known_job, job.depends_on)
    waits = any(other is None or other.state is not JobState.COMPLETED for other in others)
    transaction.apply(lifecycle.approved(job, actor, waits_for_others=waits, now=transaction.now, note=note))
    return transaction.job(job_id)


def reject_within(transaction: Transaction, job_id: str, voter: Voter, actor: Actor, why: str) -> Job:
    job, approval = _pending(transaction, job_id)
    check_voter(replace(approval, votes=()), voter)
    now = transaction.now
    transaction.tx.put_approval(decided(approval, ApprovalState.REJECTED, now, by=voter.name, note=why))
    transaction.apply(lifecycle.rejected(job, why, actor, now=now))
    return transaction.job(job_id)


async def end_undecided(fleet: Fleet, due: Sequence[Approval]) -> None:
    """Ends those approvals that are still undecided: somebody may have decided since they were found."""
    for at in range(0, len(due), EXPIRIES_PER_TRANSACTION):
        await _end_some(fleet, due[at : at + EXPIRIES_PER_TRANSACTION])


async def _end_some(fleet: Fleet, due: Sequence[Approval]) -> None:
    def step(transaction: Transaction) -> None:
        for job_id in [approval.job_id for approval in due]:
            one = transaction.tx.approval(job_id)
            if one is None or one.state is not ApprovalState.PENDING:
                continue
            try:
                job = transaction.tx.job(one.job_id)
            except UnreadableRow:
                continue  # nobody can say what becomes of it; the others are ended all the same
            waits = job is not None and waits_for_approval(job)
            state = ApprovalState.EXPIRED if waits else ApprovalState.WITHDRAWN
            transaction.tx.put_approval(decided(one, state, transaction.now))
            if waits:
                transaction.apply(lifecycle.approval_expired(transaction.job(one.job_id), transaction.now))

    await fleet.act(step)


async def create_rule(fleet: Fleet, rule: ApprovalRule, actor: Actor) -> ApprovalRule:
    def step(transaction: Transaction) -> ApprovalRule:
        organisation = transaction.organisation
        if len(organisation.rules) >= MAX_RULES:
            raise Conflict(f"There are {MAX_RULES} rules already, and no more are kept.")
        return _set_rule(transaction, replace(rule, id=transaction.ids.new("ar")), actor)

    return await fleet.act(step)


async def change_rule(fleet: Fleet, rule: ApprovalRule, actor: Actor) -> ApprovalRule:
    """Replaces the rule with this id. Jobs that wait by the old rule go on waiting for those whom it named."""

    def step(transaction: Transaction) -> ApprovalRule:
        _existing_rule(transaction, rule.id)
        return _set_rule(transaction, rule, actor)

    return await fleet.act(step)


def _set_rule(transaction: Transaction, rule: ApprovalRule, actor: Actor) -> ApprovalRule:
    named = replace(
        rule,
        team=known_team(transaction, rule.team, "$.team") if rule.team else "",
        people=tuple(_user_id(transaction.tx, one) for one in rule.people),
    )
    made = checked_rule(named)
    if made not in transaction.organisation.rules:
        transaction.tx.put_setting(RULE_PREFIX + made.id, msgspec.json.encode(made).decode())
        transaction.organisation_changed()
        transaction.record(_event(EventType.APPROVAL_RULE_SET, made, actor))
    return made


def _existing_rule(transaction: Transaction, rule_id: str) -> ApprovalRule:
    for rule in transaction.organisation.rules:
        if rule.id == rule_id:
            return rule
    raise NotFound(
        f"There is no rule {rule_id[:100]}.", next_step="See them with 'simpletuner approvals rules'."
    )


async def delete_rule(fleet: Fleet, rule_id: str, actor: Actor) -> None:
    """Deletes a rule, also one that cannot be read.

    Jobs that wait by it go on waiting: somebody still has to decide on them.
    """

    def step(transaction: Transaction) -> None:
        deleted = EventType.APPROVAL_RULE_DELETED
        if delete_if_unreadable(transaction, RULE_PREFIX, rule_id, deleted, "approval_rule", actor):
            return
        known = _existing_rule(transaction, rule_id)
        transaction.tx.delete_setting(RULE_PREFIX + rule_id)
        transaction.organisation_changed()
        transaction.record(_event(deleted, known, actor))

    await fleet.act(step)


def _pending(transaction: Transaction, job_id: str) -> tuple[Job, Approval]:
    job = transaction.job(job_id)
    if not waits_for_approval(job):
        raise WrongJobState("The job does not wait for an approval.", state=job.state)
    known = transaction.tx.approval(job_id)
    return job, known or asked_for(job, [BY_SETTING], (), job.created_at)


def _votes_as(voter: Voter, actor: Actor) -> str:
    """Returns who votes: a person's vote counts once, also where their token gives it."""
    return next((one for one in sorted(voter.ids) if one.startswith("u_")), actor.id)


def _user_id(view: View, called: str) -> str:
    user = view.user(called) or view.user_by_name(called)
    if user is None:
        raise Invalid(f"There is no user '{called[:100]}'.", path="$.people")
    return user.id


def _event(kind: EventType, rule: ApprovalRule, actor: Actor) -> Event:
    details: dict[str, Any] = msgspec.to_builtins(rule)
    return Event(
        type=kind,
        actor=actor,
        target_type="approval_rule",
        target_id=rule.id,
        details=details,
    )
