"""Lists, in the storage itself, the files that the sweep is about to delete: each stays on the list for a while.

So a mistake, such as a wrong or a restored database, can be noticed and stopped for a day, and a file that is known
again meanwhile leaves the list. A lost list costs time, but no file; but where a full disk lost it, nothing would ever go.
"""

import msgspec

from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.sweeping.whole_lists import read_list, replace_list

KEY = "sweep/to-be-deleted.json"
MOST_LISTED = 250_000
"""So the list is never longer than what is read of it. Further files are listed when these are gone."""


class DeletionList:
    def __init__(self, blobs: Blobs, listed: dict[str, float]) -> None:
        self._blobs = blobs
        self._before = listed
        self._after: dict[str, float] = {}
        self._unseen = set(listed)
        self._room = MOST_LISTED - len(listed)
        self.added = 0

    @classmethod
    async def load(cls, blobs: Blobs) -> "DeletionList":
        return cls(blobs, await read_list(blobs, KEY, dict[str, float]) or {})

    def is_due(self, name: str, now: float, delay_s: float) -> bool:
        """Returns whether the file has been on the list long enough.

        One that is not on the list yet is added, if there is room. One that is due stays there until it is removed.
        """
        self._unseen.discard(name)
        since = min(self._before.get(name, now), now)
        if name in self._before and now - since >= delay_s:
            self._after[name] = since
            return True
        if name in self._before:
            self._after[name] = since
        elif self._room > 0:
            self._after[name] = since
            self._room -= 1
            self.added += 1
        return False

    def remove(self, name: str) -> None:
        """Takes a file off the list: it is deleted, or somebody has it again."""
        self._unseen.discard(name)
        self._after.pop(name, None)
        if name in self._before:
            self._room += 1

    async def save(self, *, whole: bool) -> None:
        """Writes the list; unless the `whole` storage was gone through, what was not come to stays on it."""
        left = self._after if whole else self._after | {name: self._before[name] for name in self._unseen}
        if left == self._before:
            return
        await replace_list(self._blobs, KEY, msgspec.json.encode(left) if left else b"")
