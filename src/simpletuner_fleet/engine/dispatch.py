"""Places jobs inside every transaction that queued a job or opened a worker, so that nothing polls."""

import logging
from sys import maxsize

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import EndReason, Job
from simpletuner_fleet.core.money.prices import hourly_price
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.placement.place import (
    Placement,
    place_first_of_class,
    place_in_order,
    place_next,
    place_on_worker,
    reserved_in_vain,
)
from simpletuner_fleet.core.training.checkpoint import ResumePoint, beyond_reach, newest_checkpoint
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.memory.causes import ClassHasJob, EveryClassMayGo, LimitsMayLetGo, WorkerMayTake
from simpletuner_fleet.engine.orders import offer_message
from simpletuner_fleet.engine.transaction import Transaction

log = logging.getLogger(__name__)


def unreachable_checkpoints(transaction: Transaction, job: Job) -> frozenset[str]:
    """Returns the checkpoints that workers could not fetch, or found damaged, once too often."""
    if job.attempts < transaction.policy.resume_tries:
        return frozenset()
    failed = (
        attempt.resumed_manifest
        for attempt in transaction.tx.attempts_of_job(job.id)
        if attempt.reason == EndReason.RESUME_FAILED and attempt.resumed_manifest
    )
    return beyond_reach(failed, transaction.policy.resume_tries)


def place_waiting_jobs(transaction: Transaction) -> None:
    """Follows every cause to place jobs until nothing more can be placed for it.

    Once as many jobs are placed as one transaction may place, the causes that are left are for those after it.
    """
    causes = transaction.causes
    if not causes:
        return
    if transaction.index.holds_placements(transaction.now):
        causes.clear()
        return
    while causes and transaction.may_place > 0:
        cause = transaction.next_cause()
        match cause:
            case ClassHasJob(class_id):
                _place_class(transaction, class_id)
            case WorkerMayTake(worker_id):
                _feed_worker(transaction, worker_id)
            case EveryClassMayGo():
                _place_in_order(transaction)
            case LimitsMayLetGo():
                _place_next_ones(transaction)
        if transaction.may_place <= 0:
            transaction.put_back(cause)
        elif not causes and transaction.index.roster.reservations.by_worker:
            _open_what_is_kept_in_vain(transaction)


def _open_what_is_kept_in_vain(transaction: Transaction) -> None:
    """Opens workers to others that were kept for jobs which by now would not start there."""
    roster = transaction.index.roster
    for worker_id in reserved_in_vain(roster, transaction.job, transaction.limits):
        roster.reservations.forget_worker(worker_id)
        transaction.causes.append(WorkerMayTake(worker_id))


def place_all_who_wait(transaction: Transaction) -> None:
    """Does as `place_waiting_jobs`, however many they are: for an answer that has to be the last word."""
    transaction.may_place = maxsize
    place_waiting_jobs(transaction)


def _place_in_order(transaction: Transaction) -> None:
    for placement in place_in_order(transaction.index.roster, transaction.job, transaction.limits):
        _offer(transaction, placement)
        if transaction.may_place <= 0:
            return


def _place_class(transaction: Transaction, class_id: str) -> None:
    roster, limits = transaction.index.roster, transaction.limits
    while transaction.may_place > 0 and (
        placement := place_first_of_class(roster, class_id, transaction.job, limits)
    ):
        _offer(transaction, placement)


def _place_next_ones(transaction: Transaction) -> None:
    roster, limits = transaction.index.roster, transaction.limits
    while transaction.may_place > 0 and (placement := place_next(roster, transaction.job, limits)):
        _offer(transaction, placement)


def _feed_worker(transaction: Transaction, worker_id: str) -> None:
    roster, limits, placed = transaction.index.roster, transaction.limits, True
    while placed and transaction.may_place > 0:
        placed = False
        for decision in place_on_worker(
            roster, worker_id, transaction.job, limits, transaction.policy, transaction.now
        ):
            if isinstance(decision, Placement):
                _offer(transaction, decision)
                placed = True
            else:
                roster.reservations.make(decision.worker_id, decision.job)


def _offer(transaction: Transaction, placement: Placement) -> None:
    transaction.may_place -= 1
    job, (share,) = placement.job, placement.shares
    worker = share.worker
    attempt_id = transaction.ids.new("a")
    epoch = transaction.tx.next_epoch()
    upload_token = transaction.ids.derived_token(tokens.UPLOAD, tokens.upload_token_name(attempt_id, epoch))
    try:
        offered = lifecycle.offer(
            job,
            worker,
            share.gpus,
            attempt_id=attempt_id,
            epoch=epoch,
            upload_token_hash=tokens.hashed(upload_token),
            now=transaction.now,
            resume=_resume_point(transaction, job),
            hourly_micros=hourly_price(transaction.organisation.prices, worker, share.gpus),
        )
        reachable = worker.id in transaction.index.reachable
        message = offer_message(transaction, worker, offered) if reachable else None
    except UnreadableRow as error:
        log.error("the job %s is not offered for now: %s", job.id, error)
        transaction.apply(lifecycle.put_off(job, str(error), transaction.policy, transaction.now))
        return
    transaction.apply(offered)
    if job.requires.secrets and not worker.legacy:
        _note_secrets(transaction, job, attempt_id, worker)
    if message is not None:
        transaction.send_offer(worker.id, message)


def _note_secrets(transaction: Transaction, job: Job, attempt_id: str, worker: Worker) -> None:
    """Records the secrets in the transaction of the offer that carries them.

    So the audit log tells of all secrets that attempts have.
    """
    for name in job.requires.secrets:
        transaction.record(
            Event(
                type=EventType.SECRET_GIVEN,
                actor=ORCHESTRATOR,
                target_type="secret",
                target_id=name,
                details={
                    "job_id": job.id,
                    "attempt_id": attempt_id,
                    "owner": job.owner,
                    "worker_id": worker.id,
                    "worker_name": worker.name,
                },
            )
        )


def _resume_point(transaction: Transaction, job: Job) -> ResumePoint | None:
    """Returns the newest checkpoint that can be fetched; None, for a start from the beginning, if there is none."""
    newest = transaction.tx.newest_checkpoint(job.id) if job.attempts or job.resume_from else None
    if newest and (useless := unreachable_checkpoints(transaction, job)):
        left = (one for one in transaction.tx.manifests_of_job(job.id) if one.id not in useless)
        newest = newest_checkpoint(left)
    return ResumePoint(manifest_id=newest.id, step=newest.step or 0) if newest else None
