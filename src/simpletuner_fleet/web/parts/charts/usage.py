"""Draws usage by day as bars, each with its place in the SVG, its cost and its GPU-hours."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.money.reports import DAY_S, UsageLine
from simpletuner_fleet.core.placement.usage import day_of

WIDTH, HEIGHT = 720.0, 120.0
GAP_SHARE = 0.2
HOUR_S = 3600.0


class UsageBar(Struct, frozen=True, kw_only=True):
    x: float
    y: float
    width: float
    height: float
    at: float
    """When the day began."""
    micros: int
    gpu_hours: float
    at_least: bool


class UsageChart(Struct, frozen=True, kw_only=True):
    bars: list[UsageBar]
    by_cost: bool
    """How high a bar is: by what the day cost, or, where no price is known, by its GPU-hours."""


def usage_chart(days: Sequence[UsageLine], since: float, until: float) -> UsageChart:
    """Returns the chart, with a place for every day of the period and a bar where something was used."""
    first = day_of(since)[0]
    places = max(1, round((day_of(max(since, until - 1.0))[0] - first) / DAY_S) + 1)
    by_cost = any(day.micros for day in days)
    heights = [float(day.micros) if by_cost else day.gpu_seconds for day in days]
    most, across = max(heights, default=0.0), WIDTH / places
    bars = [
        _bar(day, height / most if most else 0.0, round((float(day.key) - first) / DAY_S) * across, across)
        for day, height in zip(days, heights, strict=True)
    ]
    return UsageChart(bars=bars, by_cost=by_cost)


def _bar(day: UsageLine, share: float, left: float, across: float) -> UsageBar:
    height = max(1.0, share * HEIGHT)
    return UsageBar(
        x=round(left + across * GAP_SHARE / 2, 2),
        y=round(HEIGHT - height, 2),
        width=round(across * (1 - GAP_SHARE), 2),
        height=round(height, 2),
        at=float(day.key),
        micros=day.micros,
        gpu_hours=day.gpu_seconds / HOUR_S,
        at_least=day.unpriced_gpu_seconds > 0,
    )
