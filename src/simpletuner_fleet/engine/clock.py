"""Provides the clock that the orchestrator uses for all its times."""

import time
from collections.abc import Callable


class SteadyClock:
    """Reads wall time once, and is then advanced by the monotonic clock.

    No step of the wall clock is seen here.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        return self._offset + self._monotonic()
