"""What attempts cost: the price of their GPUs as it was when they were offered, from their acceptance to their end."""

from collections.abc import Iterable

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.money.amounts import cost_micros
from simpletuner_fleet.core.workers.worker import Gpu


class JobCost(Struct, frozen=True, kw_only=True):
    micros: int
    at_least: bool = False
    """The price of some of it is not known, so it is more."""
    hourly_micros: int = 0
    """What goes on now adds to it in an hour, as far as that is known."""


def is_unpriced(attempt: Attempt) -> bool:
    """Tells whether it uses GPUs whose price is not known. Without a GPU there is nothing to pay."""
    return bool(attempt.gpus) and attempt.hourly_micros is None


def cost_of(attempts: Iterable[Attempt], now: float) -> JobCost | None:
    """Returns what they have cost until now; None where no price is known of any."""
    micros, hourly, known, unknown = 0, 0, False, False
    for one in attempts:
        if one.accepted_at is None or not one.gpus:
            continue
        if one.hourly_micros is None:
            unknown = True
            continue
        known = True
        micros += cost_micros(
            one.hourly_micros, one.accepted_at, now if one.ended_at is None else one.ended_at
        )
        hourly += one.hourly_micros if one.live else 0
    return JobCost(micros=micros, at_least=unknown, hourly_micros=hourly) if known else None


def kind_of_gpus(gpus: Iterable[Gpu]) -> str:
    """Says how reports call them: mostly one name."""
    return ", ".join(sorted({gpu.name for gpu in gpus if gpu.name}))
