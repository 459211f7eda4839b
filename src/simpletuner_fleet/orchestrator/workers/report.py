"""Takes the workers' reports on attempts: accepted, running, ended."""

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


async def accept(fleet: Fleet, worker_id: str, job_id: str, message: Accept) -> Accepted:
    answer = await fleet.act(lambda transaction: _accept(transaction, worker_id, job_id, message))
    fleet.presence.reported(Turn(job_id, message.epoch), worker_id, fleet.clock.now())
    return answer


async def report(fleet: Fleet, worker: Worker, job_id: str, message: StatusReport) -> ReportAnswer:
    """Takes a report from the worker itself."""
    answer, epoch = await fleet.act(lambda transaction: _report(transaction, worker, job_id, message))
    fleet.presence.reported(Turn(job_id, epoch), worker.id, fleet.clock.now())
    return answer


async def report_of_attempt(
    fleet: Fleet, attempt_id: str, job_id: str, message: StatusReport
) -> ReportAnswer:
    """Takes a report from the holder of this one attempt's token: the shim, when its agent is gone."""
    answer, _ = await fleet.act(
        lambda transaction: _report_of_attempt(transaction, attempt_id, job_id, message)
    )
    return answer


def _accept(transaction: Transaction, worker_id: str, job_id: str, message: Accept) -> Accepted:
    worker = transaction.worker_in_memory(worker_id)
    if message.incarnation and worker.incarnation and message.incarnation != worker.incarnation:
        raise Superseded
    attempt = _attempt_of(transaction, worker_id, job_id, message.epoch)
    if attempt.state is AttemptState.OFFERED and message.seq:
        transaction.tx.note_message_seq(worker_id, message.seq)
    transaction.apply(
        lifecycle.accept(
            transaction.job(job_id), attempt, incarnation=message.incarnation, now=transaction.now
        )
    )
    cancelling = transaction.job(job_id).state is JobState.CANCELLING
    return Accepted(
        job_id=job_id,
        attempt=attempt.number,
        epoch=attempt.epoch,
        status="cancelling" if cancelling else "running",
    )


def _attempt_of(transaction: Transaction, worker_id: str, job_id: str, epoch: int) -> Attempt:
    return fencing.own_attempt(transaction.attempt_by_epoch(job_id, epoch), worker_id)


def _report(
    transaction: Transaction, worker: Worker, job_id: str, message: StatusReport
) -> tuple[ReportAnswer, int]:
    fresh = transaction.worker_in_memory(worker.id)
    if message.incarnation and fresh.incarnation and message.incarnation != fresh.incarnation:
        raise Superseded
    if message.status is ReportStatus.LOST:
        raise StaleAttempt("A worker does not report its own loss.")
    if message.epoch is None:
        attempt = _attempt_without_epoch(transaction, worker.id, job_id)
    else:
        attempt = _attempt_of(transaction, worker.id, job_id, message.epoch)
    if not attempt.live and fresh.legacy and message.status in FINAL_REPORTS:
        return ReportAnswer(accepted=False, job_status=transaction.job(job_id).state), attempt.epoch
    stays = message.reason == EndReason.TIME_LIMIT or is_stopped_for_cost(attempt)
    if message.status is ReportStatus.RELEASED and not stays:
        # Who gives a job back is about to leave: not the one to offer it to. If it stays, its next heartbeat says so.
        transaction.set_reachable(worker.id, False)
    return _take(transaction, transaction.job(job_id), attempt, message), attempt.epoch


def _report_of_attempt(
    transaction: Transaction, attempt_id: str, job_id: str, message: StatusReport
) -> tuple[ReportAnswer, int]:
    attempt = fencing.named_attempt(transaction.attempt(attempt_id), job_id, message.epoch)
    return _take(transaction, transaction.job(job_id), attempt, message), attempt.epoch


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
    if attempt.state is AttemptState.OFFERED and message.status is ReportStatus.RELEASED:
        transaction.set_reachable(
            attempt.worker_id, False
        )  # it wants no offer now, and would give the next one back, too
    if attempt.state is AttemptState.OFFERED and message.status is not ReportStatus.RELEASED:
        transaction.apply(lifecycle.accept(job, attempt, incarnation="", now=transaction.now))
        job, attempt = transaction.job(job.id), transaction.attempt(attempt.id)
    transaction.apply(_decide(transaction, job, attempt, message))
    _note_validation(transaction, job, attempt.id, message.validation_asked_at)
    _judge_worker(transaction, attempt, message)
    if message.status in FINAL_REPORTS:
        open_with_end(transaction, transaction.job(job.id))
    below = transaction.attempt(attempt.id).resume_below
    if below is not None:
        forget_spoiled(transaction, job.id, below)
    now_is = transaction.job(job.id)
    return ReportAnswer(accepted=True, job_status=now_is.state, stop=now_is.state is JobState.CANCELLING)


def _note_validation(transaction: Transaction, job: Job, attempt_id: str, asked_at: float | None) -> None:
    if asked_at is None:
        return
    decision = trainer_was_asked(transaction.attempt(attempt_id), asked_at, now=transaction.now)
    transaction.apply(decision)
    if decision.attempt:
        transaction.publish_job(job)


def _judge_worker(transaction: Transaction, attempt: Attempt, message: StatusReport) -> None:
    """Closes a worker for a while that cannot start what it is given, and opens one that can."""
    worker = transaction.tx.worker(attempt.worker_id)
    if worker is None:
        return
    blame = _blame(message)
    if blame is Blame.ELSEWHERE:
        return
    if blame is not None:
        why = _error(message) or ""
        trouble = after_start_failure(
            worker.start_trouble, attempt.job_id, blame, why, transaction.policy, transaction.now
        )
        transaction.save_worker(replace(worker, start_trouble=trouble))
        if trouble.set_aside:
            transaction.record(_worker_event(EventType.WORKER_SET_ASIDE, worker, why=trouble.why))
    elif worker.start_trouble is not None and message.status in STARTED_REPORTS:
        transaction.save_worker(replace(worker, start_trouble=None))
        if worker.start_trouble.pauses:
            transaction.record(_worker_event(EventType.WORKER_IN_USE_AGAIN, worker))


def _worker_event(type_: EventType, worker: Worker, **details: str) -> Event:
    return Event(type=type_, actor=ORCHESTRATOR, target_type="worker", target_id=worker.id, details=details)


def _blame(message: StatusReport) -> Blame | None:
    """Returns who is to blame for a failed start; None where something ran, or where the job itself is at fault."""
    if message.status is not ReportStatus.FAILED or message.reason != EndReason.START_FAILED:
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


def _decide(transaction: Transaction, job: Job, attempt: Attempt, message: StatusReport) -> Decision:
    now, policy = transaction.now, transaction.policy
    end = End(
        exit_code=message.exit_code,
        exit_signal=message.exit_signal,
        error=_error(message),
        last_lines=tail_of(message.last_lines, MAX_LAST_LINES_CHARS) if message.last_lines else None,
        restart=message.restart,
        resume_below=message.resume_below,
        results=_RESULTS.get(message.results, Results.NONE),
    )
    progress = None if message.progress is None else read_progress(message.progress)
    match message.status:
        case ReportStatus.COMPLETED:
            return lifecycle.completed(job, attempt, end, now=now)
        case ReportStatus.FAILED if blame := _blame(message):
            worker = transaction.tx.worker(attempt.worker_id)
            if blame is Blame.ELSEWHERE and worker is not None:
                others = transaction.index.roster.workers.values()
                return not_granted(job, attempt, end.error, worker, others, now=now)
            earlier = transaction.tx.attempts_of_job(job.id)
            return not_started(job, attempt, end.error, blame, earlier, policy, now=now)
        case ReportStatus.FAILED:
            return lifecycle.failed(job, attempt, end, policy, now=now)
        case ReportStatus.CANCELLED:
            return stopping.stopped(job, attempt, end, policy, now=now)
        case ReportStatus.RELEASED:
            reason = message.reason[:MAX_REASON_CHARS]
            return stopping.released(
                job,
                attempt,
                end.error or "",
                policy,
                now=now,
                reason=reason,
                nothing_to_go_on_from=reason == EndReason.RESUME_FAILED
                and _nothing_left(transaction, job, attempt),
            )
        case ReportStatus.LOST:
            return lifecycle.lost(job, attempt, end.error or "the worker agent died", policy, now=now)
        case ReportStatus.STARTING if progress is not None and progress.preparing:
            return lifecycle.preparing(job, attempt, progress)
        case ReportStatus.STARTING | ReportStatus.RUNNING | ReportStatus.TRAINING:
            return lifecycle.progressed(job, attempt, progress, now=now)
