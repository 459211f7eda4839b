"""Limits how long a provider may take: it may be anybody's code, and one that never answers must hold up nothing."""

import asyncio

from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.providers.contract import CreatedMachine, MachineOrder, MachineProvider

LONGEST_CALL_S = 180.0
BOOT_LOG_S = 30.0
"""No log is worth a machine that goes on costing."""


class TimeLimitedProvider:
    """Passes calls on to a provider, and raises TimeoutError where an answer does not come in time."""

    def __init__(
        self,
        provider: MachineProvider,
        longest_call_s: float = LONGEST_CALL_S,
        boot_log_s: float = BOOT_LOG_S,
    ) -> None:
        self._provider = provider
        self._longest_call_s, self._boot_log_s = longest_call_s, boot_log_s
        self.settle_s, self.sweep_s = provider.settle_s, provider.sweep_s

    async def offers(self) -> list[MachineOffer]:
        async with asyncio.timeout(self._longest_call_s):
            return await self._provider.offers()

    async def create(self, order: MachineOrder) -> CreatedMachine:
        async with asyncio.timeout(self._longest_call_s):
            return await self._provider.create(order)

    async def machines(self) -> list[ListedMachine]:
        async with asyncio.timeout(self._longest_call_s):
            return await self._provider.machines()

    async def destroy(self, provider_id: str) -> None:
        async with asyncio.timeout(self._longest_call_s):
            await self._provider.destroy(provider_id)

    async def boot_log(self, provider_id: str) -> str:
        async with asyncio.timeout(self._boot_log_s):
            return await self._provider.boot_log(provider_id)
