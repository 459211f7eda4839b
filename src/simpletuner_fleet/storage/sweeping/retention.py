"""Deletes the large files of jobs that ended long ago. What the jobs were, how they ended and their audit entries stay.

Progress is one place in the order in which jobs ended, kept in the store: an orchestrator that was stopped half-way
goes on from there, and a job that was emptied is not looked at again. A job with a file that could not be deleted is
passed, too, but kept on a list: its files are tried again in each round.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.requests.deleting import AttemptFiles, DeletedJob
from simpletuner_fleet.engine.kept_settings import EMPTIED_UNTIL, FILES_LEFT, read_setting
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import Blobs, Ending, View
from simpletuner_fleet.storage.deletions import is_deleted
from simpletuner_fleet.storage.logs import LOGS, gap_key, log_key, times_key
from simpletuner_fleet.storage.metrics.metric_files import gpu_folder, metrics_folder
from simpletuner_fleet.storage.storage import DELETING, Storage
from simpletuner_fleet.storage.uploads.jobs import job_parts_folder

log = logging.getLogger(__name__)

MOST_LEFT = 1000
"""So many jobs whose files cannot be deleted say that no file can be: no further job is passed."""
JOBS_PER_ROUND = 1000
DAY_S = 86_400.0
RANK_LOG = re.compile(r"(?P<attempt>.+)\.r(?P<rank>[0-9]+)(\.times|\.gap)?", re.ASCII)

Ranks = Mapping[str, set[int]]
"""Which processes of each attempt have a log, beside its main process."""


async def empty_old_jobs_once(storage: Storage) -> int:
    """Empties all jobs that are old enough, and returns how many.

    The sweep deletes their objects after the grace period.
    """
    days = storage.fleet.policy.jobs_keep_days
    if days is None:
        return 0
    before = storage.fleet.clock.now() - days * DAY_S
    await _try_left_files_again(storage)
    emptied = 0
    while endings := await storage.fleet.read(lambda view: _next_endings(view, before)):
        ranks = await _stored_ranks(storage.blobs)
        done = 0
        while done < len(endings) and await _empty(storage, endings[done], ranks):
            done += 1
        emptied += done
        if done < len(endings):
            log.error(
                "files of %d jobs cannot be deleted: no further job is emptied before some go", MOST_LEFT
            )
            break
    if emptied:
        log.info("emptied %d jobs that ended more than %g days ago", emptied, days)
    return emptied


def _next_endings(view: View, before: float) -> list[Ending]:
    after = read_setting(view, EMPTIED_UNTIL, Ending, None) or Ending(at=0.0, job_id="")
    return view.endings(after, before, JOBS_PER_ROUND)


async def _empty(storage: Storage, ending: Ending, ranks: Ranks) -> bool:
    """Empties one job. It deletes the bytes first: if this is interrupted, it is done again.

    Returns False where a file of it cannot be deleted, and the list of such jobs is full.
    """
    left = await storage.fleet.read(_files_left)
    if not await _are_files_deleted(storage, ending.job_id, ranks):
        if len(left) >= MOST_LEFT:
            return False
        left = [*left, ending.job_id]
    await storage.fleet.act(lambda transaction: _drop_manifests(transaction, ending, left))
    return True


async def _try_left_files_again(storage: Storage) -> None:
    left = await storage.fleet.read(_files_left)
    if not left:
        return
    ranks = await _stored_ranks(storage.blobs)
    still_left = [job_id for job_id in left if not await _are_files_deleted(storage, job_id, ranks)]
    if still_left != left:
        await storage.fleet.act(lambda transaction: _put_files_left(transaction, still_left))


def _files_left(view: View) -> list[str]:
    return read_setting(view, FILES_LEFT, list[str], None) or []


def _put_files_left(transaction: Transaction, left: Sequence[str]) -> None:
    transaction.tx.put_setting(FILES_LEFT, msgspec.json.encode(left).decode())


async def remove_files_of_deleted_jobs(storage: Storage) -> int:
    """Removes logs and metrics of jobs whose record was deleted, and returns how many jobs there were.

    A round that is interrupted is done again: a job's files are deleted until the job is taken off the list. One with
    a file that cannot be deleted stays on it, and is passed in this round.
    """
    removed = 0
    stuck: set[str] = set()
    while len(stuck) < MOST_LEFT:
        gone = await storage.fleet.read(partial(_next_deleted_jobs, passed=stuck))
        if not gone:
            break
        ranks = await _stored_ranks(storage.blobs)
        done = [job for job in gone if await _is_every_file_deleted(storage, job.id, job.attempts, ranks)]
        stuck |= {job.id for job in gone} - {job.id for job in done}
        await storage.fleet.act(partial(_cross_off, jobs=done))
        removed += len(done)
    return removed


def _next_deleted_jobs(view: View, passed: Collection[str]) -> list[DeletedJob]:
    listed = view.deleted_jobs_with_files(len(passed) + JOBS_PER_ROUND)
    return [job for job in listed if job.id not in passed]


def _cross_off(transaction: Transaction, jobs: Sequence[DeletedJob]) -> None:
    for job in jobs:
        transaction.tx.files_are_gone(job.id)


async def _are_files_deleted(storage: Storage, job_id: str, ranks: Ranks) -> bool:
    attempts = await storage.fleet.read(lambda view: view.attempts_of_job(job_id))
    files = [AttemptFiles(one.id, max(1, len(one.gpus))) for one in attempts]
    return await _is_every_file_deleted(storage, job_id, files, ranks)


async def _is_every_file_deleted(
    storage: Storage, job_id: str, attempts: Iterable[AttemptFiles], ranks: Ranks
) -> bool:
    """Deletes the files of a job one by one; tells whether all of them are gone."""
    await storage.fleet.announce(DELETING, f"files of {job_id}")
    blobs, every = storage.blobs, True
    for key in _keys_of(job_id, attempts, ranks):
        every &= await is_deleted(blobs, f"{key} of {job_id}", blobs.delete(key))
    return every


def _keys_of(job_id: str, attempts: Iterable[AttemptFiles], ranks: Ranks) -> Iterator[str]:
    for attempt in attempts:
        yield metrics_folder(attempt.id)
        yield gpu_folder(attempt.id)
        for rank in sorted(ranks.get(attempt.id, set()) | set(range(attempt.ranks))):
            for key in (log_key, times_key, gap_key):
                yield key(attempt.id, rank)
    yield job_parts_folder(job_id)


async def _stored_ranks(blobs: Blobs) -> Ranks:
    """Looks at what is stored: a job may have logs of more processes than GPUs, and of any number."""
    ranks: defaultdict[str, set[int]] = defaultdict(set)
    for name in await blobs.names(LOGS):
        if match := RANK_LOG.fullmatch(name):
            ranks[match["attempt"]].add(int(match["rank"]))
    return ranks


def _drop_manifests(transaction: Transaction, ending: Ending, files_left: Sequence[str]) -> None:
    stored = transaction.tx.manifests_of_job(ending.job_id)
    pinned = {file.sha256 for manifest in stored if manifest.pinned_by for file in manifest.files}
    manifests = [manifest for manifest in stored if not manifest.pinned_by]
    for manifest in manifests:
        transaction.tx.delete_manifest(manifest.id)
    unused = transaction.tx.objects_of_job(ending.job_id).keys() - pinned
    transaction.tx.mark_objects(ending.job_id, unused, transaction.now)
    transaction.tx.put_setting(EMPTIED_UNTIL, msgspec.json.encode(ending).decode())
    if ending.job_id in files_left:
        _put_files_left(transaction, files_left)
    transaction.record(
        Event(
            type=EventType.JOB_EMPTIED,
            actor=ORCHESTRATOR,
            target_type="job",
            target_id=ending.job_id,
            details={"manifests": len(manifests), "keep_days": transaction.policy.jobs_keep_days},
        )
    )
