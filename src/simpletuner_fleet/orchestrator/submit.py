"""Jobs come in, change their minds, and leave the queue."""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core import lifecycle, stopping
from simpletuner_fleet.core.bundle import Bundle, check_name, read_bundle, with_overrides
from simpletuner_fleet.core.datasets import check_mounts
from simpletuner_fleet.core.errors import (
    CannotBePlaced,
    Forbidden,
    IdempotencyMismatch,
    Invalid,
    NotFound,
    WrongJobState,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.explain import Explanation, Survey, survey
from simpletuner_fleet.core.job import EndReason, Hold, Job, JobState, Stopping, Target
from simpletuner_fleet.core.ordering import limit_reached
from simpletuner_fleet.core.policy import MAX_GRACE_S
from simpletuner_fleet.core.submission import SubmitRequest, new_job, read_priority, with_watchdog
from simpletuner_fleet.orchestrator.datasets import check_datasets
from simpletuner_fleet.orchestrator.desk import Desk
from simpletuner_fleet.orchestrator.dispatch import settle
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.orchestrator.keyring import check_secrets
from simpletuner_fleet.orchestrator.waiting import quick_explanation
from simpletuner_fleet.ports import IdempotentAnswer

INLINE_NAME = "inline"
MAX_IDEMPOTENCY_KEY_CHARS = 255
SUBMIT_LOCAL = "queue.submit.local"
APPROVE = "queue.approve"


class Submitter(Struct, frozen=True):
    """Who submits and what that allows."""

    actor: Actor
    may_run_locally: bool
    needs_no_approval: bool


class Submitted(Struct, frozen=True, kw_only=True):
    job: Job
    position: int | None
    explanation: Explanation | None
    would_start_now: bool | None = None
    repeated: bool = False
    fleet: Survey | None = None
    """Of a dry run alone: what every worker says to it."""


async def submit(fleet: Fleet, by: Submitter, request: SubmitRequest, *, local_enabled: bool) -> Submitted:
    if request.target is Target.LOCAL and not by.may_run_locally:
        raise Forbidden(SUBMIT_LOCAL)
    if request.target is Target.LOCAL and not local_enabled:
        raise Invalid(
            "This orchestrator does not run jobs itself.",
            path="$.target",
            next_step="Use target 'worker' or 'auto', or start the server with --local.",
        )
    if request.target is Target.AUTO and not by.may_run_locally:
        request = replace(request, target=Target.WORKER)
    return await fleet.act(lambda desk: _submit(desk, by, request))


async def cancel(
    fleet: Fleet,
    job_id: str,
    actor: Actor,
    *,
    checkpoint_first: bool = False,
    grace_s: float | None = None,
) -> Job:
    """Again and without `checkpoint_first`, it hurries a cancellation that still waits for a checkpoint."""
    if grace_s is not None and not 0 <= grace_s <= MAX_GRACE_S:
        raise Invalid(f"grace_s is between 0 and {MAX_GRACE_S:g}.", path="$.grace_s")
    return await fleet.act(lambda desk: _cancel(desk, job_id, actor, checkpoint_first, grace_s))


async def set_priority(fleet: Fleet, job_id: str, priority: int | str, actor: Actor) -> Job:
    wanted = read_priority(priority)

    def step(desk: Desk) -> Job:
        desk.apply(lifecycle.set_priority(desk.job(job_id), wanted, desk.policy, actor))
        return desk.job(job_id)

    return await fleet.act(step)


async def approve(fleet: Fleet, job_id: str, actor: Actor) -> Job:
    def step(desk: Desk) -> Job:
        job = desk.job(job_id)
        waits = any(not desk.job(other).terminal for other in job.depends_on)
        desk.apply(lifecycle.approved(job, actor, waits_for_others=waits))
        return desk.job(job_id)

    return await fleet.act(step)


async def reject(fleet: Fleet, job_id: str, why: str, actor: Actor) -> Job:
    def step(desk: Desk) -> Job:
        desk.apply(lifecycle.rejected(desk.job(job_id), why, actor, now=desk.now))
        return desk.job(job_id)

    return await fleet.act(step)


async def retry(fleet: Fleet, job_id: str, by: Submitter) -> Job:
    """A terminal state is final, so trying again is a new job with the same copy of everything."""
    return await fleet.act(lambda desk: _retry(desk, job_id, by))


def _submit(desk: Desk, by: Submitter, request: SubmitRequest) -> Submitted:
    key = request.idempotency_key if isinstance(request.idempotency_key, str) else None
    fingerprint = _fingerprint(request)
    if key:
        if len(key) > MAX_IDEMPOTENCY_KEY_CHARS:
            raise Invalid("An idempotency key has at most 255 characters.", path="$.idempotency_key")
        known = desk.tx.idempotent_answer(key, by.actor.id)
        if known:
            return _repeat(desk, known, fingerprint)
    name, version, bundle = _find_config(desk, request)
    bundle = replace(bundle, datasets=_mounts(bundle, request))
    check_secrets(desk.tx, bundle)
    job = new_job(
        request,
        bundle,
        desk.policy,
        job_id=desk.ids.new("j"),
        seq=0 if request.dry_run else desk.tx.next_seq(),
        config_name=name,
        config_version=version,
        owner=by.actor.id,
        hold=_hold(desk, request, by),
        now=desk.now,
        datasets=check_datasets(desk.tx, bundle),
    )
    if request.no_wait or request.dry_run:
        placeable = job.state is JobState.QUEUED and _would_start_now(desk, job)
        if request.dry_run:
            return _foreseen(desk, job, placeable)
        if not placeable:
            explanation = quick_explanation(desk, job)
            raise CannotBePlaced(
                f"The job cannot start now: {explanation.sentence}.",
                next_step=explanation.fixes[0]
                if explanation.fixes
                else "Submit it without no_wait to queue it.",
                reason=explanation.code,
            )
    desk.add_job(job, msgspec.json.encode(bundle))
    _name_datasets(desk, job)
    desk.record(_submitted_event(job, by.actor))
    if key:
        desk.tx.remember_answer(
            IdempotentAnswer(key=key, owner=by.actor.id, request_hash=fingerprint, job_id=job.id, at=desk.now)
        )
    settle(desk)
    return _told(desk, desk.job(job.id))


def _fingerprint(request: SubmitRequest) -> str:
    asked = replace(request, idempotency_key=None)
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def _repeat(desk: Desk, known: IdempotentAnswer, fingerprint: str) -> Submitted:
    if known.request_hash != fingerprint:
        raise IdempotencyMismatch
    return replace(_told(desk, desk.job(known.job_id)), repeated=True)


def _find_config(desk: Desk, request: SubmitRequest) -> tuple[str, int, Bundle]:
    if request.config is not None:
        bundle = read_bundle(request.config)
        name = check_name(request.config_name or INLINE_NAME, "$.config_name")
        return name, 0, with_watchdog(with_overrides(bundle, request.overrides), request.watchdog)
    if not request.config_name:
        raise Invalid("Name a config (config_name) or send one (config).", path="$.config_name")
    stored = desk.tx.config(request.config_name)
    if stored is None:
        raise NotFound(
            f"There is no config '{request.config_name}'.",
            next_step="List them with 'simpletuner configs list', or import one with 'simpletuner configs import'.",
        )
    bundle = msgspec.json.decode(stored.bundle, type=Bundle)
    bundle = with_watchdog(with_overrides(bundle, request.overrides), request.watchdog)
    return stored.name, stored.version, bundle


def _mounts(bundle: Bundle, request: SubmitRequest) -> dict[str, str]:
    return check_mounts({**bundle.datasets, **request.datasets}, "$.datasets")


def _name_datasets(desk: Desk, job: Job) -> None:
    if job.requires.datasets:
        desk.tx.name_datasets(job.id, [dataset_id for dataset_id, _ in job.requires.datasets])


def _hold(desk: Desk, request: SubmitRequest, by: Submitter) -> Hold:
    pending = False
    for job_id in request.depends_on:
        try:
            other = desk.job(job_id)
        except NotFound:
            raise Invalid(f"There is no job {job_id} to depend on.", path="$.depends_on") from None
        if other.terminal and other.state is not JobState.COMPLETED:
            raise Invalid(
                f"Job {job_id} ended {other.state}: waiting for it is in vain.", path="$.depends_on"
            )
        pending = pending or not other.terminal
    if desk.policy.require_approval and not by.needs_no_approval:
        return Hold.APPROVAL
    return Hold.DEPENDENCY if pending else Hold.NONE


def _would_start_now(desk: Desk, job: Job) -> bool:
    """Nobody of its class waits before it, no limit is reached, and a worker could take it."""
    roster = desk.index.roster
    limit = limit_reached(desk.index.limits, roster.running, roster.running_by_owner.get(job.owner, 0))
    waiting = roster.waiting(job.class_id, job.requires)
    return limit is None and waiting.count == 0 and roster.pick_worker(job) is not None


def _foreseen(desk: Desk, job: Job, would_start_now: bool) -> Submitted:
    """The job does not stand in the line, so all that are counted up to its place are before it."""
    told = _told(desk, job, would_start_now=would_start_now)
    why, position = told.explanation, told.position
    if why and position is not None:
        why, position = replace(why, ahead=position), position + 1
    return replace(told, explanation=why, position=position, fleet=_survey(desk, job))


def _survey(desk: Desk, job: Job) -> Survey:
    roster = desk.index.roster
    return survey(job.requires, ((worker, roster.occupancy(id)) for id, worker in roster.workers.items()))


def _told(desk: Desk, job: Job, would_start_now: bool | None = None) -> Submitted:
    waits = job.state in (JobState.QUEUED, JobState.BLOCKED) and not would_start_now
    explanation = quick_explanation(desk, job) if waits else None
    position = desk.index.roster.position(job.rank) if waits and job.state is JobState.QUEUED else None
    return Submitted(job=job, position=position, explanation=explanation, would_start_now=would_start_now)


def _submitted_event(job: Job, actor: Actor, **details: Any) -> Event:
    return Event(
        type=EventType.JOB_SUBMITTED,
        actor=actor,
        target_type="job",
        target_id=job.id,
        details={
            "config_name": job.config_name,
            "target": job.requires.target,
            "gpus": job.requires.gpus,
            **details,
        },
    )


def _cancel(desk: Desk, job_id: str, actor: Actor, checkpoint_first: bool, grace_s: float | None) -> Job:
    job = desk.job(job_id)
    attempt = desk.current_attempt(job)
    explicit = attempt is None or not desk.worker(attempt.worker_id).legacy
    wish = Stopping(
        reason=EndReason.CANCELLED,
        asked_at=desk.now,
        grace_s=desk.policy.cancel_grace_s if grace_s is None else grace_s,
        save_s=desk.policy.checkpoint_wait_s if checkpoint_first else None,
    )
    desk.apply(stopping.cancel(job, attempt, explicit_accept=explicit, actor=actor, now=desk.now, wish=wish))
    if attempt:
        desk.wake(attempt.worker_id)
    return desk.job(job_id)


def _retry(desk: Desk, job_id: str, by: Submitter) -> Job:
    old = desk.job(job_id)
    if not old.terminal:
        raise WrongJobState(f"The job is {old.state}; only an ended one can be tried again.", state=old.state)
    bundle = desk.tx.job_bundle(job_id) or b"{}"
    copy = msgspec.json.decode(bundle, type=Bundle)
    check_secrets(desk.tx, copy)
    check_datasets(desk.tx, copy)
    job = Job(
        id=desk.ids.new("j"),
        seq=desk.tx.next_seq(),
        config_name=old.config_name,
        config_version=old.config_version,
        requires=old.requires,
        class_id=old.class_id,
        owner=old.owner,
        state=JobState.QUEUED,
        rank=desk.now - old.priority * desk.policy.priority_point_s,
        priority=old.priority,
        max_retries=old.max_retries,
        created_at=desk.now,
        retry_on_failure=old.retry_on_failure,
        time_limit_s=old.time_limit_s,
        on_time_limit=old.on_time_limit,
        on_partition=old.on_partition,
        retry_of=old.id,
        name=old.name,
    )
    desk.add_job(job, bundle)
    _name_datasets(desk, job)
    desk.record(_submitted_event(job, by.actor, retry_of=old.id))
    settle(desk)
    return desk.job(job.id)
