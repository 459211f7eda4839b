"""What a provider is asked for: all that its offer said."""

from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.calls import ask_once
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder
from tests.http.api_kit import orchestrator


class NotingProvider:
    """A provider of another package, which keeps what it was asked for."""

    settle_s = 0.0
    sweep_s = 60.0

    def __init__(self) -> None:
        self.orders: list[MachineOrder] = []

    async def offers(self) -> list[MachineOffer]:
        return []

    async def create(self, order: MachineOrder) -> CreatedMachine:
        self.orders.append(order)
        return CreatedMachine(provider_id="c1")

    async def machines(self) -> list[ListedMachine]:
        return []

    async def destroy(self, provider_id: str) -> None:
        raise NotImplementedError

    async def boot_log(self, provider_id: str) -> str:
        raise NotImplementedError


async def test_a_provider_is_asked_for_the_very_offer_with_its_nodes() -> None:
    offer = MachineOffer(
        id="o_1",
        hourly_micros=4_000_000,
        gpu_name="A100",
        gpus=4,
        nodes=2,
        vram_gb=80.0,
        accelerator="cuda",
        spot=True,
        region="eu",
    )
    wanted = Machine(
        id="m_1",
        pool="p",
        name="n",
        state=MachineState.WANTED,
        created_at=1.0,
        offer_id=offer.id,
        offered_micros=offer.hourly_micros,
        gpu_name=offer.gpu_name,
        gpus=offer.gpus,
        nodes=offer.nodes,
        vram_gb=offer.vram_gb,
        accelerator=offer.accelerator,
        spot=offer.spot,
        region=offer.region,
    )
    pool = MachinePool(name="p", request=PoolRequest(provider="noting"), created_at=1.0, created_by="u")
    provider = NotingProvider()

    def want(transaction: Transaction) -> None:
        transaction.tx.put_pool(pool)
        transaction.tx.put_machine(wanted)

    async with orchestrator() as running:
        await running.fleet.act(want)
        await ask_once(running.fleet, provider, pool, "m_1", {})
    assert [order.offer for order in provider.orders] == [offer]
