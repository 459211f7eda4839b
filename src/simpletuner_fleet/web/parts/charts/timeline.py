"""Computes which part of the last day the timeline shows, and the steps from there: closer, wider, earlier, later."""

from msgspec import Struct

HOUR_S = 3600.0
DAY_HOURS = 24
SPANS = (24, 12, 6, 3, 1)
"""In hours."""


class TimeWindow(Struct, frozen=True, kw_only=True):
    hours: int = DAY_HOURS
    back: float = 0.0
    """How many hours before now it ends."""

    def since(self, now: float) -> float:
        return now - (self.back + self.hours) * HOUR_S

    def until(self, now: float) -> float:
        return now - self.back * HOUR_S

    @property
    def closer(self) -> "TimeWindow | None":
        """Returns the next smaller window around the same middle; None where there is none."""
        at = SPANS.index(self.hours)
        return _around(self, SPANS[at + 1]) if at + 1 < len(SPANS) else None

    @property
    def wider(self) -> "TimeWindow | None":
        at = SPANS.index(self.hours)
        return _around(self, SPANS[at - 1]) if at else None

    @property
    def earlier(self) -> "TimeWindow | None":
        moved = window_of(self.hours, self.back + self.hours / 2)
        return moved if moved != self else None

    @property
    def later(self) -> "TimeWindow | None":
        moved = window_of(self.hours, self.back - self.hours / 2)
        return moved if moved != self else None


def window_of(hours: float, back: float) -> TimeWindow:
    """Returns the nearest window that exists within the day."""
    span = min(SPANS, key=lambda one: abs(one - hours))
    return TimeWindow(hours=span, back=min(max(0.0, back), float(DAY_HOURS - span)))


def _around(window: TimeWindow, hours: int) -> TimeWindow:
    return window_of(hours, window.back + (window.hours - hours) / 2)
