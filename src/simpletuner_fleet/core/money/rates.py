"""Tracks a price that changes while something is used, and what each span of time costs."""

from msgspec import Struct

from simpletuner_fleet.core.money.amounts import cost_micros, milliseconds

Rates = tuple[tuple[float, int], ...]
"""From when on an hour costs how much. What held before the first of them is kept beside it, and may not be known."""
MAX_RATES = 64
"""So many changes are kept one by one; before them, neighbours become one stretch of the same cost."""


class PricedSpan(Struct, frozen=True):
    """Describes one span of time at one price."""

    hourly_micros: int | None
    begun_at: float
    ended_at: float

    @property
    def micros(self) -> int:
        return cost_micros(self.hourly_micros or 0, self.begun_at, self.ended_at)


def spans_of(first: int | None, rates: Rates, begun_at: float, ended_at: float) -> list[PricedSpan]:
    """Returns the spans from then to then, at the price of each moment; `first` applied before all rates."""
    hourly, begun, spans = first, begun_at, []
    for since, following in rates:
        if since >= ended_at:
            break
        if since > begun:
            spans.append(PricedSpan(hourly, begun, since))
            begun = since
        hourly = following
    return [*spans, PricedSpan(hourly, begun, ended_at)] if ended_at > begun else spans


def present_rate(first: int | None, rates: Rates) -> int | None:
    return rates[-1][1] if rates else first


def with_rate(first: int | None, rates: Rates, hourly_micros: int, now: float) -> Rates:
    """Returns the rates with this price from now on; a clock that was set back makes no span negative."""
    if present_rate(first, rates) == hourly_micros:
        return rates
    since = max(now, rates[-1][0]) if rates else now
    changed = (*rates, (since, hourly_micros))
    return changed if len(changed) <= MAX_RATES else _merged(changed)


def _merged(rates: Rates) -> Rates:
    """Merges the two oldest spans at their average price, so that a price that keeps changing stays in bounds."""
    (begun, first), (middle, second), (ended, _), *_ = rates
    whole = milliseconds(ended) - milliseconds(begun)
    earlier = milliseconds(middle) - milliseconds(begun)
    average = (first * earlier + second * (whole - earlier) + whole // 2) // whole if whole else second
    return ((begun, average), *rates[2:])
