"""Decides what follows from each event in a job's life, in one pure function for each event.

Each function takes what was read and returns what to do; none does it.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import OfferWithdrawn, StaleAttempt, WrongJobState
from simpletuner_fleet.core.events import Actor, EventType
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
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.jobs.fencing import must_be_current
from simpletuner_fleet.core.jobs.job import (
    FINISHING,
    REJECTED,
    RESULTS_MISSING,
    Attempt,
    AttemptInput,
    AttemptState,
    EndReason,
    Hold,
    Job,
    JobInput,
    JobState,
    Outcome,
    Results,
    ended_badly,
    has_left_its_gpus,
    is_finishing,
    next_attempt_state,
    next_state,
)
from simpletuner_fleet.core.jobs.progress import Progress, is_preparing
from simpletuner_fleet.core.jobs.start_time import held
from simpletuner_fleet.core.money.ceilings import paid, unpaid
from simpletuner_fleet.core.money.costs import kind_of_gpus
from simpletuner_fleet.core.placement.ordering import with_room
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import ResumePoint
from simpletuner_fleet.core.workers.worker import Gpu, Worker

_OFFERED, _CANCELLING, _NOT_HELD = AttemptState.OFFERED, JobState.CANCELLING, Hold.NONE
_NO_RESULTS, _RESULTS_MISSING = Results.NONE, Results.MISSING
_OFFER, _ACCEPT, _COMPLETE = JobInput.OFFER, JobInput.ACCEPT, JobInput.COMPLETE
_IS_DISPATCHED, _IS_ACCEPTED = EventType.JOB_DISPATCHED, EventType.JOB_ACCEPTED
_IS_STARTED, _IS_COMPLETED = EventType.JOB_STARTED, EventType.JOB_COMPLETED
"""What every job passes: Python 3.11 takes longer to find a member in its enum than for most of what is done with it."""
NOT_ACCEPTED = "the worker did not accept the offer in time"
INTERRUPTIONS_UNCHARGED = 10
"""So often a machine may be taken away without a word from a job that has stored nothing new: then it may be its fault."""


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
    hourly_micros: int | None = None,
) -> Decision:
    attempt = Attempt(
        id=attempt_id,
        job_id=job.id,
        number=job.attempts + 1,
        epoch=epoch,
        worker_id=worker.id,
        worker_name=worker.name,
        state=_OFFERED,
        offered_at=now,
        gpus=tuple([gpu.uuid for gpu in gpus]),
        gpu_indices=tuple([gpu.index for gpu in gpus]),
        upload_token_hash=upload_token_hash,
        incarnation=worker.incarnation,
        resumed_from_step=resume.step if resume else None,
        resumed_manifest=resume.manifest_id if resume else None,
        checkpoint_step=resume.step if resume else None,
        gpu_kind=kind_of_gpus(gpus),
        hourly_micros=hourly_micros,
    )
    offered = replace(
        job,
        state=next_state(job.state, _OFFER),
        epoch=epoch,
        attempts=attempt.number,
        attempt_id=attempt.id,
        worker_id=worker.id,
        gpus=attempt.gpus,
        hold=_NOT_HELD,
        not_before=None,
    )
    resumed: dict[str, Any] = {"resumed_from_step": resume.step} if resume else {}
    event = job_event(
        _IS_DISPATCHED,
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
    """Lets the worker accept the offer: a repeated acceptance is harmless, one that is too late is refused."""
    if attempt.state is AttemptState.RUNNING and attempt.id == job.attempt_id:
        if incarnation and attempt.incarnation != incarnation:
            raise StaleAttempt("Another process of this worker has accepted this attempt.")
        return NOTHING
    if attempt.state is AttemptState.ENDED or attempt.id != job.attempt_id:
        raise OfferWithdrawn
    running = replace(
        attempt,
        state=next_attempt_state(attempt.state, AttemptInput.ACCEPT),
        accepted_at=now,
        incarnation=incarnation or attempt.incarnation,
    )
    state = job.state if job.state is _CANCELLING else next_state(job.state, _ACCEPT)
    event = job_event(
        _IS_ACCEPTED, job, worker_id=attempt.worker_id, attempt=attempt.number, epoch=attempt.epoch
    )
    return Decision(
        job=replace(job, state=state, started_at=job.started_at or now, error=None, reason=None),
        attempt=running,
        events=(event,),
    )


def progressed(job: Job, attempt: Attempt, progress: Progress | None, *, now: float) -> Decision:
    """Records that the trainer runs, and its progress; a late report does not revive one that has ended."""
    must_be_current(job, attempt)
    finishing = progress is not None and progress.phase == FINISHING
    if has_left_its_gpus(job) and not finishing:
        return NOTHING
    started = attempt if attempt.started_at else replace(attempt, started_at=now)
    was_preparing = progress is None and is_preparing(job.progress)
    changed = was_preparing or (progress is not None and progress != job.progress)
    if started is attempt and not changed:
        return NOTHING
    events = (
        ()
        if started is attempt
        else (job_event(_IS_STARTED, job, worker_id=attempt.worker_id, attempt=attempt.number),)
    )
    results = Results.PENDING if finishing else _NO_RESULTS
    moved = replace(job, progress=progress, results=results) if changed else None
    return Decision(job=moved, attempt=started, events=events)


def preparing(job: Job, attempt: Attempt, progress: Progress) -> Decision:
    """Records progress while something is copied to the worker before the trainer starts."""
    must_be_current(job, attempt)
    if progress == job.progress or has_left_its_gpus(job):
        return NOTHING
    return Decision(job=replace(job, progress=progress))


class End(Struct, frozen=True, kw_only=True):
    """Describes how a trainer ended, as its worker reports it."""

    exit_code: int | None = None
    exit_signal: int | None = None
    error: str | None = None
    last_lines: str | None = None
    restart: bool = False
    """A watchdog ended it, and the job has asked to go on from its last good checkpoint then."""
    resume_below: int | None = None
    """Checkpoints from this step on are spoiled."""
    results: Results = Results.NONE
    """Whether what it made is stored, where it ended well."""


def completed(job: Job, attempt: Attempt, end: End, *, now: float) -> Decision:
    must_be_current(job, attempt)
    ended = ended_as(
        attempt, Outcome.COMPLETED, now, exit_code=end.exit_code if end.exit_code is not None else 0
    )
    missing = end.results is _RESULTS_MISSING
    done = replace(
        paid(job, ended),
        state=next_state(job.state, _COMPLETE),
        finished_at=now,
        results=end.results,
        error=_missing(end, attempt) if missing else None,
        reason=RESULTS_MISSING if missing else None,
    )
    results: dict[str, Any] = {} if end.results is _NO_RESULTS else {"results": end.results}
    event = job_event(
        _IS_COMPLETED,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        **results,
    )
    return Decision(job=done, attempt=ended, events=(event,))


def _missing(end: End, attempt: Attempt) -> str:
    why = end.error or "they could not be stored"
    return f"its results are not stored, and are on the disk of {attempt.worker_name} alone: {why}"


def failed(job: Job, attempt: Attempt, end: End, policy: Policy, *, now: float) -> Decision:
    must_be_current(job, attempt)
    error = end.error or _how_it_ended(end)
    failure = classify(
        end.exit_code,
        end.exit_signal,
        end.last_lines,
        end.error,
        started=attempt.started_at is not None,
    )
    ended = ended_as(
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
        return cancelled_now(job, ended, now=now)
    charged = replace(job, failures=job.failures + 1)
    verdict = retry.after_failure(charged, policy, now, error, restart=end.restart)
    return follow(charged, ended, verdict, error, now=now)


def lost(
    job: Job, attempt: Attempt, why: str, policy: Policy, *, now: float, taken_away: bool = False
) -> Decision:
    """Ends an attempt whose worker is gone, and its trainer with it; an unaccepted offer charges nothing.

    A training that has ended well is not done again: it is complete, and says that what it made is missing.
    `taken_away` says that its machine is one that goes at any time. That is no fault of a job that comes forward.
    """
    must_be_current(job, attempt)
    if is_finishing(job):
        return completed(job, attempt, End(results=Results.MISSING, error=why), now=now)
    if attempt.state is AttemptState.OFFERED:
        return _withdrawn(job, attempt, why, now=now)
    ended = ended_as(attempt, Outcome.LOST, now, error=why)
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    if taken_away and (attempt.saved_something or job.interruptions < INTERRUPTIONS_UNCHARGED):
        return _taken_away(job, ended, why)
    charged = replace(
        job,
        losses=job.losses + 1,
        lost_workers=(*job.lost_workers, attempt.worker_id),
    )
    event = job_event(
        EventType.JOB_LOST,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        why=why,
    )
    return follow(charged, ended, retry.after_charge(charged, policy, now), why, now=now, before=(event,))


def _taken_away(job: Job, ended: Attempt, why: str) -> Decision:
    event = job_event(
        EventType.JOB_LOST,
        job,
        worker_id=ended.worker_id,
        attempt=ended.number,
        epoch=ended.epoch,
        why=why,
        reason=EndReason.INTERRUPTED,
    )
    waiting = replace(job, interruptions=job.interruptions + 1)
    return requeued(waiting, replace(ended, reason=EndReason.INTERRUPTED), None, why, (event,))


def results_arrived(job: Job, attempt: Attempt) -> Decision:
    """Marks missing results as stored after a worker that was away for too long has returned and stored them."""
    if job.results is not Results.MISSING or job.epoch != attempt.epoch:
        return NOTHING
    stored = replace(job, results=Results.STORED, error=None, reason=None)
    event = job_event(
        EventType.JOB_RESULTS_STORED,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
    )
    return Decision(job=stored, events=(event,))


def readopted(job: Job, attempt: Attempt, *, now: float) -> Decision:
    """Continues an attempt, uncharged, whose worker is back after all and whose trainer never stopped."""
    uncharged = attempt.reason == EndReason.INTERRUPTED
    running = replace(
        attempt,
        state=next_attempt_state(attempt.state, AttemptInput.READOPT),
        outcome=None,
        ended_at=None,
        error=None,
        reason=None,
    )
    resumed = replace(
        with_room(unpaid(job, attempt)),
        state=next_state(job.state, JobInput.READOPT),
        hold=Hold.NONE,
        not_before=None,
        attempt_id=attempt.id,
        worker_id=attempt.worker_id,
        gpus=attempt.gpus,
        losses=job.losses if uncharged else job.losses - 1,
        interruptions=job.interruptions - 1 if uncharged else job.interruptions,
        lost_workers=job.lost_workers if uncharged else _without_last(attempt.worker_id, job.lost_workers),
        error=None,
    )
    event = job_event(
        EventType.JOB_READOPTED, job, worker_id=attempt.worker_id, attempt=attempt.number, epoch=attempt.epoch
    )
    return Decision(job=resumed, attempt=running, events=(event,))


def _without_last(worker_id: str, lost_workers: tuple[str, ...]) -> tuple[str, ...]:
    """Removes the last loss if it was of this worker; an earlier loss of the same worker stays counted."""
    return lost_workers[:-1] if lost_workers[-1:] == (worker_id,) else lost_workers


def survived(job: Job, worker_id: str) -> Decision:
    """Removes a worker that was thought dead and is alive from those that the job has cost."""
    if job.terminal or worker_id not in job.lost_workers:
        return NOTHING
    return Decision(job=replace(job, lost_workers=tuple(id for id in job.lost_workers if id != worker_id)))


def offer_expired(job: Job, attempt: Attempt, *, now: float, why: str = NOT_ACCEPTED) -> Decision:
    if attempt.id != job.attempt_id or attempt.state is not AttemptState.OFFERED:
        return NOTHING
    return _withdrawn(job, attempt, why, now=now)


def set_priority(job: Job, priority: int, policy: Policy, actor: Actor) -> Decision:
    if job.terminal:
        raise WrongJobState(f"The job is already {job.state}.", state=job.state)
    moved_by_s = (job.priority - priority) * policy.priority_point_s
    moved = replace(job, priority=priority, rank=job.rank + moved_by_s)
    event = job_event(EventType.JOB_PRIORITY_SET, job, actor, priority=priority, was=job.priority)
    return Decision(job=moved, events=(event,))


def approved(job: Job, actor: Actor, *, waits_for_others: bool, now: float, note: str = "") -> Decision:
    if job.state is not JobState.BLOCKED or job.hold is not Hold.APPROVAL:
        raise WrongJobState("The job is not waiting for approval.", state=job.state)
    event = job_event(EventType.JOB_APPROVED, job, actor, **({"note": note} if note else {}))
    if waits_for_others:
        return Decision(job=replace(job, hold=Hold.DEPENDENCY), events=(event,))
    return Decision(job=_unblocked(job, now), events=(event,))


def rejected(job: Job, why: str, actor: Actor, *, now: float) -> Decision:
    if job.state is not JobState.BLOCKED or job.hold is not Hold.APPROVAL:
        raise WrongJobState("The job is not waiting for approval.", state=job.state)
    ended = replace(
        job,
        state=next_state(job.state, JobInput.CANCEL),
        hold=Hold.NONE,
        finished_at=now,
        reason=REJECTED,
        error=f"rejected by {actor.name}: {why}" if why else f"rejected by {actor.name}",
    )
    return Decision(job=ended, events=(job_event(EventType.JOB_REJECTED, job, actor, why=why),))


def approval_expired(job: Job, now: float) -> Decision:
    """Ends a job that nobody has approved in time."""
    ended = replace(
        job,
        state=next_state(job.state, JobInput.CANCEL),
        hold=Hold.NONE,
        finished_at=now,
        reason=REJECTED,
        error="nobody approved it in time",
    )
    return Decision(job=ended, events=(job_event(EventType.JOB_APPROVAL_EXPIRED, job),))


def dependency_ended(job: Job, dependency: Job, others: Iterable[Job | None], *, now: float) -> Decision:
    """Releases a job after the last job it depends on has completed, or fails it after one has not.

    It is told of each end later than the end itself, and may be told twice. So of `others`, which it depends on as well,
    one may have ended badly of which it is told after this: then it is failed for that one, never released. They are
    looked at only up to the first that has not ended; None is one of which nobody can say how it ended.
    """
    if job.state is not JobState.BLOCKED:
        return NOTHING
    if not ended_badly(dependency):
        if job.hold is not Hold.DEPENDENCY:
            return NOTHING
        for other in others:
            if other is None or not other.terminal:
                return NOTHING
            if ended_badly(other):
                dependency = other
                break
    if ended_badly(dependency):
        why = f"it depends on {dependency.id}, which ended as {dependency.state}"
        ended = replace(
            job,
            state=next_state(job.state, JobInput.GIVE_UP),
            hold=Hold.NONE,
            finished_at=now,
            reason="dependency_failed",
            error=why,
        )
        return Decision(job=ended, events=(job_event(EventType.JOB_FAILED, job, why=why),))
    return Decision(job=_unblocked(job, now), events=(job_event(EventType.JOB_UNBLOCKED, job),))


def hold_over(job: Job, now: float) -> Decision:
    """Releases a job whose start time has come or whose backoff is over, unless it was postponed meanwhile."""
    if job.state is not JobState.QUEUED or job.not_before is None or job.not_before > now:
        return NOTHING
    return Decision(job=replace(job, hold=Hold.NONE, not_before=None))


def backoff_capped(job: Job, attempt: Attempt, policy: Policy, now: float) -> Decision:
    """Shortens a wait that is too long because the clock was set back while the orchestrator was down.

    `attempt` is the job's last, whose end the wait was counted from, by the clock of then.
    """
    if job.hold is not Hold.BACKOFF or job.not_before is None or attempt.ended_at is None:
        return NOTHING
    latest = now + min(max(0.0, job.not_before - attempt.ended_at), policy.retry_backoff_max_s)
    return Decision(job=held(job, now, latest)) if job.not_before > latest else NOTHING


def put_off(job: Job, why: str, policy: Policy, now: float) -> Decision:
    """Holds a job of which the offer cannot be made, since nothing else would be placed while it stands in line."""
    return Decision(job=replace(held(job, now, now + policy.retry_backoff_max_s), error=why))


def _unblocked(job: Job, now: float) -> Job:
    return held(replace(job, state=next_state(job.state, JobInput.UNBLOCK)), now)


def _how_it_ended(end: End) -> str:
    if end.exit_signal is not None:
        return f"the trainer was killed by signal {end.exit_signal}"
    if end.exit_code is not None:
        return f"the trainer exited with code {end.exit_code}"
    return "the trainer failed"


def _withdrawn(job: Job, attempt: Attempt, why: str, *, now: float) -> Decision:
    ended = ended_as(attempt, Outcome.EXPIRED_OFFER, now, error=why)
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    event = job_event(
        EventType.JOB_OFFER_EXPIRED, job, worker_id=attempt.worker_id, attempt=attempt.number, why=why
    )
    return requeued(job, ended, None, job.error, (event,))
