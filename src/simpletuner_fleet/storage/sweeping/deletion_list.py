"""What the sweep is about to delete: a list in the storage itself, on which a file stands for a while before it goes.

So a mistake, a wrong database or a restored one, has a day in which it can be seen and stopped, and what is known again
meanwhile leaves the list. A list that is lost costs time and no file.
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
        """Returns whether it has stood on the list long enough. It does from now on, if not yet."""
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
