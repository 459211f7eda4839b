"""Deletes stored files one by one: one that cannot be deleted keeps no other from going."""

import logging
from collections.abc import Awaitable

from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable
from simpletuner_fleet.ports import Blobs

log = logging.getLogger(__name__)


async def is_deleted(blobs: Blobs, what: str, deletion: Awaitable[None]) -> bool:
    """Tells whether this deletion succeeded; why it did not is logged.

    Only what is wrong with these files is passed over: where the whole storage is away, nothing else would go either,
    and StoreUnavailable is raised. A bucket fails in the same way in both cases, but where it refuses one object, its
    mark can still be read.
    """
    try:
        await deletion
    except NotLeader:
        raise
    except (OSError, StoreUnavailable) as error:
        if isinstance(error, StoreUnavailable):
            await blobs.mark()
        log.warning("%s cannot be deleted: %s; it is tried again", what, error)
        return False
    return True
