"""What machines have cost and cost now, and whether there is money for one more.

What is not known costs: a machine counts from the moment its provider is asked until the list has stopped showing it.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolCeiling

HOUR_S = 3600.0


class Spending(Struct, frozen=True, kw_only=True):
    machines: int
    hourly: float
    today: float
    this_month: float


def spending(machines: Iterable[Machine], now: float) -> Spending:
    known = list(machines)
    live = [machine for machine in known if machine.is_live]
    day, month = day_begins(now), month_begins(now)
    return Spending(
        machines=len(live),
        hourly=sum(machine.price for machine in live),
        today=sum(cost_between(machine, day, now) for machine in known),
        this_month=sum(cost_between(machine, month, now) for machine in known),
    )


def cost_between(machine: Machine, since: float, until: float) -> float:
    if machine.state is MachineState.WANTED or not machine.rates:
        return 0.0
    ends = [at for at, _ in machine.rates[1:]] + [machine.gone_at if machine.gone_at is not None else until]
    return sum(
        price * max(0.0, min(end, until) - max(begin, since)) / HOUR_S
        for (begin, price), end in zip(machine.rates, ends, strict=True)
    )


def cost(machine: Machine, now: float) -> float:
    return cost_between(machine, 0.0, now)


def ceiling_reached(pool: MachinePool, spent: Spending, price: float, lead_s: float) -> PoolCeiling | None:
    """Returns the ceiling that one more machine at this price would pass.

    `lead_s` is how long it takes until machines that are to stop cost nothing any more: that money is set aside.
    """
    request = pool.request
    if spent.machines >= request.max_machines:
        return PoolCeiling.COUNT
    if request.max_price is not None and price > request.max_price:
        return PoolCeiling.PRICE
    hourly = spent.hourly + price
    if request.max_hourly is not None and hourly > request.max_hourly:
        return PoolCeiling.HOURLY
    return _over(pool, spent, hourly, lead_s)


def budget_is_used_up(pool: MachinePool, spent: Spending, lead_s: float) -> bool:
    """Whether machines must stop now so that no ceiling of money is passed."""
    return spent.hourly > 0 and _over(pool, spent, spent.hourly, lead_s) is not None


def _over(pool: MachinePool, spent: Spending, hourly: float, lead_s: float) -> PoolCeiling | None:
    ahead = hourly * lead_s / HOUR_S
    if pool.request.max_daily is not None and spent.today + ahead > pool.request.max_daily:
        return PoolCeiling.DAILY
    if pool.request.max_monthly is not None and spent.this_month + ahead > pool.request.max_monthly:
        return PoolCeiling.MONTHLY
    return None


def day_begins(now: float) -> float:
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def month_begins(now: float) -> float:
    begin = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begin.timestamp()


def forecast_of_month(machines: Sequence[Machine], now: float) -> float:
    """Returns what the month will have cost if nothing changes."""
    begin = datetime.fromtimestamp(month_begins(now), UTC)
    following = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    spent = spending(machines, now)
    return spent.this_month + spent.hourly * (following.timestamp() - now) / HOUR_S
