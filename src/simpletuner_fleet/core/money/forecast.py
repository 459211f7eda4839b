"""Forecasts what will have been spent by the end of a day or a month at the present rate."""

from msgspec import Struct

from simpletuner_fleet.core.money.amounts import MS_OF_HOUR, milliseconds

SURE_AFTER = 10
"""A forecast is rough before a tenth of the period is over."""


class Forecast(Struct, frozen=True, kw_only=True):
    micros: int
    """What will have been spent by the end, if as much is spent every hour as on the average since the period began."""
    rough: bool
    """Too little of the period is over to say much."""
    hourly_micros: int
    """What all that runs now costs an hour, as far as its price is known."""
    reached_at: float | None
    """When the ceiling is reached if what runs now runs on; None: not in this period. In the past, if it is."""


def forecast_of(spent: int, hourly: int, ceiling: int, begins: float, ends: float, now: float) -> Forecast:
    elapsed = max(1, milliseconds(now) - milliseconds(begins))
    whole = max(elapsed, milliseconds(ends) - milliseconds(begins))
    return Forecast(
        micros=spent * whole // elapsed,
        rough=elapsed * SURE_AFTER < whole,
        hourly_micros=hourly,
        reached_at=_reached_at(spent, hourly, ceiling, ends, now),
    )


def _reached_at(spent: int, hourly: int, ceiling: int, ends: float, now: float) -> float | None:
    left = ceiling - spent
    if left <= 0:
        return now
    if not hourly:
        return None
    at = now + left * MS_OF_HOUR / hourly / 1000
    return at if at < ends else None
