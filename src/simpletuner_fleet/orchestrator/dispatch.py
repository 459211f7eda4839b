"""Placing jobs: run inside every transaction that queued a job or opened a worker, so that nothing polls."""

from simpletuner_fleet.core import lifecycle, tokens
from simpletuner_fleet.core.checkpoint import ResumePoint, beyond_reach, newest_checkpoint
from simpletuner_fleet.core.job import EndReason, Job
from simpletuner_fleet.core.ordering import limit_reached, may_reserve, place_of
from simpletuner_fleet.core.worker import Gpu, Worker
from simpletuner_fleet.orchestrator.desk import ClassHasJob, Desk, WorkerMayTake


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


def upload_token_text(attempt_id: str, epoch: int) -> str:
    return f"upload:{attempt_id}:{epoch}"


def _place_class(desk: Desk, class_id: str) -> None:
    while job := _head(desk, class_id):
        if _limited(desk, job):
            return
        picked = desk.index.roster.pick_worker(job)
        if picked is None:
            return
        _offer(desk, job, *picked)


def _feed_worker(desk: Desk, worker_id: str) -> None:
    roster = desk.index.roster
    passed_over: set[str] = set()
    while roster.is_open(worker_id):
        job = _next_for(desk, worker_id, passed_over)
        if job is None:
            return
        picked = roster.try_worker(job, worker_id)
        if picked and not _limited(desk, job):
            _offer(desk, job, *picked)
            continue
        if picked is None and may_reserve(job, desk.policy, desk.now):
            roster.reserve(worker_id, job)
        passed_over.add(job.class_id)


def _next_for(desk: Desk, worker_id: str, passed_over: set[str]) -> Job | None:
    """The first job in the queue among the classes this worker fits."""
    roster = desk.index.roster
    classes = [id for id in roster.classes_for(worker_id) if id not in passed_over]
    for class_id in classes:
        if roster.head(class_id) is None:
            _head(desk, class_id)
    best = roster.first_class(classes)
    return _head(desk, best) if best else None


def _head(desk: Desk, class_id: str) -> Job | None:
    roster = desk.index.roster
    if not roster.count(class_id):
        return None
    job = desk.head_of_class(class_id)
    roster.set_head(class_id, place_of(job) if job else None)
    return job


def _limited(desk: Desk, job: Job) -> bool:
    roster = desk.index.roster
    mine = roster.running_by_owner.get(job.owner, 0)
    return limit_reached(desk.index.limits, roster.running, mine) is not None


def _offer(desk: Desk, job: Job, worker: Worker, gpus: tuple[Gpu, ...]) -> None:
    attempt_id = desk.ids.new("a")
    epoch = desk.tx.next_epoch()
    upload_token = desk.ids.derived_token(tokens.UPLOAD, upload_token_text(attempt_id, epoch))
    desk.apply(
        lifecycle.offer(
            job,
            worker,
            gpus,
            attempt_id=attempt_id,
            epoch=epoch,
            upload_token_hash=tokens.hashed(upload_token),
            now=desk.now,
            resume=_resume_point(desk, job),
        )
    )


def _resume_point(desk: Desk, job: Job) -> ResumePoint | None:
    """The newest checkpoint that can be had; in the end the beginning."""
    newest = desk.tx.newest_checkpoint(job.id) if job.attempts else None
    if newest and (useless := unreachable_checkpoints(desk, job)):
        left = (one for one in desk.tx.manifests_of_job(job.id) if one.id not in useless)
        newest = newest_checkpoint(left)
    return ResumePoint(manifest_id=newest.id, step=newest.step or 0) if newest else None
