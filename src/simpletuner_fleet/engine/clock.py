"""The clock the orchestrator lives by."""

import time
from collections.abc import Callable


class SteadyClock:
    """A clock that reads wall time once, and is then carried by the monotonic clock.

    No step of the wall clock is seen here.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        return self._offset + self._monotonic()
