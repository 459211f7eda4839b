"""Deletes stored files one by one: one that cannot be deleted keeps no other from going."""

import logging
from collections.abc import Awaitable

log = logging.getLogger(__name__)


async def is_deleted(what: str, deletion: Awaitable[None]) -> bool:
    """Tells whether this deletion succeeded; why it did not is logged.

    Only what is wrong with these files is passed over: where the whole storage is away, nothing else would go either.
    """
    try:
        await deletion
    except OSError as error:
        log.warning("%s cannot be deleted: %s; it is tried again", what, error)
        return False
    return True
