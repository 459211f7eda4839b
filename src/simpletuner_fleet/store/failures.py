"""Defines why a store does not open, and how a database reports that something could not be done."""

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store.rows.batches import RowWrite


class StoreRefused(FleetError):
    """This database is not usable."""

    code = "store_refused"


class StoreBusy(StoreRefused):
    """Another orchestrator is using this database."""

    code = "store_busy"
    next_step = "Stop the other orchestrator, or give this one its own database (SIMPLETUNER_DATABASE_URL)."


class Duplicate(ConcurrentChange):
    """A unique index refused the row; the message names the index or its columns."""


class BatchLost(Exception):
    """The database gave up the whole transaction: no step of the batch may be acknowledged."""


class Locked(BatchLost):
    """Another program holds the lock that writing needs; it may let go in a moment."""


def rows_changed_by_others(write: RowWrite) -> str:
    """Returns the message for a database that does not hold what memory says it does: then memory is wrong."""
    return f"Some of {len(write.rows)} rows of '{write.table.name}' were changed by another program; nothing was changed."
