"""Submits jobs, retries and cancels them, and changes their priority."""

from collections.abc import Collection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle, check_references
from simpletuner_fleet.core.configs.stored_bundle import read_stored
from simpletuner_fleet.core.errors import CannotBePlaced, Invalid, NotFound, QuotaReached
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import NOT_APPROVED
from simpletuner_fleet.core.jobs.job import EndReason, Hold, Job, JobState, Stopping, Target
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.jobs.states import WAITING
from simpletuner_fleet.core.jobs.submitting import going_on
from simpletuner_fleet.core.jobs.submitting.submission import Facts, decide_submission, retried
from simpletuner_fleet.core.jobs.submitting.submit_request import (
    AS_IT_WAS,
    SUBMIT_LOCAL,
    ChosenConfig,
    RetryRequest,
    SubmitRequest,
    Submitter,
    away_from_home,
    inline_config,
    permitted,
    read_priority,
    stored_config,
)
from simpletuner_fleet.core.money.estimate import Estimate
from simpletuner_fleet.core.people.approvals import Approval, Requirement
from simpletuner_fleet.core.people.quotas import QuotaAction, quota_params
from simpletuner_fleet.core.people.teams import Team, priority_ceiling, team_for
from simpletuner_fleet.core.placement.explain import Explanation, Survey
from simpletuner_fleet.core.placement.ordering import behind
from simpletuner_fleet.core.placement.place import Placement, known_survey_of, why_waiting, would_start_now
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.policy import MAX_GRACE_S
from simpletuner_fleet.core.provisioning.waiting import kept_for_others
from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.engine.dispatch import place_all_who_wait, place_waiting_jobs
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import holds_now, name_of
from simpletuner_fleet.engine.stored_secrets import stored_secrets
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import restricted
from simpletuner_fleet.orchestrator.configs import no_such_config
from simpletuner_fleet.orchestrator.idempotency import checked_key, fingerprint_of, key_of, remember, same_job
from simpletuner_fleet.orchestrator.organising.approvals import BY_SETTING, with_approval
from simpletuner_fleet.orchestrator.organising.estimates import estimate_in
from simpletuner_fleet.ports import IdempotentAnswer
from simpletuner_fleet.storage.artifacts import adopt_checkpoint
from simpletuner_fleet.storage.datasets import check_datasets
from simpletuner_fleet.storage.uploads.stored_quotas import (
    approvals_for_storage,
    storage_nearly_used,
)

LAST_EVENTS = 20
"""The end of a job is among so many events at the end of its history."""


class ConfigUsed(Struct, frozen=True, kw_only=True):
    """Describes the saved config that a job runs: its name, its version, and who saved it."""

    name: str
    version: int
    saved_by: str
    """How they are called."""
    saved_by_id: str


class Submitted(Struct, frozen=True, kw_only=True):
    job: Job
    position: int | None
    explanation: Explanation | None
    would_start_now: bool | None = None
    repeated: bool = False
    config: ConfigUsed | None = None
    """None where the config came with the request."""
    fleet: Survey | None = None
    """Only a dry run fills this: what every worker says to the job."""
    estimate: Estimate | None = None
    """Only a dry run fills this: what the job would cost; None where no price is known."""
    quotas: list[dict[str, Any]] = []
    """Those of which so much is used that it is worth a word."""


async def submit(fleet: Fleet, by: Submitter, request: SubmitRequest, *, local_enabled: bool) -> Submitted:
    submitted = await fleet.act(lambda transaction: _submit(transaction, by, request, local_enabled))
    used = submitted.config
    if used is None or used.saved_by:
        return submitted
    # Not within the step: people are not kept in memory, and every submission would wait for the connection.
    saver = await fleet.read_now(lambda view: name_of(view, used.saved_by_id))
    return replace(submitted, config=replace(used, saved_by=saver))


async def cancel(
    fleet: Fleet,
    job_id: str,
    actor: Actor,
    *,
    checkpoint_first: bool = False,
    grace_s: float | None = None,
) -> Job:
    """Cancels a job. A second call without `checkpoint_first` ends the wait for a checkpoint."""
    if grace_s is not None and not 0 <= grace_s <= MAX_GRACE_S:
        raise Invalid(f"grace_s must be between 0 and {MAX_GRACE_S:g}.", path="$.grace_s")
    return await fleet.act(lambda step: cancel_in(step, job_id, actor, checkpoint_first, grace_s))


async def set_priority(fleet: Fleet, job_id: str, priority: int | str, actor: Actor) -> Job:
    number = read_priority(priority)

    def step(transaction: Transaction) -> Job:
        transaction.apply(lifecycle.set_priority(transaction.job(job_id), number, transaction.policy, actor))
        return transaction.job(job_id)

    return await fleet.act(step)


async def retry(
    fleet: Fleet, job_id: str, by: Submitter, request: RetryRequest = AS_IT_WAS, key: str | None = None
) -> Job:
    """Tries an ended job again, as a new job; from the start, or from what a job has stored.

    A request that comes again with the same key is answered with the job that it made.
    """
    key = checked_key(key)
    asked = fingerprint_of(["retry", job_id, *request.words])

    def step(transaction: Transaction) -> Job:
        known = transaction.tx.idempotent_answer(key, by.actor.id) if key else None
        if known:
            return same_job(transaction, known, asked)
        job = retry_in(transaction, job_id, by, request)
        if key:
            remember(transaction, key, by, asked, job)
        return job

    return await fleet.act(step)


def _submit(
    transaction: Transaction, by: Submitter, request: SubmitRequest, local_enabled: bool
) -> Submitted:
    if request.dry_run or request.no_wait:
        place_all_who_wait(transaction)  # those who are left to place go before it
    team = _team(transaction, request.team, by)
    ceiling = priority_ceiling(team, by.ids, as_lead=by.may_lead)
    request = permitted(request, by, local_enabled=local_enabled, priority_ceiling=ceiling)
    key = key_of(request)
    fingerprint = fingerprint_of(replace(request, idempotency_key=None)) if key else ""
    known = transaction.tx.idempotent_answer(key, by.actor.id) if key else None
    if known:
        return _repeat(transaction, known, fingerprint, by)
    config = _config(transaction, by, request)
    target = away_from_home(request.target, config)
    if target is not request.target:
        request = replace(request, target=target)
    resume = _resume(transaction, request.resume_from, by, config.bundle) if request.resume_from else None
    job = decide_submission(
        request,
        by,
        config,
        _facts(transaction, by, config.bundle, request.depends_on, team, resume),
        transaction.policy,
        job_id=transaction.ids.new("j"),
        seq=0 if request.dry_run else transaction.tx.next_seq(),
        now=transaction.now,
    )
    job, approval = admitted(transaction, job, by, for_approval=request.for_approval)
    job = _behind_those_who_wait(transaction, job)
    used = _config_used(config.name, config.version, config.saved_by, by)
    if request.dry_run:
        estimate = estimate_in(transaction, job, by.scope)
        return replace(_dry_run_answer(transaction, job), config=used, estimate=estimate)
    if request.no_wait:
        _must_start_now(transaction, job)
    _add(transaction, job, config.text, by.actor, resume, approval, config_by=config.saved_by)
    if key:
        remember(transaction, key, by, fingerprint, job)
    place_waiting_jobs(transaction)
    return _answer(transaction, transaction.job(job.id), config=used)


def retry_in(transaction: Transaction, job_id: str, by: Submitter, request: RetryRequest = AS_IT_WAS) -> Job:
    old = transaction.job(job_id)
    stored = transaction.tx.job_bundle(job_id) or b"{}"
    bundle = read_stored(stored)
    check_references(bundle)
    team = transaction.organisation.teams.get(old.team) if old.team else None
    resume = _resume(transaction, request.resume_from, by, bundle)
    facts = _facts(transaction, by, bundle, old.depends_on, team, resume, old.owner)
    job = retried(
        old,
        bundle,
        by,
        replace(facts, never_approved=_never_approved(transaction, old)),
        transaction.policy,
        job_id=transaction.ids.new("j"),
        seq=transaction.tx.next_seq(),
        now=transaction.now,
        max_cost_micros=request.max_cost_micros,
    )
    job, approval = admitted(transaction, job, by)
    job = _behind_those_who_wait(transaction, job)
    _add(transaction, job, stored, by.actor, resume, approval, retry_of=old.id)
    place_waiting_jobs(transaction)
    return transaction.job(job.id)


def admitted(
    transaction: Transaction, job: Job, by: Submitter, *, for_approval: bool = False
) -> tuple[Job, Approval | None]:
    """Checks quotas and approvals in the transaction that admits the job: no number of jobs at once exceeds a ceiling.

    With `for_approval`, what a quota would refuse may ask for an approval instead.
    """
    book = transaction.index.roster.book
    passed = book.passed_by(job, (QuotaAction.REFUSE, QuotaAction.APPROVE)) if book else []
    passed += approvals_for_storage(transaction.tx, book, job) if book else []
    for standing in passed:
        if book and standing.quota.action is QuotaAction.REFUSE and not for_approval:
            raise _refused(quota_params(book, standing))
    others = (
        []
        if by.may_approve and not for_approval
        else [Requirement(why=f"quota {one.quota.id}") for one in passed]
    )
    if job.hold is Hold.APPROVAL:
        others.append(BY_SETTING)
    return with_approval(transaction, job, others, is_approver=by.may_approve, scope=by.scope)


def _refused(params: dict[str, Any]) -> QuotaReached:
    quota, kind, whose = params["quota"], params["kind"], params["whose"]
    used, ceiling = _figure(params["used"]), _figure(params["ceiling"])
    return QuotaReached(
        f"The quota {quota} ({kind}, {whose}) is reached: {used} of {ceiling} are used.",
        **params,
    )


def _figure(amount: float | str) -> str:
    """Returns the amount as text. Money comes with its currency already."""
    return amount if isinstance(amount, str) else f"{amount:g}"


def _behind_those_who_wait(transaction: Transaction, job: Job) -> Job:
    newest = transaction.index.roster.lines.newest_moment(transaction.policy.priority_point_s)
    return behind(job, newest, transaction.policy)


def _repeat(transaction: Transaction, known: IdempotentAnswer, fingerprint: str, by: Submitter) -> Submitted:
    job = same_job(transaction, known, fingerprint)
    stored = transaction.tx.config(job.config_name, job.config_version) if job.config_version else None
    used = _config_used(job.config_name, job.config_version, stored.created_by, by) if stored else None
    return replace(_answer(transaction, job), repeated=True, config=used)


def _config_used(name: str, version: int, saved_by: str, by: Submitter) -> ConfigUsed | None:
    """Returns the config used; another person's name is left empty."""
    if not version:
        return None
    saver = by.actor.name if saved_by == by.actor.id else ""
    return ConfigUsed(name=name, version=version, saved_by=saver, saved_by_id=saved_by)


def _config(transaction: Transaction, by: Submitter, request: SubmitRequest) -> ChosenConfig:
    version = request.config_version
    if request.config is not None:
        given = ("config", "config_version")
        if version is not None:
            raise Invalid(f"Set {given[0]} or {given[1]}, not both.", path="$.config_version")
        return inline_config(request, request.config)
    if not request.config_name:
        raise Invalid("Name a config (config_name) or send one (config).", path="$.config_name")
    seen = restricted(transaction.tx, by.scope)
    stored = seen.config(request.config_name, version)
    if stored is None:
        raise no_such_config(seen, request.config_name, version)
    return stored_config(
        request,
        stored.name,
        stored.version,
        stored.bundle,
        saved_by=stored.created_by,
        # Only `auto` depends on it, and to ask takes the connection: other targets do not wait for that.
        author_may_run_locally=request.target is not Target.AUTO
        or stored.created_by == by.actor.id
        or holds_now(transaction.tx, stored.created_by, SUBMIT_LOCAL),
    )


def _never_approved(transaction: Transaction, job: Job) -> bool:
    """Tells, from the job's history, whether it was cancelled while it waited for an approval."""
    return not job.attempts and any(
        event.event_type == EventType.JOB_CANCELLED and event.details.get("reason") == NOT_APPROVED
        for event in transaction.tx.job_events(job.id, LAST_EVENTS)
    )


def _secret_names(bundle: Bundle) -> list[str]:
    published_with = bundle.publish.secret if bundle.publish else None
    return [*bundle.secrets.values(), *([published_with] if published_with else [])]


def _team(transaction: Transaction, called: str | None, by: Submitter) -> Team | None:
    teams = transaction.organisation.teams
    return team_for(teams, called, by.ids, above=by.scope.above) if teams or called else None


def _facts(
    transaction: Transaction,
    by: Submitter,
    bundle: Bundle,
    depends_on: Collection[str],
    team: Team | None,
    resume: StoredManifest | None,
    *others: str,
) -> Facts:
    """Gathers what the checks need, which is little for a job that names nothing else.

    `others` are the ids of those for whom the job will run, beside the submitter and their team.
    """
    if not (bundle.secrets or bundle.publish or bundle.datasets or depends_on):
        return Facts(resume=resume, team=team)
    seen = restricted(transaction.tx, by.scope)
    whose = (*others, by.actor.id, by.owns_as, team.id if team else "")
    secrets = stored_secrets(transaction.tx, _secret_names(bundle))
    jobs = {job_id: seen.job(job_id) for job_id in depends_on}
    return Facts(
        secrets=frozenset(secrets),
        withheld_secrets=frozenset(name for name, one in secrets.items() if not one.is_for(*whose)),
        datasets=check_datasets(seen, bundle),
        dependencies={job_id: job for job_id, job in jobs.items() if job},
        resume=resume,
        team=team,
    )


def _resume(
    transaction: Transaction, text: str | None, by: Submitter, bundle: Bundle
) -> StoredManifest | None:
    if not text:
        return None
    place = going_on.read_place(text)
    seen = restricted(transaction.tx, by.scope)
    source = going_on.ResumeSource(seen.job(place.job_id), seen.manifests_of_job(place.job_id))
    return going_on.chosen_checkpoint(place, source, by, bundle.trainer)


def _add(
    transaction: Transaction,
    job: Job,
    bundle: bytes,
    actor: Actor,
    resume: StoredManifest | None,
    approval: Approval | None = None,
    **details: Any,
) -> None:
    transaction.add_job(job, bundle)
    if approval:
        transaction.tx.put_approval(approval)
        details["approval"] = [one.why for one in approval.requirements]
    if resume:
        adopt_checkpoint(transaction, job, resume)
        details["resume_from"] = job.resume_from
    if job.requires.datasets:
        transaction.tx.name_datasets(job.id, [dataset_id for dataset_id, _ in job.requires.datasets])
    transaction.record(_submitted_event(job, actor, **details))


def _must_start_now(transaction: Transaction, job: Job) -> None:
    if _would_start_now(transaction, job):
        return
    explanation = _why_waiting(transaction, job)
    raise CannotBePlaced(
        f"The job cannot start now: {explanation.sentence}.",
        next_step=explanation.fixes[0] if explanation.fixes else "Submit it without no_wait to queue it.",
        reason=explanation.code,
    )


def _why_waiting(transaction: Transaction, job: Job) -> Explanation:
    index = transaction.index
    explanation = why_waiting(index.roster, job, transaction.limits, transaction.now, index.placing_from)
    if explanation.code is Code.NO_WORKERS:
        return kept_for_others(explanation, job, transaction.tx.pools())
    return explanation


def _would_start_now(transaction: Transaction, job: Job) -> bool:
    if job.state is not JobState.QUEUED or job.hold or transaction.index.holds_placements(transaction.now):
        return False
    return isinstance(would_start_now(transaction.index.roster, job, transaction.limits), Placement)


def _dry_run_answer(transaction: Transaction, job: Job) -> Submitted:
    """Returns the answer to a dry run. The job is not in the queue, so all jobs up to its position are ahead of it."""
    answer = _answer(transaction, job, would_start_now=_would_start_now(transaction, job))
    explanation, position = answer.explanation, answer.position
    if explanation and position is not None:
        explanation, position = replace(explanation, ahead=position), position + 1
    survey = known_survey_of(transaction.index.roster, job)
    return replace(answer, explanation=explanation, position=position, fleet=survey)


def _answer(
    transaction: Transaction,
    job: Job,
    *,
    would_start_now: bool | None = None,
    config: ConfigUsed | None = None,
) -> Submitted:
    waits = job.state in WAITING and not would_start_now
    index = transaction.index
    book = index.roster.book
    near = [*book.nearly_reached(job), *storage_nearly_used(transaction.tx, book, job)] if book else []
    warnings = [quota_params(book, one) for one in near] if book else []
    explanation = _why_waiting(transaction, job) if waits else None
    position = index.roster.lines.position(job.rank) if waits and job.state is JobState.QUEUED else None
    return Submitted(
        job=job,
        position=position,
        explanation=explanation,
        would_start_now=would_start_now,
        config=config,
        quotas=warnings,
    )


def _submitted_event(job: Job, actor: Actor, **details: Any) -> Event:
    return Event(
        type=EventType.JOB_SUBMITTED,
        actor=actor,
        target_type="job",
        target_id=job.id,
        details={
            "config_name": job.config_name,
            "config_version": job.config_version,
            "target": job.requires.target,
            "gpus": job.requires.gpus,
            **details,
        },
    )


def _without_attempt(transaction: Transaction, job: Job) -> Job:
    """Returns a job at work whose attempt's row is not there any more, as it can be cancelled at once.

    Its worker is told to stop its trainer whenever it asks, since no attempt is known by its turn.
    """
    if job.state is JobState.RUNNING:
        transaction.apply(stopping.asked_to_stop(job))
    transaction.consider_every_class()  # what it holds is about to be free
    return transaction.job(job.id)


def cancel_in(
    transaction: Transaction, job_id: str, actor: Actor, checkpoint_first: bool, grace_s: float | None
) -> Job:
    job = transaction.job(job_id)
    try:
        attempt = transaction.current_attempt(job)
    except NotFound:
        attempt, job = None, _without_attempt(transaction, job)
    worker = transaction.tx.worker(attempt.worker_id) if attempt is not None else None
    explicit = worker is None or not worker.legacy
    stop_request = Stopping(
        reason=EndReason.CANCELLED,
        asked_at=transaction.now,
        grace_s=transaction.policy.cancel_grace_s if grace_s is None else grace_s,
        save_s=transaction.policy.checkpoint_wait_s if checkpoint_first else None,
    )
    transaction.apply(
        stopping.cancel(
            job,
            attempt,
            explicit_accept=explicit,
            actor=actor,
            now=transaction.now,
            stop_request=stop_request,
        )
    )
    if attempt:
        transaction.wake(attempt.worker_id)
    return transaction.job(job_id)
