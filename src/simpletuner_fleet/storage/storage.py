"""Gives the orchestrator its storage: the blobs, and the fleet whose rows say what they are."""

from msgspec import Struct

from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.keyed_locks import KeyedLocks
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.listing_cache import ListingCache
from simpletuner_fleet.storage.metrics.kept_curves import CurveCache
from simpletuner_fleet.storage.space import SpaceWatch
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from simpletuner_fleet.storage.uploads.unfinished import UnfinishedParts

DELETING = "storage.deleting"
"""The row that says what is deleted next: written in the leader's term, or nothing is deleted."""
ROWS_PER_ROUND = 500
"""How many rows one transaction changes where there may be many: everybody else waits meanwhile."""


class DatasetUsage(Struct):
    """Remembers between calls how many bytes datasets take.

    To count all stored bytes at each part would cost too much.
    """

    counted_bytes: int = 0
    counted_at: float | None = None
    coming_bytes: int = 0
    """What is whole and on its way to a row of its own."""
    owned_bytes: int = 0
    """All that has got one since the start, so that none is missed while the rows are counted."""


class Storage:
    """Holds the blobs of a fleet, with one lock for each content or log.

    The locks keep anything from being deleted while it is being stored.
    """

    def __init__(
        self, fleet: Fleet, blobs: Blobs, space: SpaceWatch | None = None, direct: DirectStorage | None = None
    ) -> None:
        self.fleet = fleet
        self.blobs = blobs
        self.space = space or SpaceWatch()
        self.direct = direct
        """None: no file goes straight to the bucket, or there is none."""
        self.dataset_usage = DatasetUsage()
        self.unfinished = UnfinishedParts(blobs, fleet.clock.now)
        self.locks = KeyedLocks()
        self.curve_cache = CurveCache()
        self.listing_cache = ListingCache()

    @property
    def direct_in_use(self) -> DirectStorage | None:
        return self.direct if self.direct and not self.direct.trouble else None
