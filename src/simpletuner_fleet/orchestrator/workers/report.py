"""Takes the workers' reports on attempts: accepted, running, ended."""

from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.cutting import tail_of
from simpletuner_fleet.core.errors import NotFound, StaleAttempt, Superseded
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs import fencing, lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, EndReason, Job, JobState, Outcome, Results
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.progress import read_progress
from simpletuner_fleet.core.jobs.reconcile import may_readopt
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.jobs.requests.validating import trainer_was_asked
from simpletuner_fleet.core.jobs.start_failure import not_granted, not_started
from simpletuner_fleet.core.jobs.submitting import going_on
from simpletuner_fleet.core.money.ceilings import is_stopped_for_cost
from simpletuner_fleet.core.workers.start_trouble import Blame, after_start_failure
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.publishing import open_with_end
from simpletuner_fleet.protocol.messages import (
    FINAL_REPORTS,
    Accept,
    Accepted,
    ReportAnswer,
    ReportStatus,
    StatusReport,
)
from simpletuner_fleet.storage.artifacts import forget_spoiled

MAX_ERROR_CHARS = 4_000
MAX_LAST_LINES_CHARS = 16_000
MAX_REASON_CHARS = 64
_RESULTS = {results.value: results for results in (Results.STORED, Results.MISSING)}
STARTED_REPORTS = frozenset({ReportStatus.RUNNING, ReportStatus.TRAINING, ReportStatus.COMPLETED})
_OUTCOMES = {
    ReportStatus.COMPLETED: Outcome.COMPLETED,
    ReportStatus.FAILED: Outcome.FAILED,
    ReportStatus.CANCELLED: Outcome.CANCELLED,
    ReportStatus.RELEASED: Outcome.RELEASED,
    ReportStatus.LOST: Outcome.LOST,
}


def accept(fleet: Fleet, worker_id: str, job_id: str, message: Accept) -> Coroutine[Any, Any, Accepted]:
    return fleet.act(lambda transaction: _accept(transaction, worker_id, job_id, message))


def report(
    fleet: Fleet, worker: Worker, job_id: str, message: StatusReport
) -> Coroutine[Any, Any, ReportAnswer]:
    """Takes a report from the worker itself."""
    return fleet.act(lambda transaction: _report(transaction, worker, job_id, message))


def report_of_attempt(
    fleet: Fleet, attempt_id: str, job_id: str, message: StatusReport
) -> Coroutine[Any, Any, ReportAnswer]:
    """Takes a report from the holder of this one attempt's token: the shim, when its agent is gone."""
    return fleet.act(lambda transaction: _report_of_attempt(transaction, attempt_id, job_id, message))


def _accept(transaction: Transaction, worker_id: str, job_id: str, message: Accept) -> Accepted:
    worker = transaction.worker_in_memory(worker_id)
    if message.incarnation and worker.incarnation and message.incarnation != worker.incarnation:
        raise Superseded
    attempt = fencing.own_attempt(transaction.attempt_by_epoch(job_id, message.epoch), worker_id)
    if attempt.state is AttemptState.OFFERED and message.seq:
        transaction.tx.note_message_seq(worker_id, message.seq)
    job = transaction.job(job_id)
    decision = lifecycle.accept(job, attempt, incarnation=message.incarnation, now=transaction.now)
    transaction.apply(decision)
    cancelling = (decision.job or job).state is JobState.CANCELLING
    transaction.effects.reported = (Turn(job_id, message.epoch), worker_id)
    return Accepted(
        job_id=job_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        status="cancelling" if cancelling else "running",
    )


def _report(transaction: Transaction, worker: Worker, job_id: str, message: StatusReport) -> ReportAnswer:
    fresh = transaction.worker_in_memory(worker.id)
    if message.incarnation and fresh.incarnation and message.incarnation != fresh.incarnation:
        raise Superseded
    if message.status is ReportStatus.LOST:
        raise StaleAttempt("A worker does not report its own loss.")
    if message.epoch is None:
        attempt = _attempt_without_epoch(transaction, worker.id, job_id)
    else:
        attempt = fencing.own_attempt(transaction.attempt_by_epoch(job_id, message.epoch), worker.id)
    transaction.effects.reported = (Turn(job_id, attempt.epoch), worker.id)
    if fresh.legacy and not attempt.live and message.status in FINAL_REPORTS:
        return ReportAnswer(accepted=False, job_status=transaction.job(job_id).state)
    if message.status is ReportStatus.RELEASED:
        stays = message.reason == EndReason.TIME_LIMIT or is_stopped_for_cost(attempt)
        if not stays:
            # Who gives a job back is about to leave: not the one to offer it to. If it stays, its next heartbeat says so.
            transaction.set_reachable(worker.id, False)
    return _take(transaction, transaction.job(job_id), attempt, message)


def _report_of_attempt(
    transaction: Transaction, attempt_id: str, job_id: str, message: StatusReport
) -> ReportAnswer:
    attempt = fencing.named_attempt(transaction.attempt(attempt_id), job_id, message.epoch)
    return _take(transaction, transaction.job(job_id), attempt, message)


def _attempt_without_epoch(transaction: Transaction, worker_id: str, job_id: str) -> Attempt:
    """Returns the attempt that an older agent means: the one it has, or the last one it had."""
    own = [attempt for attempt in transaction.tx.attempts_of_job(job_id) if attempt.worker_id == worker_id]
    if not own:
        raise NotFound(f"This worker has no attempt at job {job_id}.")
    return transaction.attempt(own[-1].id)


def gpus_free(transaction: Transaction, attempt: Attempt) -> bool:
    """Tells whether no live attempt on any worker holds a GPU of this ended one."""
    roster = transaction.index.roster
    return not any(roster.holders_of_gpu(attempt.worker_id, uuid) for uuid in attempt.gpus)


def _take(transaction: Transaction, job: Job, attempt: Attempt, message: StatusReport) -> ReportAnswer:
    if not attempt.live:
        if attempt.outcome is _OUTCOMES.get(message.status):
            if message.results == Results.STORED:
                transaction.apply(lifecycle.results_arrived(job, attempt))
            return ReportAnswer(accepted=True, job_status=job.state)
        # Who reports an end needs no GPU any more: what it has done counts, whoever has been given its GPU since.
        free = message.status in FINAL_REPORTS or gpus_free(transaction, attempt)
        # Whether it has a lease is said by its worker's next heartbeat, which alone prolongs it.
        own, process = attempt.worker_id, attempt.incarnation
        if not may_readopt(job, attempt, own, process, gpus_free=free, in_doubt=False):
            raise StaleAttempt
        transaction.apply(lifecycle.readopted(job, attempt, now=transaction.now))
        job, attempt = transaction.job(job.id), transaction.attempt(attempt.id)
    if attempt.state is AttemptState.OFFERED:
        if message.status is ReportStatus.RELEASED:
            # It wants no offer now, and would give the next one back, too.
            transaction.set_reachable(attempt.worker_id, False)
        else:
            transaction.apply(lifecycle.accept(job, attempt, incarnation="", now=transaction.now))
            job, attempt = transaction.job(job.id), transaction.attempt(attempt.id)
    decision = _decide(transaction, job, attempt, message)
    transaction.apply(decision)
    if message.validation_asked_at is not None:
        _note_validation(transaction, job, attempt.id, message.validation_asked_at)
    _judge_worker(transaction, attempt, message)
    if message.status in FINAL_REPORTS:
        open_with_end(transaction, transaction.job(job.id))
    below = (decision.attempt or attempt).resume_below
    if below is not None:
        forget_spoiled(transaction, job.id, below)
    state = (decision.job or job).state
    return ReportAnswer(accepted=True, job_status=state, stop=state is JobState.CANCELLING)


def _note_validation(transaction: Transaction, job: Job, attempt_id: str, asked_at: float) -> None:
    decision = trainer_was_asked(transaction.attempt(attempt_id), asked_at, now=transaction.now)
    transaction.apply(decision)
    if decision.attempt:
        transaction.publish_job(job)


def _judge_worker(transaction: Transaction, attempt: Attempt, message: StatusReport) -> None:
    """Closes a worker for a while that cannot start what it is given, and opens one that can."""
    worker = transaction.tx.worker(attempt.worker_id)
    if worker is None:
        return
    blame = _blame(message) if message.status is ReportStatus.FAILED else None
    if blame is not None:
        if blame is Blame.ELSEWHERE:
            return
        why = _error(message) or ""
        trouble = after_start_failure(
            worker.start_trouble, attempt.job_id, blame, why, transaction.policy, transaction.now
        )
        transaction.save_worker(replace(worker, start_trouble=trouble))
        if trouble.set_aside:
            transaction.record(
                _worker_event(EventType.WORKER_SET_ASIDE, worker, blame=blame, why=trouble.why)
            )
    elif worker.start_trouble is not None and message.status in STARTED_REPORTS:
        transaction.save_worker(replace(worker, start_trouble=None))
        if worker.start_trouble.pauses:
            transaction.record(_worker_event(EventType.WORKER_IN_USE_AGAIN, worker))


def _worker_event(type_: EventType, worker: Worker, **details: str) -> Event:
    return Event(type=type_, actor=ORCHESTRATOR, target_type="worker", target_id=worker.id, details=details)


def _blame(message: StatusReport) -> Blame | None:
    """Returns who is to blame for a failure to start; None where something ran, or where the job itself is at fault."""
    if message.reason != EndReason.START_FAILED:
        return None
    return {blame.value: blame for blame in (Blame.ELSEWHERE, Blame.WORKER, Blame.UNCLEAR)}.get(message.blame)


def _error(message: StatusReport) -> str | None:
    """Returns what went wrong, as the worker reports it; a blank text says nothing."""
    return (message.error or "").strip()[:MAX_ERROR_CHARS] or None


def _nothing_left(transaction: Transaction, job: Job, attempt: Attempt) -> bool:
    """Tells whether the checkpoint that this attempt could not fetch was the last that its job could resume from."""
    tries = [one for one in transaction.tx.attempts_of_job(job.id) if one.reason == EndReason.RESUME_FAILED]
    return going_on.is_out_of_reach(
        job, [*tries, attempt], transaction.tx.manifests_of_job(job.id), transaction.policy
    )


def _end(message: StatusReport) -> End:
    return End(
        exit_code=message.exit_code,
        exit_signal=message.exit_signal,
        error=_error(message),
        last_lines=tail_of(message.last_lines, MAX_LAST_LINES_CHARS) if message.last_lines else None,
        restart=message.restart,
        resume_below=message.resume_below,
        results=_RESULTS.get(message.results, Results.NONE),
    )


def _came_forward(job: Job, attempt: Attempt, message: StatusReport, now: float) -> Decision:
    progress = None if message.progress is None else read_progress(message.progress)
    if message.status is ReportStatus.STARTING and progress is not None and progress.preparing:
        return lifecycle.preparing(job, attempt, progress)
    return lifecycle.progressed(job, attempt, progress, now=now)


def _decide(transaction: Transaction, job: Job, attempt: Attempt, message: StatusReport) -> Decision:
    now, policy = transaction.now, transaction.policy
    match message.status:
        case ReportStatus.COMPLETED:
            return lifecycle.completed(job, attempt, _end(message), now=now)
        case ReportStatus.RUNNING | ReportStatus.TRAINING | ReportStatus.STARTING:
            return _came_forward(job, attempt, message, now)
        case ReportStatus.FAILED if blame := _blame(message):
            worker = transaction.tx.worker(attempt.worker_id)
            if blame is Blame.ELSEWHERE and worker is not None:
                others = transaction.index.roster.workers.values()
                return not_granted(job, attempt, _error(message), worker, others, now=now)
            earlier = transaction.tx.attempts_of_job(job.id)
            return not_started(job, attempt, _error(message), blame, earlier, policy, now=now)
        case ReportStatus.FAILED:
            return lifecycle.failed(job, attempt, _end(message), policy, now=now)
        case ReportStatus.CANCELLED:
            return stopping.stopped(job, attempt, _end(message), policy, now=now)
        case ReportStatus.RELEASED:
            reason = message.reason[:MAX_REASON_CHARS]
            return stopping.released(
                job,
                attempt,
                _error(message) or "",
                policy,
                now=now,
                reason=reason,
                nothing_to_go_on_from=reason == EndReason.RESUME_FAILED
                and _nothing_left(transaction, job, attempt),
            )
        case ReportStatus.LOST:
            return lifecycle.lost(job, attempt, _error(message) or "the worker agent died", policy, now=now)
