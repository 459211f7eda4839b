"""What workers saw of the audit log is remembered for as long as it can be, in bounded memory."""

from simpletuner_fleet.orchestrator.workers.attendance import witness
from simpletuner_fleet.protocol.messages import AuditHead
from tests.http.api_kit import orchestrator


def a_head(seq: int) -> AuditHead:
    return AuditHead(seq=seq, hash=f"{seq:064x}")


async def test_of_workers_that_are_gone_only_the_last_are_remembered_and_all_that_are_there() -> None:
    async with orchestrator() as running:
        agent, fleet = await running.worker("gpu-1"), running.fleet
        fleet.witnesses.clear()
        witness(fleet, agent.id, a_head(1))
        for number in range(5_000):
            witness(fleet, f"w_{number}", a_head(number + 2))
        witness(fleet, agent.id, a_head(6_000))
        assert fleet.witnesses[agent.id].seq == 6_000
        assert fleet.witnesses[f"{agent.id}, at first"].seq == 1
        assert fleet.witnesses["w_4999"].seq == fleet.witnesses["w_4999, at first"].seq == 5_001
        assert all(f"w_{number}" in fleet.witnesses for number in range(4_000, 5_000))
        assert len(fleet.witnesses) <= 4_004


async def test_nobody_is_forgotten_while_the_rows_are_loaded_again() -> None:
    async with orchestrator() as running:
        agent, fleet = await running.worker("gpu-1"), running.fleet
        fleet.witnesses.clear()
        witness(fleet, agent.id, a_head(1))
        fleet._index.rows_reset()
        for number in range(5_000):
            witness(fleet, f"w_{number}", a_head(number + 2))
        assert fleet.witnesses[agent.id].seq == 1
        fleet.store.observe(fleet._index)
        await fleet.act(lambda _: None)
        witness(fleet, "w_5000", a_head(6_000))
        assert len(fleet.witnesses) <= 4_004
        assert fleet.witnesses[agent.id].seq == 1
