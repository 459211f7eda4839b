"""Provides the clock that the orchestrator uses for all its times."""

import time
from collections.abc import Callable
from functools import partial

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It goes on while the machine is suspended: else all our times would be late ever after."""


class SteadyClock:
    """Reads wall time once, and is then advanced by a clock that nobody sets.

    No step of the wall clock is seen here.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] | None = None
    ) -> None:
        self._monotonic = monotonic or partial(time.clock_gettime, CLOCK)
        self._offset = wall() - self._monotonic()

    def now(self) -> float:
        return self._offset + self._monotonic()
