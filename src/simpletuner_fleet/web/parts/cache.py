"""What is costly to make and may be a little old: made once for all who look, and kept a while."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from simpletuner_fleet.orchestrator.fleet import Fleet

T = TypeVar("T")
MOST_KEPT = 500


class Kept(Generic[T]):
    """By the fleet's clock; for each fleet apart."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._of: WeakKeyDictionary[Fleet, dict[str, tuple[float, T]]] = WeakKeyDictionary()

    async def get(self, fleet: Fleet, key: str, make: Callable[[], Awaitable[T]]) -> T:
        held, now = self._of.setdefault(fleet, {}), fleet.clock.now()
        known = held.get(key)
        if known is not None and 0 <= now - known[0] < self._for_s:
            return known[1]
        made = await make()
        held.pop(key, None)
        if len(held) >= MOST_KEPT:
            del held[next(iter(held))]
        held[key] = (now, made)
        return made
