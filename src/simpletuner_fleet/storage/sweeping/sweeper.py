"""Goes through the storage from time to time, and deletes what no job and no dataset has any more."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from enum import Enum, auto

from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable, UnreadableRow
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.storage.datasets import let_go_of_unused
from simpletuner_fleet.storage.deletions import is_deleted
from simpletuner_fleet.storage.ownership import is_still_ours
from simpletuner_fleet.storage.storage import DELETING, ROWS_PER_ROUND, Storage
from simpletuner_fleet.storage.sweeping.deletion_list import DeletionList
from simpletuner_fleet.storage.sweeping.retention import empty_old_jobs_once, remove_files_of_deleted_jobs
from simpletuner_fleet.storage.sweeping.staging import drop_abandoned_staging
from simpletuner_fleet.storage.uploads.datasets import drop_abandoned_dataset_parts
from simpletuner_fleet.storage.uploads.jobs import JOB_PARTS, job_parts_folder

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 300.0, 3600.0
"""The first round comes soon: a server that is often started anew would otherwise never come to it."""


class Deletion(Enum):
    """Says what became of a stored file that was due to be deleted."""

    DONE = auto()
    HAS_OWNER = auto()
    FAILED = auto()


async def sweep_storage_once(storage: Storage) -> int:
    """Deletes all that is old enough and unused, and returns how many objects were deleted."""
    if not await is_still_ours(storage):
        log.error("nothing is swept: the storage carries another fleet's id than the database does")
        return 0
    before = storage.fleet.clock.now() - storage.fleet.policy.object_grace_s
    await _tried("emptying old jobs", empty_old_jobs_once(storage))
    await _tried("removing files of deleted jobs", remove_files_of_deleted_jobs(storage))
    await _tried("letting go of unused data", let_go_of_unused(storage, before))
    await _tried("dropping abandoned parts of data", drop_abandoned_dataset_parts(storage, before))
    await _tried("disowning unused files", _disown_unused(storage.fleet, before))
    await _tried("checking what was counted of stored files", _count_rightly(storage.fleet))
    await _tried("dropping abandoned parts of jobs", _drop_abandoned_job_parts(storage, before))
    if storage.direct:
        staging = drop_abandoned_staging(storage, storage.direct, before)
        await _tried("dropping abandoned uploads to the bucket", staging)
    return await _delete_unowned_objects(storage)


async def _tried(what: str, step: Awaitable[object]) -> None:
    """Takes a step of the sweep: something that cannot be deleted keeps no later step from being taken."""
    try:
        await step
    except NotLeader:
        raise
    except (OSError, StoreUnavailable):
        log.exception("%s failed; it is tried again", what)


class StorageSweeper:
    """Calls `sweep_storage_once` for as long as the server runs."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _sweep_for_ever(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(min(pause_s, self._storage.fleet.policy.object_grace_s))
            pause_s = LONGEST_PAUSE_S
            try:
                await sweep_storage_once(self._storage)
            except Exception:
                log.exception("the sweep of stored files failed; it is tried again")


async def _disown_unused(fleet: Fleet, before: float) -> None:
    def step(transaction: Transaction) -> int:
        rows = transaction.tx.unused_objects(before, ROWS_PER_ROUND)
        transaction.tx.disown_objects(rows)
        return len(rows)

    while await fleet.act(step) == ROWS_PER_ROUND:
        pass


async def _count_rightly(fleet: Fleet) -> None:
    """Counts all stored files anew if what was counted as they came and went differs from their rows.

    Nothing here lets it differ, but the rows may have been edited by hand, or saved from a damaged database.
    """
    if await fleet.scan(lambda view: view.stored_is_miscounted()):
        log.error("what was counted of stored files differs from their rows; it is counted anew")
        await fleet.act(lambda transaction: transaction.tx.recount_stored())


async def _drop_abandoned_job_parts(storage: Storage, before: float) -> None:
    """Drops unfinished parts, but only of jobs that have ended: a job that may still run may still go on sending."""
    for job_id in await storage.blobs.names(JOB_PARTS):
        try:
            job = await storage.fleet.read(lambda view, job_id=job_id: view.job(job_id))  # type: ignore[misc]
        except UnreadableRow:
            continue  # nobody can say whether it may still run
        if job is None or (job.terminal and (job.finished_at or 0.0) < before):
            await storage.fleet.announce(DELETING, f"parts of {job_id}")
            deletion = storage.blobs.delete(job_parts_folder(job_id))
            await is_deleted(storage.blobs, f"a part of {job_id}", deletion)


async def _delete_unowned_objects(storage: Storage) -> int:
    """Deletes objects without an owner, in two steps: they are listed first, and deleted in a later round."""
    now, delay_s = storage.fleet.clock.now(), storage.fleet.policy.object_delete_delay_s
    to_go = await DeletionList.load(storage.blobs)
    outcomes: Counter[Deletion] = Counter()
    whole = False
    try:
        async for sha256 in storage.blobs.objects():
            owned = await storage.fleet.read(lambda view, sha256=sha256: view.object_has_owner(sha256))  # type: ignore[misc]
            if owned:
                to_go.remove(sha256)
            elif to_go.is_due(sha256, now, delay_s):
                outcome = await _delete_if_unowned(storage, sha256)
                outcomes[outcome] += 1
                if outcome is not Deletion.FAILED:
                    to_go.remove(sha256)
        whole = True
    finally:
        await to_go.save(whole=whole)
    _log_sweep(to_go.added, delay_s, outcomes)
    return outcomes[Deletion.DONE]


def _log_sweep(added: int, delay_s: float, outcomes: Counter[Deletion]) -> None:
    if added:
        log.info(
            "%d stored files belong to no job; they go in %g s unless somebody has them again",
            added,
            delay_s,
        )
    if outcomes[Deletion.DONE]:
        log.info("swept %d stored files that no job has any more", outcomes[Deletion.DONE])
    if outcomes[Deletion.FAILED]:
        log.error(
            "%d stored files that no job has any more could not be deleted; it is tried again",
            outcomes[Deletion.FAILED],
        )


async def _delete_if_unowned(storage: Storage, sha256: str) -> Deletion:
    async with storage.locks.holding(sha256):
        await storage.fleet.announce(DELETING, f"object {sha256}")
        # Looked at again: whoever sealed it meanwhile has its row by now, also under a leader before this one.
        if await storage.fleet.read(lambda view: view.object_has_owner(sha256)):
            return Deletion.HAS_OWNER
        deletion = storage.blobs.delete_object(sha256)
        gone = await is_deleted(storage.blobs, f"the stored file {sha256}", deletion)
        return Deletion.DONE if gone else Deletion.FAILED
