"""Sends a file straight to the bucket: begins or continues it, signs its links, verifies its end and owns it."""

from simpletuner_fleet.core.training import checkpoint, direct
from simpletuner_fleet.core.training.direct import Staging
from simpletuner_fleet.protocol.uploads import DirectAnswer, DirectAsked
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.uploads.content import other_parts_bytes
from simpletuner_fleet.storage.uploads.direct import DirectStorage, UnderWay, insist_on
from simpletuner_fleet.storage.uploads.jobs import JobUploads


async def ask(storage: Storage, owner: JobUploads, sha256: str, asked: DirectAsked) -> DirectAnswer:
    """Returns links, fenced and within the quota from the first one on.

    Raises DirectUnavailable, and whatever uploading a part raises.
    """
    checkpoint.check_object(sha256, asked.size, storage.fleet.policy)
    if sha256 in await owner.stored([sha256]):
        return DirectAnswer(complete=True)
    direct.check_size(asked.size)
    bucket = insist_on(storage.direct)
    async with storage.locks.holding(sha256):
        one = await _begun(bucket, owner, sha256, asked.size)
        if one is None:
            one = await _begin(storage, bucket, owner, sha256, asked)
        try:
            return await bucket.answer(one, asked)
        except FileNotFoundError:
            # The bucket has let go of it: whoever asks again begins anew.
            bucket.under_way.pop(owner.turn.job_id, None)
            return DirectAnswer(part_bytes=one.staging.part_bytes)


async def finish(storage: Storage, owner: JobUploads, sha256: str, size: int) -> DirectAnswer:
    """Answers `complete` once the storage itself has verified the bytes and the job owns them."""
    checkpoint.check_object(sha256, size, storage.fleet.policy)
    async with storage.locks.holding(sha256):
        if sha256 in await owner.stored([sha256]):
            return DirectAnswer(complete=True)
        bucket = insist_on(storage.direct)
        one = await _begun(bucket, owner, sha256, size)
        try:
            whole = await bucket.put_together(one) if one else None
            if one is None or whole is None:
                return DirectAnswer(part_bytes=one.staging.part_bytes if one else 0)
            await bucket.store(whole)
        except FileNotFoundError:
            bucket.under_way.pop(owner.turn.job_id, None)
            return DirectAnswer()
        await owner.own(sha256, size)
        bucket.stored_files += 1
        bucket.stored_bytes += size
        await bucket.forget(owner.turn.job_id, sha256)
    return DirectAnswer(complete=True)


async def _begin(
    storage: Storage, bucket: DirectStorage, owner: JobUploads, sha256: str, asked: DirectAsked
) -> UnderWay:
    """Begins a file, one of a job at a time: several files that each fit might not fit together."""
    async with storage.locks.holding(f"staging of {owner.turn.job_id}"):
        elsewhere = await other_parts_bytes(storage, owner, sha256)
        await owner.check_room(asked.size + elsewhere)
        return await bucket.begin(
            Staging(
                job_id=owner.turn.job_id,
                epoch=owner.turn.epoch,
                sha256=sha256,
                size=asked.size,
                part_bytes=direct.part_bytes_for(asked.part_bytes),
            )
        )


async def _begun(bucket: DirectStorage, owner: JobUploads, sha256: str, size: int) -> UnderWay | None:
    """Returns the upload that this very attempt has begun. One that another attempt has left is dropped."""
    one = (await bucket.of_job(owner.turn.job_id)).get(sha256)
    if one is None or (one.staging.epoch == owner.turn.epoch and one.staging.size == size):
        return one
    await bucket.forget(owner.turn.job_id, sha256)
    return None
