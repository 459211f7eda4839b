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
PATIENCE_S = 1.0
"""A walk may wait behind people's reports: whoever asks has the figure of before then, or none."""


class SeldomWalked(Generic[Figure]):
    def __init__(
        self, at_least_s: float, monotonic: Callable[[], float] = time.monotonic, share: float = SHARE
    ) -> None:
        self._at_least_s, self._monotonic, self._share = at_least_s, monotonic, share
        self._figure: Figure | None = None
        self._made_at = self._good_until = float("-inf")
        self._walk: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """Returns how old the figure is; where there is none yet, it is infinitely old."""
        return max(0.0, self._monotonic() - self._made_at)

    async def of(self, look: Callable[[], Awaitable[Figure]]) -> Figure | None:
        """Returns the figure, made anew where it is due; None where it takes too long and there is none of before."""
        if self._walk is None and (self._figure is None or self._monotonic() >= self._good_until):
            self._walk = asyncio.ensure_future(self._made(look))
            self._walk.add_done_callback(self._done)
        walk = self._walk
        if walk is not None:
            await asyncio.wait((walk,), timeout=PATIENCE_S)
            if walk.done():
                walk.result()
        return self._figure

    async def _made(self, look: Callable[[], Awaitable[Figure]]) -> None:
        began = self._monotonic()
        self._figure = await look()
        self._made_at = self._monotonic()
        self._good_until = self._made_at + max(self._at_least_s, self._share * (self._made_at - began))

    def _done(self, walk: asyncio.Task[None]) -> None:
        self._walk = None
        if not walk.cancelled():
            walk.exception()  # told to whoever waited, if anybody did


class KeptFigures(Struct):
    jobs: SeldomWalked[dict[str, int]] = field(default_factory=lambda: SeldomWalked(0.0, share=0.0))
    fleet: SeldomWalked[FleetFigures] = field(default_factory=lambda: SeldomWalked(FLEET_S))
    stored: SeldomWalked[StoredFigures] = field(default_factory=lambda: SeldomWalked(STORED_S))
