"""Simulates the provider's machines after they have booted: they join by their token, and an agent runs there."""

from random import Random
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.money.amounts import read_amount
from simpletuner_fleet.orchestrator.machines import joining
from simpletuner_fleet.orchestrator.machines.joining import JoinedMachine
from simpletuner_fleet.sim.checks.truth import Truth
from simpletuner_fleet.sim.machine import MachineKind, SimulatedMachine
from simpletuner_fleet.sim.network import Link, Weather
from simpletuner_fleet.sim.provisioning.cloud import CloudMachine, QuirkyCloud
from simpletuner_fleet.sim.provisioning.spot import SpotAgent, SpotMarket
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.world import World

NEVER_BOOTS, VANISHES = 0.1, 0.1
JOIN_AGAIN_S = 15.0


class BootHabits(Struct, frozen=True, kw_only=True):
    boot_s: tuple[float, float]
    persistent: bool


class BroughtMachines:
    def __init__(
        self,
        world: World,
        orchestrator: Orchestrator,
        cloud: QuirkyCloud,
        chance: Random,
        weather: Weather,
        habits: BootHabits,
    ) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.cloud = cloud
        self.chance = chance
        self.weather = weather
        self.habits = habits
        self.truth = Truth()
        self.market = SpotMarket(world, cloud, world.seed)
        self.bodies: dict[str, SimulatedMachine] = {}
        cloud.boots = self._booting

    def _booting(self, machine: CloudMachine) -> None:
        if self.cloud.fails("never boots", NEVER_BOOTS):
            return
        self.world.after(self.chance.uniform(*self.habits.boot_s), lambda: self._join(machine))
        if self.cloud.fails("will vanish", VANISHES):
            self.world.after(self.chance.uniform(60.0, 7200.0), lambda: self.cloud.end(machine))

    def _join(self, machine: CloudMachine) -> None:
        if machine.ended_at is not None or machine.joined:
            return
        token, home = machine.environment["SIMPLETUNER_WORKER_TOKEN"], f"h_{machine.id}"
        link = Link(self.world, machine.id, self.weather)
        work = self.orchestrator.act(lambda fleet: joining.join(fleet, token, home))

        def answered(outcome: Any) -> None:
            if isinstance(outcome, JoinedMachine):
                self._start(machine, link, outcome)
            elif isinstance(outcome, FleetError) and outcome.code == "invalid_token":
                self.world.counts["join refused"] += 1
            else:
                self.world.after(JOIN_AGAIN_S, lambda: self._join(machine))

        link.call(lambda reply: self.orchestrator.receive(work, reply, link), answered)

    def _start(self, machine: CloudMachine, link: Link, joined: JoinedMachine) -> None:
        if machine.ended_at is not None or machine.joined:
            return
        machine.joined, machine.useful_at = True, self.world.now
        self.world.counts["machine joined"] += 1
        price = machine.environment.get("SIMPLETUNER_WORKER_PRICE")
        kind = MachineKind(
            name=machine.id,
            persistent=self.habits.persistent,
            gpus=machine.gpus,
            max_jobs=machine.gpus if self.habits.persistent else 1,
            price_micros=read_amount(price) if price else None,
        )
        body = SimulatedMachine(self.world, self.orchestrator, self.truth, kind, link, joined.token)
        body.worker_id = joined.worker_id
        body.make_agent = SpotAgent
        machine.power_off = body.power_off
        self.bodies[machine.id] = body
        body.boot()
        self.market.booted(machine, body)

    def note_use(self) -> None:
        """Notes, often, that a machine on which a trainer runs is of use."""
        for machine in self.cloud.of_ours():
            body = self.bodies.get(machine.id)
            if body is not None and any(not shim.done for shim in body.shims.values()):
                machine.useful_at = self.world.now
