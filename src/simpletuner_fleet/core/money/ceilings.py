"""Limits what a job may cost: what is left, what that pays for, and when its training must end.

A ceiling applies to all attempts of a job together, and to those of the job that it tries again. With `stop`, a
training is asked for a checkpoint and ended before the ceiling is passed; with `finish`, the training may end by
itself. Either way no attempt begins for which too little is left.
"""

from math import inf

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Job
from simpletuner_fleet.core.money.amounts import MS_OF_HOUR, cost_micros, typed_amount
from simpletuner_fleet.core.money.costs import attempt_cost
from simpletuner_fleet.core.money.rates import spans_of
from simpletuner_fleet.core.policy import Policy

LEAST_RUN_S = 120.0
"""An attempt begins only where what is left pays for so long: less would be spent on bringing and ending it."""
SWEEPS_UNTIL_TOLD = 2.0
"""So many health checks may pass before a stop that is due has been noticed and told."""
LONGEST_MARGIN = 0.5
"""A training keeps at least the other half of the time that its ceiling pays for."""
SHORTEST_SAVE_S = 1.0
"""No checkpoint is waited for where less time is left."""


class StopTimes(Struct, frozen=True):
    """Holds how long a training that is stopped for its cost may take to save a checkpoint and to end."""

    grace_s: float
    save_s: float | None


def room_of(max_cost_micros: int | None, spent_micros: int) -> int | None:
    """Returns what may still be spent; None where there is no ceiling."""
    return None if max_cost_micros is None else max(0, max_cost_micros - spent_micros)


def pays_for(room_micros: int, hourly_micros: int) -> bool:
    """Tells whether what is left is enough for an attempt at this price, which is always so where it is free."""
    return cost_micros(hourly_micros, 0.0, LEAST_RUN_S) <= room_micros


def paid(job: Job, ended: Attempt) -> Job:
    """Returns the job with the cost of an ended attempt added to what it has spent."""
    cost = attempt_cost(ended, ended.ended_at or 0.0).micros
    return replace(job, spent_micros=job.spent_micros + cost) if cost else job


def unpaid(job: Job, ended: Attempt) -> Job:
    """Returns the job without the cost of an attempt that was thought to have ended and continues."""
    cost = attempt_cost(ended, ended.ended_at or 0.0).micros
    return replace(job, spent_micros=max(0, job.spent_micros - cost)) if cost else job


def reached_at(job: Job, attempt: Attempt) -> float | None:
    """Returns when the job will have cost all that it may, at the present price; None where it never will."""
    if job.max_cost_micros is None or attempt.accepted_at is None or not attempt.gpus:
        return None
    left = (job.max_cost_micros - job.spent_micros) * MS_OF_HOUR / 1000
    for span in spans_of(attempt.hourly_micros, attempt.rates, attempt.accepted_at, inf):
        price = span.hourly_micros or 0
        if price and span.begun_at + left / price <= span.ended_at:
            return span.begun_at + max(0.0, left / price)
        left -= price * (span.ended_at - span.begun_at) if price else 0.0
    return None


def must_stop_at(reached: float, begun_at: float, policy: Policy) -> float:
    """Returns when a training has to be told to end, so that it has ended when its ceiling is reached."""
    whole = policy.checkpoint_wait_s + policy.cancel_grace_s + SWEEPS_UNTIL_TOLD * policy.sweep_interval_s
    return reached - min(whole, LONGEST_MARGIN * max(0.0, reached - begun_at))


def stop_times(reached: float, policy: Policy, now: float) -> StopTimes:
    """Returns the grace that a trainer gets in any case, and what is left beside it for a checkpoint."""
    left = min(policy.checkpoint_wait_s, reached - now - policy.cancel_grace_s)
    return StopTimes(policy.cancel_grace_s, left if left >= SHORTEST_SAVE_S else None)


def is_stopped_for_cost(attempt: Attempt) -> bool:
    return attempt.stopping is not None and attempt.stopping.reason is EndReason.COST_LIMIT


def limit_sentence(job: Job) -> str:
    allowed, spent = typed_amount(job.max_cost_micros or 0), typed_amount(job.spent_micros)
    return f"the cost limit of {allowed} would have been passed; {spent} was spent"
