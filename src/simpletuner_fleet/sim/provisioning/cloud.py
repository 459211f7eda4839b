"""Simulates a provider with every quirk of real ones, and knows the truth of what exists and costs there."""

from collections.abc import Callable, Generator
from random import Random

from msgspec import Struct

from simpletuner_fleet.core.money.amounts import MICROS
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderUnsure,
)
from simpletuner_fleet.sim.world import Violation, World

LONGEST_LAG_S = 120.0
LONGEST_CALL_S = 25.0
DEAREST_SHARE = 1.6
"""Of the base price, what a GPU costs at the most."""


class CallPause(Struct, frozen=True):
    """Pauses a call to the provider for so much virtual time."""

    seconds: float

    def __await__(self) -> Generator["CallPause", None, None]:
        yield self


class CloudMachine(Struct):
    """Describes a machine at the provider as it really is, whatever the provider's list says."""

    id: str
    name: str
    hourly_micros: int
    gpus: int
    created_at: float
    shown_from: float
    environment: dict[str, str]
    foreign: bool = False
    ended_at: float | None = None
    shown_until: float = 0.0
    power_off: Callable[[], None] = lambda: None
    joined: bool = False
    useful_at: float = 0.0
    """When a trainer last ran there, or it was made."""

    @property
    def costs(self) -> bool:
        return self.ended_at is None and not self.foreign


class QuirkyCloud:
    """Implements providers.MachineProvider as badly as its contract allows."""

    settle_s = LONGEST_LAG_S + 2 * LONGEST_CALL_S
    sweep_s = 60.0

    def __init__(self, world: World, chance: Random, weather: float) -> None:
        self.world = world
        self.chance = chance
        self.weather = weather
        """How often anything goes wrong while there are faults."""
        self.there: dict[str, CloudMachine] = {}
        self._running: dict[str, CloudMachine] = {}
        """Those of them that have not ended."""
        self._names: set[str] = set()
        self.boots: Callable[[CloudMachine], None] = lambda machine: None
        self.watch: Callable[[], None] = lambda: None
        self.spot = False
        """Whether what it has may be taken away at any time."""
        self._made = 0
        self.base_price = chance.choice((0.5, 1.0, 2.0)) * MICROS
        for number in range(2):
            stranger = self._add(f"stf-someoneelse-{number}", MICROS, 1, {})
            stranger.foreign = True

    def of_ours(self) -> list[CloudMachine]:
        return [machine for machine in self._running.values() if machine.costs]

    def fails(self, kind: str, share: float) -> bool:
        fails = self.world.faulty and self.chance.random() < share * self.weather
        if fails:
            self.world.fault(f"cloud: {kind}")
        return fails

    def _lag_s(self) -> float:
        return self.chance.uniform(0.0, LONGEST_LAG_S) if self.world.faulty and self.weather else 0.0

    async def offers(self) -> list[MachineOffer]:
        await CallPause(self.chance.uniform(0.1, 5.0))
        if self.fails("no offers", 0.05):
            return []
        prices = [round(self.base_price * self.chance.uniform(0.8, DEAREST_SHARE)) for _ in range(3)]
        return [
            MachineOffer(
                id=f"o{gpus}",
                hourly_micros=gpus * price,
                gpu_name="A100",
                gpus=gpus,
                vram_gb=80.0,
                spot=self.spot,
            )
            for gpus, price in zip((1, 2, 4), prices, strict=True)
        ]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        if self.fails("refused", 0.1):
            await CallPause(self.chance.uniform(0.1, 5.0))
            raise ProviderRefused("no capacity")
        if self.fails("request lost", 0.05):
            await CallPause(LONGEST_CALL_S)
            raise ProviderUnsure("no answer")
        made: list[CloudMachine] = []

        def make() -> None:
            offer = order.offer
            made.append(self._add(order.name, offer.hourly_micros, offer.gpus, order.environment))
            self.boots(made[0])
            self.watch()

        # Whoever asked may be dead before it is made: the request is on its way.
        took_s = self.chance.uniform(0.1, LONGEST_CALL_S - 1.0)
        self.world.after(took_s, make)
        await CallPause(took_s + 0.5)
        if self.fails("answer lost", 0.15):
            raise ProviderUnsure("status 500")
        return CreatedMachine(provider_id=made[0].id, hourly_micros=made[0].hourly_micros)

    def _add(self, name: str, hourly_micros: int, gpus: int, environment: dict[str, str]) -> CloudMachine:
        self._made += 1
        now = self.world.now
        machine = CloudMachine(
            id=f"c{self._made}",
            name=name,
            hourly_micros=hourly_micros,
            gpus=gpus,
            created_at=now,
            shown_from=now + self._lag_s(),
            environment=environment,
            useful_at=now,
        )
        if name in self._names:
            raise Violation("M1", f"a second machine was made with the name {name}")
        self._names.add(name)
        self.there[machine.id] = self._running[machine.id] = machine
        return machine

    async def machines(self) -> list[ListedMachine]:
        await CallPause(self.chance.uniform(0.1, 5.0))
        if self.fails("no list", 0.1):
            raise ProviderUnsure("status 429")
        now = self.world.now
        return [
            ListedMachine(provider_id=one.id, name=one.name, hourly_micros=one.hourly_micros)
            for one in self.there.values()
            if now >= one.shown_from and (one.ended_at is None or now < one.shown_until)
        ]

    async def destroy(self, provider_id: str) -> None:
        await CallPause(self.chance.uniform(0.1, 5.0))
        if self.fails("not destroyed", 0.2):
            raise ProviderUnsure("status 503")
        machine = self.there.get(provider_id)
        if machine is not None and machine.foreign:
            raise Violation("M2", f"{machine.name} is not ours and was destroyed")
        if machine is not None:
            self.end(machine)
        if self.fails("answer to destroy lost", 0.1):
            raise ProviderUnsure("no answer")

    def end(self, machine: CloudMachine) -> None:
        if machine.ended_at is None:
            machine.ended_at = self.world.now
            self._running.pop(machine.id)
            machine.shown_until = self.world.now + self._lag_s()
            machine.power_off()
            self.watch()

    async def boot_log(self, provider_id: str) -> str:
        return f"nothing of {provider_id}"
