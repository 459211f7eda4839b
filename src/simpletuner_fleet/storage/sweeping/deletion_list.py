"""Lists, in the storage itself, the files that the sweep is about to delete: each stays on the list for a while.

So a mistake, such as a wrong or a restored database, can be noticed and stopped for a day, and a file that is known
again meanwhile leaves the list. A lost list costs time, but no file.
"""

import msgspec

from simpletuner_fleet.ports import Blobs

KEY = "sweep/to-be-deleted.json"
READ_BYTES = 2**26


class DeletionList:
    def __init__(self, blobs: Blobs, listed: dict[str, float]) -> None:
        self._blobs = blobs
        self._before = listed
        self._after: dict[str, float] = {}

    @classmethod
    async def load(cls, blobs: Blobs) -> "DeletionList":
        content = await blobs.read(KEY, 0, READ_BYTES)
        try:
            listed = msgspec.json.decode(content, type=dict[str, float]) if content else {}
        except (msgspec.MsgspecError, UnicodeDecodeError):
            listed = {}
        return cls(blobs, listed)

    def __len__(self) -> int:
        return len(self._after)

    @property
    def added(self) -> int:
        return len(self._after.keys() - self._before.keys())

    def is_due(self, name: str, now: float, delay_s: float) -> bool:
        """Returns whether the file has been on the list long enough. One that is not on the list yet is added."""
        since = min(self._before.get(name, now), now)
        if name in self._before and now - since >= delay_s:
            return True
        self._after[name] = since
        return False

    async def save(self) -> None:
        if self._after == self._before:
            return
        await self._blobs.delete(KEY)
        if self._after:
            await self._blobs.append(KEY, 0, msgspec.json.encode(self._after))
