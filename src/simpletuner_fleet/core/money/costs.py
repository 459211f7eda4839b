"""Computes what attempts cost: their GPUs at the price of each moment, from acceptance to end."""

from collections.abc import Iterable
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.money.prices import PriceList, hourly_price
from simpletuner_fleet.core.money.rates import present_rate, spans_of, with_rate
from simpletuner_fleet.core.workers.worker import Gpu, Worker


class JobCost(Struct, frozen=True, kw_only=True):
    micros: int
    at_least: bool = False
    """The price of some of it is not known, so it is more."""
    hourly_micros: int = 0
    """What goes on now adds to it in an hour, as far as that is known."""
    live_micros: int = 0
    """So much of it is of what goes on now."""


class AttemptCost(Struct, frozen=True):
    micros: int
    known: bool
    """Some of it has a known price."""
    unknown: bool
    """Some of it has none, so it is more."""


def is_unpriced(attempt: Attempt) -> bool:
    """Tells whether the attempt uses GPUs whose price is unknown, now or for part of the time.

    Without a GPU there is nothing to pay.
    """
    if not attempt.rates:
        return bool(attempt.gpus) and attempt.hourly_micros is None
    begun = attempt.offered_at if attempt.accepted_at is None else attempt.accepted_at
    ended = inf if attempt.ended_at is None else attempt.ended_at
    spans = spans_of(attempt.hourly_micros, attempt.rates, begun, ended)
    return bool(attempt.gpus) and any(span.hourly_micros is None for span in spans)


def attempt_cost(attempt: Attempt, now: float) -> AttemptCost:
    """Returns what the attempt has cost until now, or until its end."""
    if attempt.accepted_at is None or not attempt.gpus:
        return AttemptCost(0, False, False)
    ended = now if attempt.ended_at is None else attempt.ended_at
    spans = spans_of(attempt.hourly_micros, attempt.rates, attempt.accepted_at, ended)
    if not spans:  # nothing has passed yet: what will be paid is known by the present price
        known = present_rate(attempt.hourly_micros, attempt.rates) is not None
        return AttemptCost(0, known, not known)
    micros, known, unknown = 0, False, False
    for span in spans:
        if span.hourly_micros is None:
            unknown = True
        else:
            micros, known = micros + span.micros, True
    return AttemptCost(micros, known, unknown)


def cost_of(attempts: Iterable[Attempt], now: float) -> JobCost | None:
    """Returns what the attempts have cost until now; None where no price is known of any."""
    micros, live, hourly, known, unknown = 0, 0, 0, False, False
    for one in attempts:
        cost = attempt_cost(one, now)
        micros, known, unknown = micros + cost.micros, known or cost.known, unknown or cost.unknown
        if one.live and one.accepted_at is not None and one.gpus:
            live += cost.micros
            hourly += present_rate(one.hourly_micros, one.rates) or 0
    if not known:
        return None
    return JobCost(micros=micros, at_least=unknown, hourly_micros=hourly, live_micros=live)


def repriced(attempt: Attempt, worker: Worker, prices: PriceList, now: float) -> Attempt | None:
    """Returns a live attempt with what its GPUs cost from now on; None where that is as before.

    The last price counts on where nobody says one any more, and for GPUs that their worker does not report any more.
    """
    gpus = [gpu for gpu in worker.gpus if gpu.uuid in attempt.gpus]
    if not attempt.live or len(gpus) < len(attempt.gpus):
        return None
    hourly = hourly_price(prices, worker, gpus)
    if hourly is None:
        return None
    rates = with_rate(attempt.hourly_micros, attempt.rates, hourly, now)
    return None if rates is attempt.rates else replace(attempt, rates=rates)


def kind_of_gpus(gpus: Iterable[Gpu]) -> str:
    """Returns what reports call these GPUs, which is mostly one name."""
    return ", ".join(sorted({gpu.name for gpu in gpus if gpu.name}))
