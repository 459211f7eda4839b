"""The table of a machine's life: what may follow what, and what each step writes down."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.money.rates import MAX_RATES
from simpletuner_fleet.core.provisioning.machine import (
    MACHINE_TRANSITIONS,
    MachineEndReason,
    MachineInput,
    MachineState,
    at_price,
    moved,
)
from simpletuner_fleet.core.provisioning.money import cost
from simpletuner_fleet.core.provisioning.pool import name_for, our_beginning
from tests.core.builders import NOW
from tests.core.provisioning.provisioning_kit import a_machine

EDGES = """
wanted: ask asked, drop gone
asked: refuse gone, appear booting, join joined, destroy destroying, vanish gone
booting: join joined, destroy destroying, vanish gone
joined: drain draining, destroy destroying, vanish gone
draining: destroy destroying, vanish gone
destroying: vanish gone
gone: appear destroying
"""


def test_the_table_is_the_one_that_is_published() -> None:
    edges = {
        (MachineState(line.split(":")[0]), MachineInput(step.split()[0])): MachineState(step.split()[1])
        for line in EDGES.strip().splitlines()
        for step in line.split(":")[1].split(",")
    }
    assert edges == MACHINE_TRANSITIONS


@pytest.mark.parametrize("state", list(MachineState))
@pytest.mark.parametrize("machine_input", list(MachineInput))
def test_what_is_not_in_the_table_cannot_happen(state: MachineState, machine_input: MachineInput) -> None:
    machine = a_machine(state=state)
    if (state, machine_input) in MACHINE_TRANSITIONS:
        assert moved(machine, machine_input, NOW).state is MACHINE_TRANSITIONS[state, machine_input]
    else:
        with pytest.raises(IllegalTransition):
            moved(machine, machine_input, NOW)


def test_it_costs_from_the_moment_its_provider_is_asked_until_it_is_gone() -> None:
    wanted = a_machine(state=MachineState.WANTED, asked_at=None, rates=(), created_at=NOW - 500.0)
    assert cost(wanted, NOW) == 0
    asked = moved(wanted, MachineInput.ASK, NOW)
    assert cost(asked, NOW + 3600.0) == 2_000_000
    booting = moved(replace(asked, provider_id="p_1"), MachineInput.APPEAR, NOW + 10.0)
    gone = moved(moved(booting, MachineInput.DESTROY, NOW + 1800.0), MachineInput.VANISH, NOW + 3600.0)
    assert cost(gone, NOW + 90_000.0) == 2_000_000


def test_a_price_that_never_stops_changing_stays_in_bounds_and_costs_what_it_did() -> None:
    machine, paid = a_machine(asked_at=NOW), 0.0
    for step in range(1, 5_001):
        paid += machine.hourly_micros * 20.0 / 3600.0
        machine = at_price(machine, 1_000_000 + 7_919 * (step % 97), NOW + 20.0 * step)
    assert len(machine.rates) <= MAX_RATES
    assert cost(machine, NOW + 20.0 * 5_000) == pytest.approx(paid, rel=1e-4)


def test_a_price_that_changes_counts_from_then_on() -> None:
    machine = at_price(a_machine(asked_at=NOW), 4_000_000, NOW + 1800.0)
    assert cost(machine, NOW + 3600.0) == 3_000_000


def test_what_was_refused_or_never_appeared_has_cost_nothing() -> None:
    asked = a_machine(state=MachineState.ASKED, provider_id="")
    assert cost(moved(asked, MachineInput.REFUSE, NOW, MachineEndReason.REFUSED), NOW) == 0
    assert cost(moved(asked, MachineInput.VANISH, NOW, MachineEndReason.NEVER_MADE), NOW) == 0


def test_one_that_appears_after_it_was_thought_gone_has_cost_all_the_time() -> None:
    asked = a_machine(state=MachineState.ASKED, asked_at=NOW - 3600.0)
    gone = moved(asked, MachineInput.VANISH, NOW - 3000.0, MachineEndReason.NEVER_MADE)
    back = moved(gone, MachineInput.APPEAR, NOW, MachineEndReason.STRAY)
    assert back.state is MachineState.DESTROYING
    assert back.gone_at is None
    assert cost(back, NOW) == 2_000_000


def test_the_first_reason_stays() -> None:
    draining = moved(a_machine(), MachineInput.DRAIN, NOW, MachineEndReason.IDLE)
    gone = moved(
        moved(draining, MachineInput.DESTROY, NOW), MachineInput.VANISH, NOW, MachineEndReason.VANISHED
    )
    assert gone.why == MachineEndReason.IDLE


def test_names_keep_ids_apart_that_differ_only_in_case() -> None:
    names = {name_for("f_Ab", machine_id) for machine_id in ("m_aB0", "m_Ab0", "m_ab0", "m_AB", "m_A00")}
    assert len(names) == 5
    assert all(name.startswith(our_beginning("f_Ab")) for name in names)
    assert not any(name.startswith(our_beginning("f_aB")) for name in names)
    assert all(name == name.lower() and len(name) < 63 for name in names)
