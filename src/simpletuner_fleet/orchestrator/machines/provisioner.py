"""Runs the rounds over all pools while this orchestrator leads. Without pools it sleeps until there is one."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx2

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer, ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.stored_secrets import secret_value
from simpletuner_fleet.orchestrator.machines.calls import ask_once, destroy_once
from simpletuner_fleet.orchestrator.machines.rounds import ProviderSnapshots, decide_once, take_snapshot
from simpletuner_fleet.orchestrator.machines.time_limits import TimeLimitedProvider
from simpletuner_fleet.orchestrator.machines.under_way import NO_ANSWER, CallsUnderWay, LooksUnderWay
from simpletuner_fleet.providers.contract import MachineProvider, ProviderSurroundings, ProviderUnsure
from simpletuner_fleet.providers.registry import make_provider
from simpletuner_fleet.providers.vendor_http import vendor_client

log = logging.getLogger(__name__)

SHORTEST_ROUND_S = 0.2
HTTP_TIMEOUT_S = 30.0


class Provisioner:
    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        environment: dict[str, str],
        joining: dict[str, str],
    ) -> None:
        """Takes `joining`, which tells a worker on another machine how to reach this orchestrator."""
        self._fleet = fleet
        self._folder = folder
        self._environment = environment
        self._joining = joining
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._providers: dict[str, tuple[object, MachineProvider]] = {}
        self._looks, self._calls = LooksUnderWay(), CallsUnderWay()
        self._open_http: httpx2.AsyncClient | None = None
        self._making_http = asyncio.Lock()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._looks.stop()
        await self._calls.stop()
        if self._open_http:
            await self._open_http.aclose()

    def wake(self) -> None:
        """Starts a round soon, since a pool was made or changed."""
        self._woken.set()

    async def settings_check(self) -> Callable[[MachinePool], None]:
        """Returns a check that raises Invalid where a pool's provider would not take its settings."""
        http = await self._client()

        def check(pool: MachinePool) -> None:
            self._made(pool, None, http)

        return check

    async def offers(self, pool: MachinePool, *, saved: bool = True) -> list[MachineOffer]:
        """Returns the offers for a pool. Raises ProviderUnsure or ProviderRefused where there are none to be had."""
        if saved:
            provider = await self._provider_of(pool)
        else:
            provider = self._made(pool, await self._key_of(pool), await self._client())
        async with asyncio.timeout(HTTP_TIMEOUT_S):
            return await provider.offers()

    async def check(self, pool: MachinePool) -> tuple[list[ListedMachine], list[MachineOffer]]:
        """Asks the provider for all that can be asked without making anything; raises whatever goes wrong."""
        provider = await self._provider_of(pool)
        async with asyncio.timeout(HTTP_TIMEOUT_S):
            return await provider.machines(), await provider.offers()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            pause_s = HTTP_TIMEOUT_S
            try:
                pools = await self._fleet.read(lambda view: view.pools())
                if not pools:
                    self._providers.clear()
                    await self._woken.wait()
                    continue
                pause_s = await self.round_once(pools)
            except Exception:  # whatever it is: machines that cost must not be left alone
                log.exception("looking after machines failed; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(max(SHORTEST_ROUND_S, pause_s)):
                    await self._woken.wait()

    async def round_once(self, pools: list[MachinePool]) -> float:
        """Runs one round; returns how long to wait until the next."""
        fleet = self._fleet
        names = {pool.name for pool in pools}
        self._providers = {name: known for name, known in self._providers.items() if name in names}
        wants_offers = fleet.has_waiting_jobs() or any(pool.request.min_machines for pool in pools)
        answers = await self._looks.answers(pools, partial(self._snapshot_of, wants_offers=wants_offers))
        snapshots = {name: one for name, one in answers.items() if isinstance(one, ProviderSnapshot)}
        troubles = {name: one if isinstance(one, str) else one.trouble for name, one in answers.items()}
        seen = ProviderSnapshots(
            snapshots=snapshots,
            troubles=troubles,
            being_looked_at=frozenset(names - answers.keys()),
            under_way=self._calls.machines_under_way(),
        )
        calls = await decide_once(fleet, seen)
        rows = await fleet.read(lambda view: [view.machine(one) for one in calls.ask])
        for machine in calls.destroy:
            self._calls.begin(machine, self._destroy)
        for wanted in rows:
            if wanted is not None:
                self._calls.begin(wanted, self._ask)
        await self._calls.settle()
        known = [provider.sweep_s for _, provider in self._providers.values()]
        return min(known, default=HTTP_TIMEOUT_S)

    async def _snapshot_of(self, pool: MachinePool, *, wants_offers: bool) -> ProviderSnapshot | str:
        now = self._fleet.clock.now()
        try:
            provider = await self._provider_of(pool)
            async with asyncio.timeout(HTTP_TIMEOUT_S):
                return await take_snapshot(provider, now, with_offers=wants_offers and pool.brings_machines)
        except FleetError as error:
            return error.detail
        except TimeoutError:
            return NO_ANSWER
        except Exception as error:  # anybody's code, and anybody's network
            if not isinstance(error, ProviderUnsure):
                log.exception("the provider of the pool %s cannot be looked at", pool.name)
            return str(error) or type(error).__name__

    async def _ask(self, machine: Machine) -> None:
        pool = await self._fleet.read(lambda view: view.pool(machine.pool))
        if pool is not None:
            provider = TimeLimitedProvider(await self._provider_of(pool))
            await ask_once(self._fleet, provider, pool, machine.id, self._joining)

    async def _destroy(self, machine: Machine) -> None:
        pool = await self._fleet.read(lambda view: view.pool(machine.pool))
        if pool is not None:
            provider = TimeLimitedProvider(await self._provider_of(pool))
            await destroy_once(self._fleet, provider, machine)

    async def _key_of(self, pool: MachinePool) -> str | None:
        name = pool.request.secret
        if not name:
            return None
        return await self._fleet.read(lambda view: secret_value(view, self._fleet.vault, name))

    async def _provider_of(self, pool: MachinePool) -> MachineProvider:
        key, http = await self._key_of(pool), await self._client()
        asked = pool.request
        made_from = (
            asked.provider,
            asked.settings,
            asked.market,
            asked.regions,
            asked.data_gb,
            asked.boot_s,
            key,
            self._currency,
        )
        known = self._providers.get(pool.name)
        if known is None or known[0] != made_from:
            known = self._providers[pool.name] = (made_from, self._made(pool, key, http))
        return known[1]

    @property
    def _currency(self) -> str:
        return self._fleet.organisation.prices.currency

    async def _client(self) -> httpx2.AsyncClient:
        """Makes the HTTP client once there is a pool, in a thread.

        Loading the trusted authorities takes a tenth of a second.
        """
        async with self._making_http:
            if self._open_http is None:
                self._open_http = await asyncio.to_thread(vendor_client, HTTP_TIMEOUT_S)
            return self._open_http

    def _made(self, pool: MachinePool, key: str | None, http: httpx2.AsyncClient) -> MachineProvider:
        return make_provider(
            ProviderSurroundings(
                pool=pool,
                key=key,
                folder=self._folder,
                environment=self._environment,
                http=http,
                currency=self._currency,
            )
        )
