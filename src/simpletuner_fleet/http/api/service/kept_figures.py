"""Caches figures that take a scan of the fleet, so that it is scanned seldom, however many ask."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from msgspec import Struct, field

from simpletuner_fleet.queries.figures import FleetFigures, StoredFigures

Figure = TypeVar("Figure")
SHARE = 100.0
"""A walk is made again after a hundred times as long as it took: never more than a hundredth of the server's time."""
FLEET_S, STORED_S = 5.0, 60.0


class SeldomWalked(Generic[Figure]):
    def __init__(self, at_least_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._at_least_s, self._monotonic = at_least_s, monotonic
        self._figure: Figure | None = None
        self._made_at = self._good_until = float("-inf")
        self._walk = asyncio.Lock()

    @property
    def age_s(self) -> float:
        return max(0.0, self._monotonic() - self._made_at)

    async def of(self, look: Callable[[], Awaitable[Figure]]) -> Figure:
        async with self._walk:
            began = self._monotonic()
            if self._figure is None or began >= self._good_until:
                self._figure = await look()
                self._made_at = self._monotonic()
                self._good_until = self._made_at + max(self._at_least_s, SHARE * (self._made_at - began))
            return self._figure


class KeptFigures(Struct):
    fleet: SeldomWalked[FleetFigures] = field(default_factory=lambda: SeldomWalked(FLEET_S))
    stored: SeldomWalked[StoredFigures] = field(default_factory=lambda: SeldomWalked(STORED_S))
