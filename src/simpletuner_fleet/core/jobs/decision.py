"""Defines a rule's decision, and steps that several rules share: an attempt ends, its job waits or is over."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.jobs import retry
from simpletuner_fleet.core.jobs.job import (
    Attempt,
    AttemptInput,
    EndReason,
    Hold,
    Job,
    JobInput,
    Outcome,
    Results,
    next_attempt_state,
    next_state,
)
from simpletuner_fleet.core.jobs.progress import is_preparing
from simpletuner_fleet.core.jobs.start_time import held
from simpletuner_fleet.core.money.ceilings import is_stopped_for_cost, limit_sentence, paid
from simpletuner_fleet.core.placement.ordering import with_room


class Decision(Struct, frozen=True, kw_only=True):
    """Holds what a rule has decided: rows to write and events to record, all in one transaction.

    Workers are woken after it.
    """

    job: Job | None = None
    attempt: Attempt | None = None
    events: tuple[Event, ...] = ()


NOTHING = Decision()
NOT_APPROVED = "not_approved"
"""The event of a cancellation says so where the job still waited for an approval."""


def job_event(type_: EventType, job: Job, actor: Actor = ORCHESTRATOR, **details: Any) -> Event:
    return Event(type=type_, actor=actor, target_type="job", target_id=job.id, details=details)


def ended_as(attempt: Attempt, outcome: Outcome, now: float, **facts: Any) -> Attempt:
    state = next_attempt_state(attempt.state, AttemptInput.END)
    return replace(attempt, state=state, outcome=outcome, ended_at=now, **facts)


def without_attempt(job: Job) -> Job:
    return replace(job, attempt_id=None, worker_id=None, gpus=())


def follow(
    job: Job,
    attempt: Attempt,
    verdict: retry.Verdict,
    error: str,
    *,
    now: float,
    before: tuple[Event, ...] = (),
) -> Decision:
    if isinstance(verdict, retry.Requeue):
        return requeued(job, attempt, verdict.not_before, error, before)
    return _given_up(paid(job, attempt), attempt, verdict, before, now)


def _given_up(
    job: Job, attempt: Attempt, verdict: retry.GiveUp, before: tuple[Event, ...], now: float
) -> Decision:
    given_up = replace(
        job,
        state=next_state(job.state, JobInput.GIVE_UP),
        finished_at=now,
        reason=verdict.reason,
        error=verdict.why,
        results=Results.NONE,
    )
    shown: dict[str, Any] = (
        {"failure_class": attempt.failure_class, "failure_evidence": attempt.failure_evidence}
        if attempt.failure_class
        else {}
    )
    event = job_event(
        EventType.JOB_FAILED,
        job,
        reason=verdict.reason,
        why=verdict.why,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        exit_code=attempt.exit_code,
        exit_signal=attempt.exit_signal,
        **shown,
    )
    return Decision(job=given_up, attempt=attempt, events=(*before, event))


def requeued(
    job: Job,
    attempt: Attempt,
    not_before: float | None,
    error: str | None,
    before: tuple[Event, ...],
) -> Decision:
    job = paid(job, attempt)
    if is_stopped_for_cost(attempt):
        return _stopped_for_cost(job, attempt, before)
    waiting = replace(
        with_room(without_attempt(job)),
        state=next_state(job.state, JobInput.REQUEUE),
        error=error,
        results=Results.NONE,
        progress=None if is_preparing(job.progress) else job.progress,
    )
    waiting = held(waiting, attempt.ended_at or 0.0, not_before)
    event = job_event(EventType.JOB_REQUEUED, job, losses=job.losses, failures=job.failures, why=error)
    return Decision(job=waiting, attempt=attempt, events=(*before, event))


def _stopped_for_cost(job: Job, attempt: Attempt, before: tuple[Event, ...]) -> Decision:
    """Ends a job that has cost all that it may; an attempt given back on request is charged like a timeout.

    An attempt that was lost has been charged already.
    """
    over = retry.GiveUp(EndReason.COST_LIMIT, limit_sentence(job))
    if attempt.outcome is Outcome.RELEASED:
        job = replace(job, failures=job.failures + 1)
        attempt = replace(
            attempt, outcome=Outcome.FAILED, failure_class=over.reason, failure_evidence=over.why
        )
    return _given_up(job, attempt, over, before, attempt.ended_at or 0.0)


def cancelled_now(
    job: Job, attempt: Attempt | None, *, now: float, before: tuple[Event, ...] = ()
) -> Decision:
    ended = replace(
        paid(job, attempt) if attempt else job,
        state=next_state(job.state, JobInput.CANCEL),
        hold=Hold.NONE,
        not_before=None,
        finished_at=now,
        results=Results.NONE,
        reason="cancelled",
    )
    details: dict[str, Any] = {"reason": NOT_APPROVED} if job.hold is Hold.APPROVAL else {}
    event = job_event(EventType.JOB_CANCELLED, job, **details)
    return Decision(job=ended, attempt=attempt, events=(*before, event))
