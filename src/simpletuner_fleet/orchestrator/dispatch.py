"""Placing jobs: run inside every transaction that queued a job or opened a worker, so that nothing polls."""

from simpletuner_fleet.core import lifecycle, tokens
from simpletuner_fleet.core.checkpoint import ResumePoint, beyond_reach, newest_checkpoint
from simpletuner_fleet.core.job import EndReason, Job
from simpletuner_fleet.core.placement import Placement, place_first_of_class, place_on_worker
from simpletuner_fleet.orchestrator.desk import ClassHasJob, Desk, WorkerMayTake
from simpletuner_fleet.orchestrator.orders import offer_message


def unreachable_checkpoints(desk: Desk, job: Job) -> frozenset[str]:
    """Those that workers could not fetch, or found damaged, once too often."""
    if job.attempts < desk.policy.resume_tries:
        return frozenset()
    failed = (
        attempt.resumed_manifest
        for attempt in desk.tx.attempts_of_job(job.id)
        if attempt.reason == EndReason.RESUME_FAILED and attempt.resumed_manifest
    )
    return beyond_reach(failed, desk.policy.resume_tries)


def settle(desk: Desk) -> None:
    """Follows every cause until nothing more can be placed for it."""
    while desk.causes:
        match desk.causes.popleft():
            case ClassHasJob(class_id):
                _place_class(desk, class_id)
            case WorkerMayTake(worker_id):
                _feed_worker(desk, worker_id)


def _place_class(desk: Desk, class_id: str) -> None:
    while placement := place_first_of_class(desk.index.roster, class_id, desk.job, desk.limits):
        _offer(desk, placement)


def _feed_worker(desk: Desk, worker_id: str) -> None:
    roster, placed = desk.index.roster, True
    while placed:
        placed = False
        for decision in place_on_worker(roster, worker_id, desk.job, desk.limits, desk.policy, desk.now):
            if isinstance(decision, Placement):
                _offer(desk, decision)
                placed = True
            else:
                roster.reserve(decision.worker_id, decision.job)


def _offer(desk: Desk, placement: Placement) -> None:
    job, (share,) = placement.job, placement.shares
    attempt_id = desk.ids.new("a")
    epoch = desk.tx.next_epoch()
    upload_token = desk.ids.derived_token(tokens.UPLOAD, tokens.upload_token_name(attempt_id, epoch))
    desk.apply(
        lifecycle.offer(
            job,
            share.worker,
            share.gpus,
            attempt_id=attempt_id,
            epoch=epoch,
            upload_token_hash=tokens.hashed(upload_token),
            now=desk.now,
            resume=_resume_point(desk, job),
        )
    )
    if share.worker.id in desk.index.hearing:
        desk.send_offer(share.worker.id, offer_message(desk, share.worker, job.id, attempt_id))


def _resume_point(desk: Desk, job: Job) -> ResumePoint | None:
    """The newest checkpoint that can be had; in the end the beginning."""
    newest = desk.tx.newest_checkpoint(job.id) if job.attempts else None
    if newest and (useless := unreachable_checkpoints(desk, job)):
        left = (one for one in desk.tx.manifests_of_job(job.id) if one.id not in useless)
        newest = newest_checkpoint(left)
    return ResumePoint(manifest_id=newest.id, step=newest.step or 0) if newest else None
