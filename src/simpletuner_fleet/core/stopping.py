"""An attempt ends because it is wanted: cancelled, drained long enough, given back, out of time."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core import retry
from simpletuner_fleet.core.decision import (
    NOTHING,
    Decision,
    cancelled_now,
    ended_as,
    follow,
    job_event,
    requeued,
)
from simpletuner_fleet.core.errors import WrongJobState
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.fencing import must_be_current
from simpletuner_fleet.core.job import (
    Attempt,
    AttemptState,
    EndReason,
    Job,
    JobInput,
    JobState,
    Outcome,
    Stopping,
    next_state,
)
from simpletuner_fleet.core.lifecycle import End, failed
from simpletuner_fleet.core.ordering import rank
from simpletuner_fleet.core.policy import Policy

DRAINED = "its worker was drained"


def released(
    job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float, reason: str = ""
) -> Decision:
    """The worker gives the job back on purpose: a shutdown, a spot notice, a drain. It charges nothing.

    But for a time limit that was used up without a step forward: a job that asks to go on would do so for ever.
    """
    must_be_current(job, attempt)
    reason = reason or (attempt.stopping.reason if attempt.stopping else "")
    out_of_time = reason == EndReason.TIME_LIMIT
    if out_of_time and not (job.on_time_limit == "requeue" and attempt.saved_something):
        return _out_of_time(job, attempt, why, policy, now=now)
    ended = ended_as(attempt, Outcome.RELEASED, now, error=why or None, reason=reason or None)
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    told: dict[str, Any] = {"reason": reason} if reason else {}
    event = job_event(
        EventType.JOB_RELEASED, job, worker_id=attempt.worker_id, attempt=attempt.number, why=why, **told
    )
    waiting = replace(job, rank=rank(now, job.priority, policy)) if out_of_time else job
    return requeued(waiting, ended, None, None, (event,))


def _out_of_time(job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float) -> Decision:
    error = why or "the time limit was reached"
    ended = ended_as(
        attempt,
        Outcome.FAILED,
        now,
        error=error,
        reason=EndReason.TIME_LIMIT,
        failure_class="time_limit",
        failure_evidence=error,
    )
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    charged = replace(job, failures=job.failures + 1)
    if job.on_time_limit == "requeue":
        error = f"{error}, and no newer checkpoint was saved"
        return follow(charged, ended, retry.after_charge(charged, policy, now), error, now=now)
    return follow(charged, ended, retry.after_failure(charged, policy, now, error), error, now=now)


def stopped(job: Job, attempt: Attempt, end: End, policy: Policy, *, now: float) -> Decision:
    """The worker says the trainer was cancelled. If nobody asked for it, the trainer has failed.

    Agents that know no drain with a deadline call that a cancellation, too.
    """
    if job.state is not JobState.CANCELLING and attempt.stopping is not None:
        return released(job, attempt, end.error or DRAINED, policy, now=now)
    if job.state is not JobState.CANCELLING:
        told = replace(end, error=end.error or "the trainer was stopped on its worker")
        return failed(job, attempt, told, policy, now=now)
    must_be_current(job, attempt)
    ended = ended_as(attempt, Outcome.CANCELLED, now, exit_code=end.exit_code, exit_signal=end.exit_signal)
    return cancelled_now(job, ended, now=now)


def cancel(
    job: Job,
    attempt: Attempt | None,
    *,
    explicit_accept: bool,
    actor: Actor,
    now: float,
    wish: Stopping | None = None,
) -> Decision:
    """Ends a job that holds no trainer at once; asks the worker to stop one that may run.

    Agents that accept nothing explicitly may have started already when they hold an offer.
    """
    if job.terminal:
        raise WrongJobState(f"The job is {job.state} already.", state=job.state)
    details: dict[str, Any] = {"checkpoint_first": True} if wish and wish.save_s else {}
    asked = job_event(EventType.JOB_CANCEL_REQUESTED, job, actor, **details)
    if job.state is JobState.CANCELLING:
        return _hurried(attempt, wish, asked)
    if attempt is None or (attempt.state is AttemptState.OFFERED and explicit_accept):
        ended = ended_as(attempt, Outcome.CANCELLED, now) if attempt else None
        return cancelled_now(job, ended, now=now, before=(asked,))
    stopping = replace(job, state=next_state(job.state, JobInput.REQUEST_STOP))
    told = _asked(attempt, wish) if wish else None
    return Decision(job=stopping, attempt=told, events=(asked,))


def _hurried(attempt: Attempt | None, wish: Stopping | None, asked: Event) -> Decision:
    """Whoever cancels again without a word of a checkpoint does not want to wait for one."""
    known = attempt.stopping if attempt else None
    if attempt is None or known is None or not known.save_s or (wish and wish.save_s):
        return NOTHING
    grace_s = min(known.grace_s, wish.grace_s) if wish else known.grace_s
    return Decision(
        attempt=replace(attempt, stopping=replace(known, save_s=None, grace_s=grace_s)), events=(asked,)
    )


def drain_over(job: Job, attempt: Attempt, wish: Stopping) -> Decision:
    """The worker's drain has waited long enough: this attempt is to be given back, and goes on elsewhere."""
    if not attempt.live or attempt.stopping is not None:
        return NOTHING
    event = job_event(
        EventType.JOB_STOP_REQUESTED,
        job,
        reason=wish.reason,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        checkpoint_first=bool(wish.save_s),
    )
    return Decision(attempt=_asked(attempt, wish), events=(event,))


def _asked(attempt: Attempt, wish: Stopping) -> Attempt:
    return replace(attempt, stopping=replace(wish, had_step=attempt.checkpoint_step))
