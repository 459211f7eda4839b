"""How a training's numbers travel: points counted per attempt, so that repeats are harmless. One copy for both ends."""

import math
from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.jobs.progress import Number as Number
from simpletuner_fleet.core.training.metrics import LATEST_AT, MAX_STEP

MAX_BATCH = 500


class MetricPoint(Struct, frozen=True, kw_only=True):
    step: Annotated[int, Meta(ge=0, le=MAX_STEP)]
    at: Annotated[float, Meta(ge=0, le=LATEST_AT)]
    """Seconds since 1970."""
    values: dict[str, Number]


class MetricsSent(Struct, kw_only=True):
    epoch: int
    first: Annotated[int, Meta(ge=0)]
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
