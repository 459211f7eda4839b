"""How fast files may be sent: one allowance for all attempts of this worker."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from simpletuner_fleet.protocol.uploads import PART_BYTES

SMALLEST_PART_BYTES = 64 * 1024
SAVED_UP_S = 0.25


class Bandwidth:
    """A bucket that fills at the allowed rate. What is taken beyond its content is waited for."""

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
        """About a second's worth: a slow line is used evenly and an interruption costs little."""
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
