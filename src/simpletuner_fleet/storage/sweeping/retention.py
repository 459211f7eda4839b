"""Deletes the large files of jobs that ended long ago. What the jobs were, how they ended and their audit entries stay.

Progress is one place in the order in which jobs ended, kept in the store: an orchestrator that was stopped half-way
goes on from there, and a job that was emptied is not looked at again.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.requests.deleting import AttemptFiles, DeletedJob
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import Blobs, Ending, View
from simpletuner_fleet.storage.logs import gap_key, log_key, times_key
from simpletuner_fleet.storage.metrics.metric_files import gpu_folder, metrics_folder
from simpletuner_fleet.storage.storage import DELETING, Storage
from simpletuner_fleet.storage.uploads.jobs import job_parts_folder

log = logging.getLogger(__name__)

EMPTIED_UNTIL = "retention.emptied_until"
JOBS_PER_ROUND = 1000
DAY_S = 86_400.0


async def empty_old_jobs_once(storage: Storage) -> int:
    """Empties all jobs that are old enough, and returns how many.

    The sweep deletes their objects after the grace period.
    """
    days = storage.fleet.policy.jobs_keep_days
    if days is None:
        return 0
    before = storage.fleet.clock.now() - days * DAY_S
    emptied = 0
    while endings := await storage.fleet.read(lambda view: _next_endings(view, before)):
        for ending in endings:
            await _empty(storage, ending)
        emptied += len(endings)
    if emptied:
        log.info("emptied %d jobs that ended more than %g days ago", emptied, days)
    return emptied


def _next_endings(view: View, before: float) -> list[Ending]:
    setting = view.setting(EMPTIED_UNTIL)
    after = msgspec.json.decode(setting, type=Ending) if setting else Ending(at=0.0, job_id="")
    return view.endings(after, before, JOBS_PER_ROUND)


async def _empty(storage: Storage, ending: Ending) -> None:
    """Empties one job. It deletes the bytes first: if this is interrupted, it is done again."""
    await storage.fleet.announce(DELETING, f"files of {ending.job_id}")
    attempts = await storage.fleet.read(lambda view: view.attempts_of_job(ending.job_id))
    files = [AttemptFiles(one.id, max(1, len(one.gpus))) for one in attempts]
    await _delete_files(storage, ending.job_id, files)
    await storage.fleet.act(lambda transaction: _drop_manifests(transaction, ending))


async def remove_files_of_deleted_jobs(storage: Storage) -> int:
    """Removes logs and metrics of jobs whose record was deleted, and returns how many jobs there were.

    A round that is interrupted is done again: a job's files are deleted until the job is taken off the list.
    """
    removed = 0
    while gone := await storage.fleet.read(lambda view: view.deleted_jobs_with_files(JOBS_PER_ROUND)):
        for job in gone:
            await storage.fleet.announce(DELETING, f"files of {job.id}")
            await _delete_files(storage, job.id, job.attempts)
        await storage.fleet.act(partial(_cross_off, jobs=gone))
        removed += len(gone)
    return removed


def _cross_off(transaction: Transaction, jobs: Sequence[DeletedJob]) -> None:
    for job in jobs:
        transaction.tx.files_are_gone(job.id)


async def _delete_files(storage: Storage, job_id: str, attempts: Iterable[AttemptFiles]) -> None:
    for attempt in attempts:
        await storage.blobs.delete(metrics_folder(attempt.id))
        await storage.blobs.delete(gpu_folder(attempt.id))
        await _delete_logs(storage.blobs, attempt)
    await storage.blobs.delete(job_parts_folder(job_id))


async def _delete_logs(blobs: Blobs, attempt: AttemptFiles) -> None:
    rank = 0
    while rank < attempt.ranks or await blobs.size(log_key(attempt.id, rank)):
        for key in (log_key, times_key, gap_key):
            await blobs.delete(key(attempt.id, rank))
        rank += 1


def _drop_manifests(transaction: Transaction, ending: Ending) -> None:
    stored = transaction.tx.manifests_of_job(ending.job_id)
    pinned = {file.sha256 for manifest in stored if manifest.pinned_by for file in manifest.files}
    manifests = [manifest for manifest in stored if not manifest.pinned_by]
    for manifest in manifests:
        transaction.tx.delete_manifest(manifest.id)
    unused = transaction.tx.objects_of_job(ending.job_id).keys() - pinned
    transaction.tx.mark_objects(ending.job_id, unused, transaction.now)
    transaction.tx.put_setting(EMPTIED_UNTIL, msgspec.json.encode(ending).decode())
    transaction.record(
        Event(
            type=EventType.JOB_EMPTIED,
            actor=ORCHESTRATOR,
            target_type="job",
            target_id=ending.job_id,
            details={"manifests": len(manifests), "keep_days": transaction.policy.jobs_keep_days},
        )
    )
