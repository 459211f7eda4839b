"""Keeps for a while what is costly to compute and may be a little old."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from simpletuner_fleet.engine.fleet import Fleet

T = TypeVar("T")
MOST_ENTRIES = 500


class TimedCache(Generic[T]):
    """Keeps values by key for a while, by the fleet's clock; each fleet has its own values."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._of: WeakKeyDictionary[Fleet, dict[str, tuple[float, T]]] = WeakKeyDictionary()

    async def get(self, fleet: Fleet, key: str, make: Callable[[], Awaitable[T]]) -> T:
        entries, now = self._of.setdefault(fleet, {}), fleet.clock.now()
        entry = entries.get(key)
        if entry is not None and 0 <= now - entry[0] < self._for_s:
            return entry[1]
        value = await make()
        entries.pop(key, None)
        if len(entries) >= MOST_ENTRIES:
            del entries[next(iter(entries))]
        entries[key] = (now, value)
        return value
