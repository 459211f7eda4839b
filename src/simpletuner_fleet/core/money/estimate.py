"""Estimates what a job will cost, and how reliably: by earlier runs, or at most by its time limit."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.amounts import cost_micros
from simpletuner_fleet.core.money.prices import PriceList, gpu_price
from simpletuner_fleet.core.placement.matching import fitting_gpus, why_never
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import Worker

ENOUGH_RUNS = 3


class Sureness(StrEnum):
    """Ranks how reliable an estimate is, the best first."""

    GOOD = "good"
    """Several jobs of this config with as many GPUs have told how long it takes."""
    ROUGH = "rough"
    """Few have, or with another number of GPUs."""
    CEILING = "ceiling"
    """None has; its time limit says how much it can be at the most."""
    UNKNOWN = "unknown"
    """None has, and it has no time limit; only the price of an hour is known."""


class PastRun(Struct, frozen=True):
    """Describes a completed job of the same config: how long its attempts took in all, and how many GPUs it had."""

    seconds: float
    gpus: int


class Estimate(Struct, frozen=True, kw_only=True):
    currency: str
    sure: Sureness
    runs: int
    """How many completed jobs it is taken from."""
    low_micros: int | None
    likely_micros: int | None
    high_micros: int | None
    """None where nobody can say."""
    hourly_low_micros: int
    hourly_high_micros: int
    """What an hour costs on the cheapest and on the dearest worker that could take it."""
    unpriced_workers: int
    """How many could take it whose price is not known: the estimate does not hold there."""


class HourlyPrices(Struct, frozen=True, kw_only=True):
    low: int
    high: int
    unpriced: int


def past_run(job: Job, attempts: Iterable[Attempt]) -> PastRun | None:
    lasted = [
        one.ended_at - one.accepted_at
        for one in attempts
        if one.ended_at is not None and one.accepted_at is not None
    ]
    return PastRun(sum(lasted), job.requires.gpus) if lasted else None


def hourly_prices(
    prices: PriceList, job: Job, workers: Iterable[Worker], allowlist: TeamAllowlist | None
) -> HourlyPrices | None:
    """Returns the prices of every worker that could ever take the job; None where none of them has a price."""
    totals: list[int] = []
    unpriced = 0
    for worker in workers:
        if why_never(worker, job.requires, allowlist, prices) is not None:
            continue
        known = [gpu_price(prices, worker, gpu) for gpu in fitting_gpus(worker, job.requires, allowlist)]
        costs = sorted(price for price in known if price is not None)
        if len(costs) < len(known):
            unpriced += 1
        if len(costs) >= job.requires.gpus:
            totals += [sum(costs[: job.requires.gpus]), sum(costs[len(costs) - job.requires.gpus :])]
    if not totals:
        return None
    return HourlyPrices(low=min(totals), high=max(totals), unpriced=unpriced)


def estimate(job: Job, prices: HourlyPrices, currency: str, runs: Sequence[PastRun]) -> Estimate:
    alike = [run for run in runs if run.gpus == job.requires.gpus]
    counted = alike or list(runs)
    limit = job.time_limit_s
    low, likely, high = _spans(counted, limit)
    return Estimate(
        currency=currency,
        sure=_sureness(len(alike), bool(counted), limit),
        runs=len(counted),
        low_micros=None if low is None else cost_micros(prices.low, 0.0, low),
        likely_micros=None if likely is None else cost_micros((prices.low + prices.high) // 2, 0.0, likely),
        high_micros=None if high is None else cost_micros(prices.high, 0.0, high),
        hourly_low_micros=prices.low,
        hourly_high_micros=prices.high,
        unpriced_workers=prices.unpriced,
    )


def most_expected(known: Estimate) -> int | None:
    """Returns the cost that rules compare; None where the job may also run at an unknown price."""
    return None if known.unpriced_workers else known.high_micros


def _spans(runs: Sequence[PastRun], limit: float | None) -> tuple[float | None, float | None, float | None]:
    """Returns the shortest, the usual and the longest time that it takes, none beyond its limit."""
    if not runs:
        return None, None, limit
    spans = [run.seconds if limit is None else min(run.seconds, limit) for run in runs]
    return min(spans), median(spans), max(spans)


def _sureness(alike: int, any_runs: bool, limit: float | None) -> Sureness:
    if alike >= ENOUGH_RUNS:
        return Sureness.GOOD
    if any_runs:
        return Sureness.ROUGH
    return Sureness.UNKNOWN if limit is None else Sureness.CEILING
