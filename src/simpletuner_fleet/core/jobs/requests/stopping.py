"""Ends attempts on purpose: when they are cancelled, drained, given back, out of time or too expensive."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import WrongJobState
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import retry
from simpletuner_fleet.core.jobs.decision import (
    NOTHING,
    Decision,
    cancelled_now,
    ended_as,
    follow,
    job_event,
    requeued,
)
from simpletuner_fleet.core.jobs.fencing import must_be_current
from simpletuner_fleet.core.jobs.job import (
    Attempt,
    AttemptState,
    EndReason,
    Job,
    JobInput,
    JobState,
    Outcome,
    Stopping,
    is_finishing,
    next_state,
)
from simpletuner_fleet.core.jobs.lifecycle import End, failed
from simpletuner_fleet.core.jobs.retry import GiveUp
from simpletuner_fleet.core.money.ceilings import is_stopped_for_cost, must_stop_at, reached_at, stop_times
from simpletuner_fleet.core.placement.ordering import rank
from simpletuner_fleet.core.policy import Policy

DRAINED = "its worker was drained"
COSTS_TOO_MUCH = "its job was about to pass its cost limit"
UNREACHABLE = "the checkpoint to resume from could not be downloaded"


def released(
    job: Job,
    attempt: Attempt,
    why: str,
    policy: Policy,
    *,
    now: float,
    reason: str = "",
    nothing_to_go_on_from: bool = False,
) -> Decision:
    """Ends an attempt that its worker gives back on purpose: a shutdown, a lost machine or a drain.

    It charges nothing. A time limit that was used up without a newer checkpoint is charged: a job that asks to be
    requeued would be so for ever. An offer given back before it was accepted is withdrawn, whatever reason the worker
    names: nothing of it has run. A job that was to continue from a checkpoint that nobody can fetch is given up: it
    does not begin at the start instead.
    """
    must_be_current(job, attempt)
    if attempt.state is AttemptState.OFFERED:
        return _given_back_unaccepted(job, attempt, why, now=now)
    reason = _asked_reason(attempt, reason)
    why = COSTS_TOO_MUCH if reason == EndReason.COST_LIMIT else why
    out_of_time = reason == EndReason.TIME_LIMIT
    if out_of_time and not (job.on_time_limit == "requeue" and attempt.saved_something):
        return _out_of_time(job, attempt, why, policy, now=now)
    ended = ended_as(attempt, Outcome.RELEASED, now, error=why or None, reason=reason or None)
    if nothing_to_go_on_from and job.state is not JobState.CANCELLING:
        return follow(job, ended, GiveUp(EndReason.RESUME_FAILED, why or UNREACHABLE), why, now=now)
    waiting = replace(job, rank=max(job.rank, rank(now, job.priority, policy))) if out_of_time else job
    if reason == EndReason.INTERRUPTED:
        waiting = replace(job, interruptions=job.interruptions + 1)
    return _waits_again(waiting, ended, why, now=now)


def _asked_reason(attempt: Attempt, reported: str) -> str:
    """Returns why the attempt was stopped: for a stop because of the cost, our own reason.

    Such a stop is passed on as a drain, which every agent knows, so the worker's reason says less than ours.
    """
    asked = attempt.stopping.reason if attempt.stopping else ""
    return asked if is_stopped_for_cost(attempt) else reported or asked


def _given_back_unaccepted(job: Job, attempt: Attempt, why: str, *, now: float) -> Decision:
    return _waits_again(job, ended_as(attempt, Outcome.RELEASED, now, error=why or None), why, now=now)


def _waits_again(job: Job, ended: Attempt, why: str, *, now: float) -> Decision:
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    details: dict[str, Any] = {"reason": ended.reason} if ended.reason else {}
    event = job_event(
        EventType.JOB_RELEASED, job, worker_id=ended.worker_id, attempt=ended.number, why=why, **details
    )
    return requeued(job, ended, None, None, (event,))


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
    """Ends an attempt whose worker reports a cancelled trainer; if nobody asked for it, the trainer has failed.

    Agents that know no drain with a deadline call that a cancellation, too.
    """
    if job.state is not JobState.CANCELLING and attempt.stopping is not None:
        return released(job, attempt, end.error or DRAINED, policy, now=now)
    if job.state is not JobState.CANCELLING:
        end = replace(end, error=end.error or "the trainer was stopped on its worker")
        return failed(job, attempt, end, policy, now=now)
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
    stop_request: Stopping | None = None,
) -> Decision:
    """Ends a job that holds no trainer at once; asks the worker to stop one that may run.

    Agents that accept nothing explicitly may have started already when they hold an offer.
    """
    if job.terminal:
        raise WrongJobState(f"The job is already {job.state}.", state=job.state)
    details: dict[str, Any] = {"checkpoint_first": True} if stop_request and stop_request.save_s else {}
    event = job_event(EventType.JOB_CANCEL_REQUESTED, job, actor, **details)
    if job.state is JobState.CANCELLING and attempt is not None:
        return _hurry(attempt, stop_request, event)
    if attempt is None or (attempt.state is AttemptState.OFFERED and explicit_accept):
        ended = ended_as(attempt, Outcome.CANCELLED, now) if attempt else None
        return cancelled_now(job, ended, now=now, before=(event,))
    stopping = replace(job, state=next_state(job.state, JobInput.REQUEST_STOP))
    stopped_attempt = _with_stop_request(attempt, stop_request) if stop_request else None
    return Decision(job=stopping, attempt=stopped_attempt, events=(event,))


def asked_to_stop(job: Job) -> Decision:
    """Takes a running job of whose attempt nothing is left on its way to be cancelled: there is nobody to be asked."""
    return Decision(job=replace(job, state=next_state(job.state, JobInput.REQUEST_STOP)))


def _hurry(attempt: Attempt, stop_request: Stopping | None, event: Event) -> Decision:
    """Drops the wait for a checkpoint if somebody cancels again without asking for one."""
    known = attempt.stopping
    if known is None or not known.save_s or (stop_request and stop_request.save_s):
        return NOTHING
    grace_s = min(known.grace_s, stop_request.grace_s) if stop_request else known.grace_s
    return Decision(
        attempt=replace(attempt, stopping=replace(known, save_s=None, grace_s=grace_s)), events=(event,)
    )


def drain_over(job: Job, attempt: Attempt, stop_request: Stopping) -> Decision:
    """Asks for an attempt back when its worker's drain has waited long enough, or the job costs too much.

    One whose trainer has ended well is left to store its results: there is nothing to stop, and nothing to give back.
    """
    if not attempt.live or attempt.stopping is not None or is_finishing(job):
        return NOTHING
    event = job_event(
        EventType.JOB_STOP_REQUESTED,
        job,
        reason=stop_request.reason,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        checkpoint_first=bool(stop_request.save_s),
    )
    return Decision(attempt=_with_stop_request(attempt, stop_request), events=(event,))


def ceiling_near(job: Job, attempt: Attempt, policy: Policy, now: float) -> Decision:
    """Asks a training for a checkpoint, and then to end, before its job costs more than it may."""
    if job.on_max_cost != "stop" or job.state is not JobState.RUNNING:
        return NOTHING
    reached = reached_at(job, attempt)
    if (
        reached is None
        or attempt.accepted_at is None
        or now < must_stop_at(reached, attempt.accepted_at, policy)
    ):
        return NOTHING
    times = stop_times(reached, policy, now)
    asked = Stopping(reason=EndReason.COST_LIMIT, asked_at=now, grace_s=times.grace_s, save_s=times.save_s)
    return drain_over(job, attempt, asked)


def _with_stop_request(attempt: Attempt, stop_request: Stopping) -> Attempt:
    return replace(attempt, stopping=replace(stop_request, had_step=attempt.checkpoint_step))
