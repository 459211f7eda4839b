"""Computes what machines have cost and cost now, and whether there is money for one more.

What is not known costs: a machine counts from the moment its provider is asked until the list has stopped showing it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from simpletuner_fleet.core.money.amounts import cost_micros
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState, UnreadableMachine
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolCeiling


class Spending(Struct, frozen=True, kw_only=True):
    machines: int
    hourly_micros: int
    today_micros: int
    month_micros: int


def spending(machines: Sequence[Machine], now: float) -> Spending:
    return _spending(machines, now, today=True, month=True)


def spending_towards(pool: MachinePool, machines: Sequence[Machine], now: float) -> Spending:
    """Returns the spending as far as the pool limits it: a month's bills are not added up for nothing."""
    request = pool.request
    return _spending(
        machines,
        now,
        today=request.max_daily_micros is not None,
        month=request.max_monthly_micros is not None,
    )


def _spending(machines: Sequence[Machine], now: float, *, today: bool, month: bool) -> Spending:
    live = [machine for machine in machines if machine.is_live]
    return Spending(
        machines=len(live),
        hourly_micros=sum(machine.hourly_micros for machine in live),
        today_micros=_cost_since(day_begins(now), machines, now) if today else 0,
        month_micros=_cost_since(month_begins(now), machines, now) if month else 0,
    )


def _cost_since(moment: float, machines: Sequence[Machine], now: float) -> int:
    return sum(cost_between(machine, moment, now) for machine in machines)


def cost_between(machine: Machine, since: float, until: float) -> int:
    if machine.state is MachineState.WANTED or not machine.rates:
        return 0
    if machine.gone_at is not None and machine.gone_at <= since:
        return 0
    ends = [at for at, _ in machine.rates[1:]] + [machine.gone_at if machine.gone_at is not None else until]
    return sum(
        cost_micros(price, max(begin, since), min(end, until))
        for (begin, price), end in zip(machine.rates, ends, strict=True)
    )


def cost(machine: Machine, now: float) -> int:
    return cost_between(machine, 0.0, now)


def ceiling_reached(pool: MachinePool, spent: Spending, price: int, lead_s: float) -> PoolCeiling | None:
    """Returns the ceiling that one more machine at this price would pass.

    `lead_s` is how long it takes until machines that are to stop cost nothing any more: that money is reserved.
    """
    request = pool.request
    if spent.machines >= request.max_machines:
        return PoolCeiling.COUNT
    if request.max_price_micros is not None and price > request.max_price_micros:
        return PoolCeiling.PRICE
    hourly = spent.hourly_micros + price
    if request.max_hourly_micros is not None and hourly > request.max_hourly_micros:
        return PoolCeiling.HOURLY
    return _over(pool, spent, hourly, lead_s)


def budget_is_used_up(pool: MachinePool, spent: Spending, lead_s: float) -> bool:
    """Tells whether machines must stop now so that no ceiling of money is passed."""
    return spent.hourly_micros > 0 and _over(pool, spent, spent.hourly_micros, lead_s) is not None


def _over(pool: MachinePool, spent: Spending, hourly: int, lead_s: float) -> PoolCeiling | None:
    request, ahead = pool.request, cost_micros(hourly, 0.0, lead_s)
    if request.max_daily_micros is not None and spent.today_micros + ahead > request.max_daily_micros:
        return PoolCeiling.DAILY
    if request.max_monthly_micros is not None and spent.month_micros + ahead > request.max_monthly_micros:
        return PoolCeiling.MONTHLY
    return None


def uncounted(pool: MachinePool, unreadable: Sequence[UnreadableMachine], now: float) -> bool:
    """Tells whether the pool may have a machine, or a bill that its budget counts, of which nothing can be read.

    Then nobody knows whether one more would pass a limit.
    """
    limits_bills = (pool.request.max_daily_micros, pool.request.max_monthly_micros) != (None, None)
    return any(
        one.may_be_of(pool.name)
        and (one.gone_at is None or (limits_bills and one.gone_at > month_begins(now)))
        for one in unreadable
    )


def day_begins(now: float) -> float:
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def month_begins(now: float) -> float:
    begin = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begin.timestamp()


def forecast_of_month(machines: Sequence[Machine], now: float) -> int:
    """Returns what the month will have cost if nothing changes."""
    begin = datetime.fromtimestamp(month_begins(now), UTC)
    following = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    spent = spending(machines, now)
    return spent.month_micros + cost_micros(spent.hourly_micros, now, following.timestamp())
