"""What a round over all pools reads: what it decides on, and not all that was ever refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from simpletuner_fleet.core.provisioning.deciding import ProvisioningDecision
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines import rounds
from simpletuner_fleet.orchestrator.machines.rounds import ProviderSnapshots, decide_once
from simpletuner_fleet.storage.ownership import FLEET_ID
from tests.core.provisioning.provisioning_kit import a_machine, a_pool
from tests.http.api_kit import orchestrator

DAY_S = 86_400.0
END_OF_A_MONTH = 1_795_996_800.0
"""The 30th of November 2026."""


async def test_a_round_reads_no_refusals_from_before_yesterday_and_all_that_cost_this_month(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def decide(pools: object, machines: Sequence[Machine], *others: Any) -> ProvisioningDecision:
        read.extend(machine.id for machine in machines)
        return ProvisioningDecision()

    monkeypatch.setattr(rounds, "decide", decide)
    async with orchestrator() as running:
        running.clock.at = now = END_OF_A_MONTH + 1000.0

        def gone(id_: str, days_ago: float, **fields: Any) -> Machine:
            at = now - days_ago * DAY_S
            return a_machine(id_, MachineState.GONE, asked_at=at - 10.0, gone_at=at, **fields)

        def fill(transaction: Transaction) -> None:
            transaction.tx.put_setting(FLEET_ID, "f1")
            transaction.tx.put_pool(a_pool())
            for number in range(100):
                transaction.tx.put_machine(gone(f"m_refused_{number}", 5.0, rates=(), why="refused"))
            transaction.tx.put_machine(gone("m_refused", 0.5, rates=(), why="refused"))
            transaction.tx.put_machine(gone("m_paid", 20.0))
            transaction.tx.put_machine(gone("m_paid_last_month", 40.0))
            transaction.tx.put_machine(a_machine("m_there", MachineState.BOOTING, asked_at=now))

        await running.fleet.act(fill)
        await decide_once(running.fleet, ProviderSnapshots(snapshots={}, troubles={}))
    assert read == ["m_paid", "m_refused", "m_there"]
