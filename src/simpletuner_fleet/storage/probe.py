"""Checks that the storage can write, read and delete, by doing so the way checkpoints are stored."""

import hashlib
import secrets

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import Blobs

NEXT_STEP = "Check SIMPLETUNER_STORAGE_URL: the folder and its free space, or the bucket, its credentials and its endpoint."
PROBE_BYTES = 1024


class StorageUnavailable(StoreUnavailable):
    """The storage for checkpoints, artifacts and logs is unavailable."""

    code = "storage_unavailable"
    next_step = NEXT_STEP


async def prove_storage(blobs: Blobs) -> None:
    """Writes, reads and deletes a probe; raises StorageUnavailable, which says why, if that fails."""
    content = secrets.token_bytes(PROBE_BYTES)
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        key = f"probes/{sha256}"
        await blobs.put_part(key, 0, content)
        sealed = await blobs.seal(key, sha256, len(content))
        intact = sealed and await blobs.read_object(sha256, 0, len(content)) == content
        await blobs.delete_object(sha256)
    except (StoreUnavailable, OSError) as error:
        reason = error.detail if isinstance(error, StoreUnavailable) else error.strerror or str(error)
        raise StorageUnavailable(f"The storage failed a write, read and delete test: {reason}") from error
    if not intact:
        raise StorageUnavailable("The storage does not return what was written to it.")
