"""What a provider is asked for: all that its offer said."""

import asyncio

from msgspec.structs import replace

from simpletuner_fleet.core.provisioning.machine import Machine, MachineEndReason, MachineState
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.calls import ask_once, destroy_once
from simpletuner_fleet.orchestrator.machines.time_limits import TimeLimitedProvider
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


class HangingProvider(NotingProvider):
    """Answers nothing that takes it a while."""

    def __init__(self) -> None:
        super().__init__()
        self.destroyed: list[str] = []

    async def create(self, order: MachineOrder) -> CreatedMachine:
        await asyncio.Event().wait()
        return CreatedMachine(provider_id="c1")

    async def destroy(self, provider_id: str) -> None:
        self.destroyed.append(provider_id)
        await asyncio.Event().wait()

    async def boot_log(self, provider_id: str) -> str:
        await asyncio.Event().wait()
        return ""


async def test_a_provider_that_never_answers_keeps_nobody_from_ending_a_machine() -> None:
    wanted = Machine(id="m_1", pool="p", name="n", state=MachineState.WANTED, created_at=1.0)
    never_joined = replace(
        wanted,
        id="m_2",
        state=MachineState.DESTROYING,
        provider_id="c2",
        why=MachineEndReason.BOOT_DEADLINE,
    )
    pool = MachinePool(name="p", request=PoolRequest(provider="hanging"), created_at=1.0, created_by="u")
    provider = HangingProvider()

    def put(transaction: Transaction) -> None:
        transaction.tx.put_pool(pool)
        for one in (wanted, never_joined):
            transaction.tx.put_machine(one)

    async with orchestrator() as running, asyncio.timeout(10):
        await running.fleet.act(put)
        limited = TimeLimitedProvider(provider, longest_call_s=0.02, boot_log_s=0.02)
        await destroy_once(running.fleet, limited, never_joined)
        await ask_once(running.fleet, limited, pool, "m_1", {})
        asked = await running.fleet.read(lambda view: view.machine("m_1"))
    assert provider.destroyed == ["c2"]
    assert asked is not None
    assert asked.state is MachineState.ASKED, "whether it was made the next list will show"
