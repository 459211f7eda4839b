"""Bands: what is put together keeps its extremes, however it came."""

import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.training.bands import FINEST, Band, Bucket, Samples

numbers = st.floats(allow_nan=True, allow_infinity=True)


def samples(values: list[float], first: int = 0) -> Samples:
    steps = range(first, first + len(values))
    return Samples(array("Q", steps), array("d", map(float, steps)), array("d", values))


def band_of(values: list[float], pieces: int = 1) -> Band:
    band, size = Band(), -(-len(values) // pieces) or 1
    for first in range(0, len(values), size):
        band.add(samples(values[first : first + size], first))
    return band


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(st.lists(numbers, max_size=300), st.integers(1, 50), st.integers(1, 9))
def test_no_peak_no_valley_and_no_end_is_lost(values: list[float], most: int, pieces: int) -> None:
    begin, buckets = band_of(values, pieces).shown(most)
    assert begin == 0
    assert len(buckets) <= most
    finite = [value for value in values if math.isfinite(value)]
    assert min((b.min for b in buckets if b.min is not None), default=None) == min(finite, default=None)
    assert max((b.max for b in buckets if b.max is not None), default=None) == max(finite, default=None)
    assert [bucket.step for bucket in buckets] == sorted({bucket.step for bucket in buckets})
    if buckets:
        assert buckets[-1].step == len(values) - 1
        assert same(buckets[-1].last, values[-1])


@given(st.lists(numbers, max_size=60))
def test_with_room_for_all_nothing_is_put_together(values: list[float]) -> None:
    assert [bucket.step for bucket in band_of(values).shown(60)[1]] == list(range(len(values)))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 40))
def test_whoever_has_seen_a_band_needs_only_its_end(growth: list[int], most: int) -> None:
    band, known, seen, step = Band(), list[Bucket](), None, 0
    for more in growth:
        band.add(samples([math.sin(at) for at in range(step, step + more)], step))
        step += more
        begin, tail = band.shown(most, seen)
        known[begin:] = tail
        seen = band.grain
        assert known == band.shown(most)[1]


def test_a_band_never_holds_more_runs_than_it_may_and_keeps_the_one_peak() -> None:
    band = Band()
    for first in range(0, 10 * FINEST, 1000):
        values = [1.0] * 1000
        values[7] = 18_532.0 if first == 40_000 else 1.0
        band.add(samples(values, first))
    assert band.runs <= FINEST
    assert band.count >= 10 * FINEST
    (peak,) = [bucket for bucket in band.shown(900)[1] if bucket.max != 1.0]
    assert peak.max == 18_532.0
    assert peak.step >= 40_007


def test_little_is_told_to_whoever_looks_at_a_long_curve_again() -> None:
    band = Band()
    band.add(samples([1.0] * 100_000))
    seen = band.grain
    band.add(samples([2.0] * 30, 100_000))
    begin, tail = band.shown(1000, seen)
    assert begin > 700
    assert len(tail) <= 2
    assert tail[-1].max == 2.0
