"""Reduces growing curves: neighbouring samples are merged as they come, and no peak and no valley is lost."""

import math
from array import array
from typing import NamedTuple

FINEST = 8192
"""The most runs a band is made of; a curve shown has fewer."""
NOTHING = math.nan


class Bucket(NamedTuple):
    """Merges neighbouring samples of a curve into one.

    `min` and `max` are of the finite values, None where there is none.
    """

    step: int
    at: float
    min: float | None
    max: float | None
    last: float


class Samples(NamedTuple):
    """Holds samples of a curve as columns of equal length, in the order of the curve."""

    steps: "array[int]"
    times: "array[float]"
    values: "array[float]"


class Grain(NamedTuple):
    """Records how many samples of a band somebody has seen, and the width of its runs then."""

    samples: int
    width: int


class Band:
    """Keeps a growing curve as a bounded number of runs of neighbouring samples.

    Each run has `width` samples, but for the last, which may still grow. The width doubles when there is no
    room left. Whoever has seen a band once needs only its end: earlier runs never change while the width
    stays.
    """

    __slots__ = ("_at", "_high", "_last", "_low", "_steps", "count", "width")

    def __init__(self) -> None:
        self.count = 0
        self.width = 1
        self._steps = array("Q")
        self._at, self._low, self._high, self._last = array("d"), array("d"), array("d"), array("d")

    @property
    def grain(self) -> Grain:
        return Grain(self.count, self.width)

    @property
    def runs(self) -> int:
        return len(self._steps)

    def add(self, samples: Samples) -> None:
        done, size = 0, len(samples.values)
        if not self.count:
            while size > self.width * FINEST // 2:
                self.width *= 2
        while done < size:
            filled = self.count % self.width
            if not filled and self.runs == FINEST:
                self._fold()
                continue
            end = min(size, done + self.width - filled)
            if not filled:
                self._begin_run()
            self._extend_run(samples, done, end)
            self.count += end - done
            done = end

    def shown(self, most: int, seen: Grain | None = None) -> tuple[int, list[Bucket]]:
        """Returns at most `most` buckets, from the first that changed since, and how many come before it."""
        together = _together(self.runs, most)
        first = 0
        if seen is not None and seen.width == self.width:
            runs_then = -(-seen.samples // seen.width)
            if _together(runs_then, most) == together:
                first = seen.samples // (self.width * together)
        starts = range(first * together, self.runs, together)
        return first, [self._bucket(start, min(start + together, self.runs)) for start in starts]

    def _begin_run(self) -> None:
        self._steps.append(0)
        self._at.append(0.0)
        self._low.append(NOTHING)
        self._high.append(NOTHING)
        self._last.append(0.0)

    def _extend_run(self, samples: Samples, begin: int, end: int) -> None:
        low, high = _extremes(samples.values[begin:end])
        self._low[-1], self._high[-1] = _least(self._low[-1], low), _most(self._high[-1], high)
        self._steps[-1] = samples.steps[end - 1]
        self._at[-1] = samples.times[end - 1]
        self._last[-1] = samples.values[end - 1]

    def _fold(self) -> None:
        """Merges each two runs into one once all runs are full."""
        self.width *= 2
        self._low = array("d", map(_least, self._low[::2], self._low[1::2]))
        self._high = array("d", map(_most, self._high[::2], self._high[1::2]))
        self._steps, self._at, self._last = self._steps[1::2], self._at[1::2], self._last[1::2]

    def _bucket(self, begin: int, end: int) -> Bucket:
        low, _ = _extremes(self._low[begin:end])
        _, high = _extremes(self._high[begin:end])
        return Bucket(
            self._steps[end - 1],
            self._at[end - 1],
            None if math.isnan(low) else low,
            None if math.isnan(high) else high,
            self._last[end - 1],
        )


def _together(runs: int, most: int) -> int:
    return max(1, -(-runs // most))


def _extremes(values: "array[float]") -> tuple[float, float]:
    """Returns the least and the greatest finite value.

    The sum shows whether all are finite, many times faster than a look at each.
    """
    if math.isfinite(sum(values)):
        return min(values), max(values)
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (NOTHING, NOTHING)


def _least(one: float, other: float) -> float:
    return other if math.isnan(one) or other < one else one


def _most(one: float, other: float) -> float:
    return other if math.isnan(one) or other > one else one
