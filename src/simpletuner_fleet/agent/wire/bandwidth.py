"""Limits how fast all attempts of this worker together send files, and chooses the size of the parts."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from simpletuner_fleet.protocol.uploads import PART_BYTES, TRIED_PART_BYTES

SMALLEST_PART_BYTES = 64 * 1024
FIRST_PART_BYTES = TRIED_PART_BYTES
QUICK_S, SLOW_S = 1.0, 4.0
SAVED_UP_S = 0.25


class Bandwidth:
    """Limits how fast files are sent, with a token bucket that fills at the allowed rate.

    Whoever takes more than it holds waits for the rest.
    """

    def __init__(
        self,
        mbps: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = mbps * 1e6 / 8 if mbps else None
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    @property
    def part_bytes(self) -> int:
        """Returns about a second's worth: a slow connection is used evenly and an interruption costs little."""
        if self._bytes_per_s is None:
            return PART_BYTES
        return int(min(PART_BYTES, max(SMALLEST_PART_BYTES, self._bytes_per_s)))

    async def take(self, count: int) -> None:
        if self._bytes_per_s is None:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - SAVED_UP_S) + count / self._bytes_per_s
        if self._free_at > now:
            await self._sleep(self._free_at - now)


class PartSize:
    """Chooses how large the parts of a file are, so that each takes a few seconds.

    A fast connection need not wait for an answer too often, and on a slow one little is lost with each part.
    """

    def __init__(self, bandwidth: Bandwidth) -> None:
        self._bandwidth = bandwidth
        self._bytes = FIRST_PART_BYTES

    @property
    def bytes(self) -> int:
        return min(self._bytes, self._bandwidth.part_bytes)

    def took(self, count: int, seconds: float) -> None:
        """Learns from a part that was answered. A last part that is small says nothing of a fast connection."""
        if seconds > SLOW_S:
            self._bytes = max(SMALLEST_PART_BYTES, self._bytes // 2)
        elif seconds < QUICK_S and count >= self._bytes:
            self._bytes = min(PART_BYTES, self._bytes * 2)

    def broke(self) -> None:
        """Halves the part size after a broken connection: nobody knows how much would have arrived in time."""
        self._bytes = max(SMALLEST_PART_BYTES, self._bytes // 2)
