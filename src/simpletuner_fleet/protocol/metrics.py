"""Defines how a training's numbers are transferred, in one copy for both ends.

Points are counted per attempt, so that repeats are harmless.
"""

import math

from msgspec import Struct

from simpletuner_fleet.core.bounds import Count, Moment, Whole
from simpletuner_fleet.core.jobs.progress import Number as Number

MAX_BATCH = 500


class MetricPoint(Struct, frozen=True, kw_only=True):
    step: Count
    at: Moment
    values: dict[str, Number]


class MetricsSent(Struct, kw_only=True):
    epoch: Whole
    first: Count
    """How many points of this attempt come before these."""
    points: list[MetricPoint]


class MetricsAnswer(Struct, kw_only=True):
    next: int
    """How many are stored. Less than `first`: nothing of this was kept, send from here on."""


def to_wire(value: float) -> Number:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def from_wire(value: Number) -> float:
    return float(value)
