"""What machines cost: each counts until its provider no longer shows it."""

from msgspec.structs import replace

from simpletuner_fleet.core.provisioning.machine import MachineState
from simpletuner_fleet.core.provisioning.money import day_begins, spending, spending_towards
from tests.core.builders import NOW
from tests.core.provisioning.provisioning_kit import a_machine, a_pool

HOUR_S = 3600.0
NOON = day_begins(NOW) + 12 * HOUR_S


def test_a_machine_costs_and_counts_while_it_is_being_destroyed_and_no_longer() -> None:
    ending = a_machine(
        state=MachineState.DESTROYING, asked_at=NOON - HOUR_S, destroying_at=NOON - 60.0, hourly_micros=3_600
    )
    spent = spending([ending], NOON)
    assert (spent.machines, spent.hourly_micros, spent.today_micros) == (1, 3_600, 3_600)
    gone = replace(ending, state=MachineState.GONE, gone_at=NOON)
    later = spending([gone], NOON + HOUR_S)
    assert (later.machines, later.hourly_micros, later.today_micros, later.month_micros) == (
        0,
        0,
        3_600,
        3_600,
    )


def test_only_what_a_pool_limits_is_added_up() -> None:
    machines = [a_machine(asked_at=NOON - HOUR_S, hourly_micros=3_600)]
    free = spending_towards(a_pool(), machines, NOON)
    assert (free.machines, free.hourly_micros, free.today_micros, free.month_micros) == (1, 3_600, 0, 0)
    limited = a_pool(max_daily_micros=1, max_monthly_micros=1)
    assert spending_towards(limited, machines, NOON) == spending(machines, NOON)
