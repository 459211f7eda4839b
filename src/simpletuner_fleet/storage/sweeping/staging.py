"""Drops uploads straight to the bucket that will never be finished.

They are found by their keys in the bucket, whichever orchestrator led when they began.
"""

import logging
from contextlib import suppress

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.training import direct
from simpletuner_fleet.core.training.direct import Staging
from simpletuner_fleet.ports import View
from simpletuner_fleet.ports.direct import StagedFile
from simpletuner_fleet.storage.deletions import is_deleted
from simpletuner_fleet.storage.storage import DELETING, Storage
from simpletuner_fleet.storage.uploads.direct import DirectStorage

log = logging.getLogger(__name__)


async def drop_abandoned_staging(storage: Storage, bucket: DirectStorage, before: float) -> int:
    """Drops uploads that nobody will continue, and returns how many.

    A bucket that failed before is tried again first.
    """
    if bucket.trouble:
        await bucket.prove()
    if bucket.trouble:
        return 0
    dropped = 0
    async for file in bucket.blobs.staged(f"{direct.STAGED}/"):
        staging = direct.staging_of(file.key)
        if staging is not None:
            with suppress(UnreadableRow):  # nobody can say whether its job may still run
                dropped += await _drop_if_abandoned(storage, bucket, staging, file, before)
    for job_id in list(bucket.under_way):
        with suppress(UnreadableRow):
            job = await storage.fleet.read(lambda view, job_id=job_id: view.job(job_id))  # type: ignore[misc]
            if job is None or job.terminal:
                # Whoever asks after it again has it looked up.
                bucket.under_way.pop(job_id, None)
    if dropped:
        log.info("ended %d uploads straight to the bucket that nobody goes on with", dropped)
    return dropped


async def _drop_if_abandoned(
    storage: Storage, bucket: DirectStorage, staging: Staging, file: StagedFile, before: float
) -> bool:
    def look(view: View) -> bool:
        stored = staging.sha256 in view.objects_of_job(staging.job_id, [staging.sha256])
        return direct.is_abandoned(staging, view.job(staging.job_id), stored=stored, before=before)

    async with storage.locks.holding(staging.sha256):
        if not await storage.fleet.read(look):
            return False
        await storage.fleet.announce(DELETING, f"staged parts of {staging.sha256}")
        bucket.under_way.pop(staging.job_id, None)
        return await is_deleted(storage.blobs, f"the staged file {file.key}", bucket.blobs.drop(file))
