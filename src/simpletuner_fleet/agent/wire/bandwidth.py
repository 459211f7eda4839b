"""How fast files may be sent, one allowance for all attempts of this worker, and in what portions."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from simpletuner_fleet.protocol.uploads import PART_BYTES, TRIED_PART_BYTES

SMALLEST_PART_BYTES = 64 * 1024
FIRST_PART_BYTES = TRIED_PART_BYTES
QUICK_S, SLOW_S = 1.0, 4.0
SAVED_UP_S = 0.25


class Bandwidth:
    """Limits how fast files are sent: a token bucket that fills at the allowed rate.

    What is taken beyond its content is waited for.
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
        """Returns about a second's worth: a slow line is used evenly and an interruption costs little."""
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

    A fast line is not asked for every trifle, and on a slow one little hangs on each answer.
    """

    def __init__(self, bandwidth: Bandwidth) -> None:
        self._bandwidth = bandwidth
        self._bytes = FIRST_PART_BYTES

    @property
    def bytes(self) -> int:
        return min(self._bytes, self._bandwidth.part_bytes)

    def took(self, count: int, seconds: float) -> None:
        """Learns from a part that was answered. One that was small for want of more says nothing of a fast line."""
        if seconds > SLOW_S:
            self._bytes = max(SMALLEST_PART_BYTES, self._bytes // 2)
        elif seconds < QUICK_S and count >= self._bytes:
            self._bytes = min(PART_BYTES, self._bytes * 2)

    def broke(self) -> None:
        """The line broke: nobody knows how much of it would have come through in time."""
        self._bytes = max(SMALLEST_PART_BYTES, self._bytes // 2)
