"""Counts the bytes of uploads under way: they are looked up once in a while for each owner, and followed meanwhile."""

from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.keyed_locks import KeyedLocks
from simpletuner_fleet.ports import Blobs

LOOKED_UP_FOR_S = 60.0
"""Also what nobody noted, as of a request that ended between two others of the same part, is known by then."""
PARTS_REMEMBERED = 200_000
"""Of all owners: one with more is looked at for each of their files, and nobody fills the server's memory."""


class KnownParts(Struct):
    """Holds the sizes of one owner's unfinished parts by name, and their sum."""

    sizes: dict[str, int]
    total: int
    at: float
    weight: int
    """What it counts for among all that is remembered."""


class UnfinishedParts:
    """Tells how many bytes of unfinished parts lie in a folder.

    To look at all of them for each file would cost the more, the more of them there are.
    """

    def __init__(self, blobs: Blobs, now: Callable[[], float]) -> None:
        self._blobs = blobs
        self._now = now
        self._known: dict[str, KnownParts] = {}
        self._remembered = 0
        self._looking = KeyedLocks()
        self._changed: dict[str, bool] = {}
        """Of the folders that are looked up just now, whether they have changed since that began."""

    async def bytes_beside(self, folder: str, name: str) -> int:
        """Returns the sum of all parts in the folder but the one of this name."""
        async with self._looking.holding(folder):
            known = self._known.get(folder)
            if known is None or not 0 <= self._now() - known.at < LOOKED_UP_FOR_S:
                known = await self._look_up(folder)
        return known.total - known.sizes.get(name, 0)

    def note(self, folder: str, name: str, size: int) -> None:
        """Notes how large a part is now; 0 where it is not there any more."""
        known = self._known.get(folder)
        if known is not None:
            known.total += size - known.sizes.get(name, 0)
            known.sizes[name] = size
        if folder in self._changed:
            self._changed[folder] = True

    def forget(self, folder: str) -> None:
        """Forgets what it knows: it is not certain what has become of a part."""
        self._drop(folder)
        if folder in self._changed:
            self._changed[folder] = True

    async def _look_up(self, folder: str) -> KnownParts:
        self._drop(folder)
        self._changed[folder] = False
        try:
            at, sizes = self._now(), await self._blobs.part_sizes(folder)
        finally:
            changed = self._changed.pop(folder)
        known = KnownParts(sizes, sum(sizes.values()), at, 1 + len(sizes))
        if not changed:
            self._remember(folder, known)
        return known

    def _remember(self, folder: str, known: KnownParts) -> None:
        self._known[folder] = known
        self._remembered += known.weight
        while self._remembered > PARTS_REMEMBERED:
            self._drop(next(iter(self._known)))

    def _drop(self, folder: str) -> None:
        known = self._known.pop(folder, None)
        if known is not None:
            self._remembered -= known.weight
