"""One function per thing that can happen to a job. Each takes what was read and returns what to do; none does it."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core import retry
from simpletuner_fleet.core.checkpoint import ResumePoint
from simpletuner_fleet.core.errors import OfferWithdrawn, StaleAttempt, WrongJobState
from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.failure import classify
from simpletuner_fleet.core.job import (
    Attempt,
    AttemptState,
    EndReason,
    Hold,
    Job,
    JobInput,
    JobState,
    Outcome,
    Stopping,
    next_state,
)
from simpletuner_fleet.core.ordering import rank
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.worker import Gpu, Worker


class Decision(Struct, frozen=True, kw_only=True):
    """Rows to write and facts to record, all in one transaction; then workers to wake."""

    job: Job | None = None
    attempt: Attempt | None = None
    events: tuple[Event, ...] = ()


NOTHING = Decision()
PHASE = "phase"
"""In a job's progress: what is done before its trainer starts."""
NOT_ACCEPTED = "the worker did not accept the offer in time"
DRAINED = "its worker was drained"


def _job_event(type_: EventType, job: Job, actor: Actor = ORCHESTRATOR, **details: Any) -> Event:
    return Event(type=type_, actor=actor, target_type="job", target_id=job.id, details=details)


def _ended(attempt: Attempt, outcome: Outcome, now: float, **facts: Any) -> Attempt:
    return replace(attempt, state=AttemptState.ENDED, outcome=outcome, ended_at=now, **facts)


def _without_attempt(job: Job) -> Job:
    return replace(job, attempt_id=None, worker_id=None, gpus=())


def offer(
    job: Job,
    worker: Worker,
    gpus: tuple[Gpu, ...],
    *,
    attempt_id: str,
    epoch: int,
    upload_token_hash: str,
    now: float,
    resume: ResumePoint | None = None,
) -> Decision:
    attempt = Attempt(
        id=attempt_id,
        job_id=job.id,
        number=job.attempts + 1,
        epoch=epoch,
        worker_id=worker.id,
        worker_name=worker.name,
        state=AttemptState.OFFERED,
        offered_at=now,
        gpus=tuple(gpu.uuid for gpu in gpus),
        gpu_indices=tuple(gpu.index for gpu in gpus),
        upload_token_hash=upload_token_hash,
        incarnation=worker.incarnation,
        resumed_from_step=resume.step if resume else None,
        resumed_manifest=resume.manifest_id if resume else None,
        checkpoint_step=resume.step if resume else None,
    )
    offered = replace(
        job,
        state=next_state(job.state, JobInput.OFFER),
        epoch=epoch,
        attempts=attempt.number,
        attempt_id=attempt.id,
        worker_id=worker.id,
        gpus=attempt.gpus,
        hold=Hold.NONE,
        not_before=None,
    )
    resumed: dict[str, Any] = {"resumed_from_step": resume.step} if resume else {}
    event = _job_event(
        EventType.JOB_DISPATCHED,
        job,
        worker_id=worker.id,
        worker_name=worker.name,
        attempt=attempt.number,
        epoch=epoch,
        gpus=list(attempt.gpus),
        **resumed,
    )
    return Decision(job=offered, attempt=attempt, events=(event,))


def accept(job: Job, attempt: Attempt, *, incarnation: str, now: float) -> Decision:
    """The worker takes the offer. Saying so twice is harmless; saying so too late is refused."""
    if attempt.state is AttemptState.RUNNING and attempt.id == job.attempt_id:
        if incarnation and attempt.incarnation != incarnation:
            raise StaleAttempt("Another process of this worker has accepted this attempt.")
        return NOTHING
    if attempt.state is AttemptState.ENDED or attempt.id != job.attempt_id:
        raise OfferWithdrawn
    running = replace(
        attempt,
        state=AttemptState.RUNNING,
        accepted_at=now,
        incarnation=incarnation or attempt.incarnation,
    )
    state = job.state if job.state is JobState.CANCELLING else next_state(job.state, JobInput.ACCEPT)
    event = _job_event(
        EventType.JOB_ACCEPTED, job, worker_id=attempt.worker_id, attempt=attempt.number, epoch=attempt.epoch
    )
    return Decision(
        job=replace(job, state=state, started_at=job.started_at or now, error=None, reason=None),
        attempt=running,
        events=(event,),
    )


def progressed(job: Job, attempt: Attempt, progress: dict[str, Any] | None, *, now: float) -> Decision:
    """The trainer runs and may say how far it is."""
    _must_be_current(job, attempt)
    started = attempt if attempt.started_at else replace(attempt, started_at=now)
    prepared = progress is None and PHASE in (job.progress or {})
    news = prepared or (progress is not None and progress != job.progress)
    if started is attempt and not news:
        return NOTHING
    events = (
        ()
        if started is attempt
        else (_job_event(EventType.JOB_STARTED, job, worker_id=attempt.worker_id, attempt=attempt.number),)
    )
    return Decision(job=replace(job, progress=progress) if news else None, attempt=started, events=events)


def preparing(job: Job, attempt: Attempt, progress: dict[str, Any]) -> Decision:
    """Something is brought to the worker before the trainer starts."""
    _must_be_current(job, attempt)
    return Decision(job=replace(job, progress=progress)) if progress != job.progress else NOTHING


class End(Struct, frozen=True, kw_only=True):
    """How a trainer ended, as its worker tells it."""

    exit_code: int | None = None
    exit_signal: int | None = None
    error: str | None = None
    last_lines: str | None = None
    restart: bool = False
    """A watchdog ended it, and the job has asked to go on from its last good checkpoint then."""
    resume_below: int | None = None
    """Checkpoints from this step on are spoiled."""


def completed(job: Job, attempt: Attempt, end: End, *, now: float) -> Decision:
    _must_be_current(job, attempt)
    done = replace(
        job, state=next_state(job.state, JobInput.COMPLETE), finished_at=now, error=None, reason=None
    )
    event = _job_event(
        EventType.JOB_COMPLETED, job, worker_id=attempt.worker_id, attempt=attempt.number, epoch=attempt.epoch
    )
    ended = _ended(
        attempt, Outcome.COMPLETED, now, exit_code=end.exit_code if end.exit_code is not None else 0
    )
    return Decision(job=done, attempt=ended, events=(event,))


def failed(job: Job, attempt: Attempt, end: End, policy: Policy, *, now: float) -> Decision:
    _must_be_current(job, attempt)
    error = end.error or _told(end)
    failure = classify(
        end.exit_code,
        end.exit_signal,
        end.last_lines,
        end.error,
        started=attempt.started_at is not None,
    )
    ended = _ended(
        attempt,
        Outcome.FAILED,
        now,
        exit_code=end.exit_code,
        exit_signal=end.exit_signal,
        error=error,
        last_lines=end.last_lines,
        failure_class=failure.code,
        failure_evidence=failure.evidence,
        resume_below=end.resume_below,
    )
    if job.state is JobState.CANCELLING:
        return _cancelled(job, ended, now=now)
    charged = replace(job, failures=job.failures + 1)
    verdict = retry.after_failure(charged, policy, now, error, restart=end.restart)
    return _follow(charged, ended, verdict, error, now=now)


def lost(job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float) -> Decision:
    """The worker is gone and its trainer with it. An offer it never took charges nothing."""
    _must_be_current(job, attempt)
    if attempt.state is AttemptState.OFFERED:
        return _withdrawn(job, attempt, why, now=now)
    ended = _ended(attempt, Outcome.LOST, now, error=why)
    if job.state is JobState.CANCELLING:
        return _cancelled(job, ended, now=now)
    charged = replace(
        job,
        losses=job.losses + 1,
        lost_workers=(*job.lost_workers, attempt.worker_id),
    )
    event = _job_event(
        EventType.JOB_LOST,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        why=why,
    )
    return _follow(charged, ended, retry.after_charge(charged, policy, now), why, now=now, before=(event,))


def readopted(job: Job, attempt: Attempt, *, now: float) -> Decision:
    """The worker thought lost is back and its trainer never stopped: the same attempt goes on, uncharged."""
    running = replace(attempt, state=AttemptState.RUNNING, outcome=None, ended_at=None, error=None)
    resumed = replace(
        job,
        state=next_state(job.state, JobInput.READOPT),
        hold=Hold.NONE,
        not_before=None,
        attempt_id=attempt.id,
        worker_id=attempt.worker_id,
        gpus=attempt.gpus,
        losses=job.losses - 1,
        lost_workers=_without_last(attempt.worker_id, job.lost_workers),
        error=None,
    )
    event = _job_event(
        EventType.JOB_READOPTED, job, worker_id=attempt.worker_id, attempt=attempt.number, epoch=attempt.epoch
    )
    return Decision(job=resumed, attempt=running, events=(event,))


def _without_last(worker_id: str, lost_workers: tuple[str, ...]) -> tuple[str, ...]:
    """An earlier loss of the same worker stays on the books."""
    return lost_workers[:-1] if lost_workers[-1:] == (worker_id,) else lost_workers


def survived(job: Job, worker_id: str) -> Decision:
    """A worker thought dead is alive after all: the job has not cost it its life."""
    if job.terminal or worker_id not in job.lost_workers:
        return NOTHING
    return Decision(job=replace(job, lost_workers=tuple(id for id in job.lost_workers if id != worker_id)))


def released(
    job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float, reason: str = ""
) -> Decision:
    """The worker gives the job back on purpose: a shutdown, a spot notice, a drain. It charges nothing.

    But for a time limit that was used up without a step forward: a job that asks to go on would do so for ever.
    """
    _must_be_current(job, attempt)
    reason = reason or (attempt.stopping.reason if attempt.stopping else "")
    out_of_time = reason == EndReason.TIME_LIMIT
    if out_of_time and not (job.on_time_limit == "requeue" and attempt.saved_something):
        return _out_of_time(job, attempt, why, policy, now=now)
    ended = _ended(attempt, Outcome.RELEASED, now, error=why or None, reason=reason or None)
    if job.state is JobState.CANCELLING:
        return _cancelled(job, ended, now=now)
    told: dict[str, Any] = {"reason": reason} if reason else {}
    event = _job_event(
        EventType.JOB_RELEASED, job, worker_id=attempt.worker_id, attempt=attempt.number, why=why, **told
    )
    waiting = replace(job, rank=rank(now, job.priority, policy)) if out_of_time else job
    return _requeued(waiting, ended, None, None, (event,))


def _out_of_time(job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float) -> Decision:
    error = why or "the time limit was reached"
    ended = _ended(
        attempt,
        Outcome.FAILED,
        now,
        error=error,
        reason=EndReason.TIME_LIMIT,
        failure_class="time_limit",
        failure_evidence=error,
    )
    if job.state is JobState.CANCELLING:
        return _cancelled(job, ended, now=now)
    charged = replace(job, failures=job.failures + 1)
    if job.on_time_limit == "requeue":
        error = f"{error}, and no newer checkpoint was saved"
        return _follow(charged, ended, retry.after_charge(charged, policy, now), error, now=now)
    return _follow(charged, ended, retry.after_failure(charged, policy, now, error), error, now=now)


def stopped(job: Job, attempt: Attempt, end: End, policy: Policy, *, now: float) -> Decision:
    """The worker says the trainer was cancelled. If nobody asked for it, the trainer has failed.

    Agents that know no drain with a deadline call that a cancellation, too.
    """
    if job.state is not JobState.CANCELLING and attempt.stopping is not None:
        return released(job, attempt, end.error or DRAINED, policy, now=now)
    if job.state is not JobState.CANCELLING:
        told = replace(end, error=end.error or "the trainer was stopped on its worker")
        return failed(job, attempt, told, policy, now=now)
    _must_be_current(job, attempt)
    ended = _ended(attempt, Outcome.CANCELLED, now, exit_code=end.exit_code, exit_signal=end.exit_signal)
    return _cancelled(job, ended, now=now)


def offer_expired(job: Job, attempt: Attempt, *, now: float, why: str = NOT_ACCEPTED) -> Decision:
    if attempt.id != job.attempt_id or attempt.state is not AttemptState.OFFERED:
        return NOTHING
    return _withdrawn(job, attempt, why, now=now)


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
    asked = _job_event(EventType.JOB_CANCEL_REQUESTED, job, actor, **details)
    if job.state is JobState.CANCELLING:
        return _hurried(attempt, wish, asked)
    if attempt is None or (attempt.state is AttemptState.OFFERED and explicit_accept):
        ended = _ended(attempt, Outcome.CANCELLED, now) if attempt else None
        return _cancelled(job, ended, now=now, before=(asked,))
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
    event = _job_event(
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


def set_priority(job: Job, priority: int, policy: Policy, actor: Actor) -> Decision:
    if job.terminal:
        raise WrongJobState(f"The job is {job.state} already.", state=job.state)
    moved = replace(job, priority=priority, rank=rank(job.created_at, priority, policy))
    event = _job_event(EventType.JOB_PRIORITY_SET, job, actor, priority=priority, was=job.priority)
    return Decision(job=moved, events=(event,))


def approved(job: Job, actor: Actor, *, waits_for_others: bool) -> Decision:
    if job.state is not JobState.BLOCKED or job.hold is not Hold.APPROVAL:
        raise WrongJobState("The job does not wait for an approval.", state=job.state)
    event = _job_event(EventType.JOB_APPROVED, job, actor)
    if waits_for_others:
        return Decision(job=replace(job, hold=Hold.DEPENDENCY), events=(event,))
    return Decision(job=_unblocked(job), events=(event,))


def rejected(job: Job, why: str, actor: Actor, *, now: float) -> Decision:
    if job.state is not JobState.BLOCKED or job.hold is not Hold.APPROVAL:
        raise WrongJobState("The job does not wait for an approval.", state=job.state)
    ended = replace(
        job,
        state=next_state(job.state, JobInput.CANCEL),
        hold=Hold.NONE,
        finished_at=now,
        reason="rejected",
        error=why or "rejected",
    )
    return Decision(job=ended, events=(_job_event(EventType.JOB_REJECTED, job, actor, why=why),))


def dependency_ended(job: Job, dependency: Job, *, others_pending: bool, now: float) -> Decision:
    """A job this one waits for has ended: well, then the wait may be over; badly, then it is in vain."""
    if job.state is not JobState.BLOCKED:
        return NOTHING
    if dependency.state is not JobState.COMPLETED:
        why = f"it depends on {dependency.id}, which ended {dependency.state}"
        ended = replace(
            job,
            state=next_state(job.state, JobInput.GIVE_UP),
            hold=Hold.NONE,
            finished_at=now,
            reason="dependency_failed",
            error=why,
        )
        return Decision(job=ended, events=(_job_event(EventType.JOB_FAILED, job, why=why),))
    if others_pending or job.hold is not Hold.DEPENDENCY:
        return NOTHING
    return Decision(job=_unblocked(job), events=(_job_event(EventType.JOB_UNBLOCKED, job),))


def backoff_over(job: Job) -> Decision:
    if job.hold is not Hold.BACKOFF:
        return NOTHING
    return Decision(job=replace(job, hold=Hold.NONE, not_before=None))


def backoff_capped(job: Job, latest: float) -> Decision:
    """The clock was set back while the orchestrator was down: nobody waits longer than the longest wait."""
    if job.hold is not Hold.BACKOFF or job.not_before is None or job.not_before <= latest:
        return NOTHING
    return Decision(job=replace(job, not_before=latest))


def _unblocked(job: Job) -> Job:
    return replace(job, state=next_state(job.state, JobInput.UNBLOCK), hold=Hold.NONE)


def _must_be_current(job: Job, attempt: Attempt) -> None:
    if attempt.id != job.attempt_id or not attempt.live:
        raise StaleAttempt


def _told(end: End) -> str:
    if end.exit_signal is not None:
        return f"the trainer was killed by signal {end.exit_signal}"
    if end.exit_code is not None:
        return f"the trainer exited with code {end.exit_code}"
    return "the trainer failed"


def _follow(
    job: Job,
    attempt: Attempt,
    verdict: retry.Verdict,
    error: str,
    *,
    now: float,
    before: tuple[Event, ...] = (),
) -> Decision:
    if isinstance(verdict, retry.Requeue):
        return _requeued(job, attempt, verdict.not_before, error, before)
    given_up = replace(
        job,
        state=next_state(job.state, JobInput.GIVE_UP),
        finished_at=now,
        reason=verdict.reason,
        error=verdict.why,
    )
    shown: dict[str, Any] = (
        {"failure_class": attempt.failure_class, "failure_evidence": attempt.failure_evidence}
        if attempt.failure_class
        else {}
    )
    event = _job_event(
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


def _requeued(
    job: Job,
    attempt: Attempt,
    not_before: float | None,
    error: str | None,
    before: tuple[Event, ...],
) -> Decision:
    waiting = replace(
        _without_attempt(job),
        state=next_state(job.state, JobInput.REQUEUE),
        hold=Hold.BACKOFF if not_before is not None else Hold.NONE,
        not_before=not_before,
        error=error,
        progress=None if PHASE in (job.progress or {}) else job.progress,
    )
    event = _job_event(EventType.JOB_REQUEUED, job, losses=job.losses, failures=job.failures, why=error)
    return Decision(job=waiting, attempt=attempt, events=(*before, event))


def _withdrawn(job: Job, attempt: Attempt, why: str, *, now: float) -> Decision:
    ended = _ended(attempt, Outcome.EXPIRED_OFFER, now, error=why)
    if job.state is JobState.CANCELLING:
        return _cancelled(job, ended, now=now)
    event = _job_event(
        EventType.JOB_OFFER_EXPIRED, job, worker_id=attempt.worker_id, attempt=attempt.number, why=why
    )
    return _requeued(job, ended, None, job.error, (event,))


def _cancelled(job: Job, attempt: Attempt | None, *, now: float, before: tuple[Event, ...] = ()) -> Decision:
    ended = replace(
        job,
        state=next_state(job.state, JobInput.CANCEL),
        hold=Hold.NONE,
        not_before=None,
        finished_at=now,
        reason="cancelled",
    )
    return Decision(job=ended, attempt=attempt, events=(*before, _job_event(EventType.JOB_CANCELLED, job)))
