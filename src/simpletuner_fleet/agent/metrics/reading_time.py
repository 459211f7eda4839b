"""Limits how long a training's numbers are read: a job may write more of them than anybody can read."""

import time
from collections.abc import Callable

AT_ONCE_S = 1.0
"""A thread that reads is nobody else's: what is left then is read the next time."""


class ReadingTime:
    """Measures one reader's time, in each call and in all after the trainer's end."""

    def __init__(
        self,
        after_end_s: float,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._left_s, self._stopped, self._clock = after_end_s, stopped, clock
        self._began = 0.0

    def begin(self) -> None:
        self._began = self._clock()

    def is_up(self) -> bool:
        """Tells whether the call is to return; it is asked between pieces, which are small."""
        return self._stopped() or self.spent_s() >= AT_ONCE_S

    def spent_s(self) -> float:
        """Returns how long the call has read."""
        return self._clock() - self._began

    def count_after_end(self, seconds: float) -> None:
        self._left_s -= seconds

    @property
    def is_over(self) -> bool:
        """Tells whether nothing is read after this call, though there may be more."""
        return self._left_s <= 0 or self._stopped()
