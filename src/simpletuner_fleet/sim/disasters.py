"""Injects faults above the machines: in orchestrators, their database, backups, and boxes in between.

They are drawn from a random source of their own, so that the rest of a seed stays as it is.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from simpletuner_fleet.sim.chaos import Chaos
from simpletuner_fleet.sim.network import Link
from simpletuner_fleet.sim.restores import Restores
from simpletuner_fleet.sim.world import World

MOST_REQUESTS = 3
"""That people make of running trainers, for checkpoints and validations."""


class Disasters:
    def __init__(self, world: World, chaos: Chaos, chance: Random, restores: Restores | None) -> None:
        self.world = world
        self.chaos = chaos
        self.chance = chance
        self.restores = restores
        self.orchestrator = chaos.orchestrator
        chaos.clock_goes_on = restores is not None or len(self.orchestrator.processes) > 1

    def plan(self, for_s: float) -> None:
        chance = self.chance
        choices: list[Callable[[], None]] = [self.freeze_before_answer, self.interpose_middle_box]
        if len(self.orchestrator.processes) > 1:
            choices += [self.cut_from_database, self.stop_a_process] * 2
        for act in chance.choices(choices, k=chance.randint(0, len(choices))):
            self._at(chance.uniform(0.0, for_s), act)
        if self.restores is not None:
            self._plan_restores(self.restores, for_s)
        for _ in range(chance.randint(0, MOST_REQUESTS)):
            self._at(chance.uniform(0.0, for_s), self.chaos.people.ask_a_trainer)

    def _plan_restores(self, restores: Restores, for_s: float) -> None:
        chance = self.chance
        for share in (0.15, 0.3, 0.45, 0.6):
            self._at(share * for_s * chance.uniform(0.5, 1.5), restores.create)
        self._at(chance.uniform(0.3, 0.9) * for_s, self.chaos.people.rotate_something)
        for _ in range(chance.randint(1, 2)):
            self._at(chance.uniform(0.3, 1.0) * for_s, restores.restore)

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self.world.after(at_s, partial(self._unless_healed, act))

    def _unless_healed(self, act: Callable[[], None]) -> None:
        if self.world.faulty:
            act()

    def freeze_before_answer(self) -> None:
        """Freezes the process after a commit: what was decided is stored, and nobody is told until it continues."""
        for_s = self.chance.choice((0.5, 1.4, 1.6, 5.0, 60.0))
        self.world.fault("orchestrator frozen before an answer", f"for {for_s:g} s")
        self.orchestrator.lead.freeze_after_commit(for_s)

    def cut_from_database(self) -> None:
        process = self.chance.choice([self.orchestrator.lead, *self.orchestrator.processes])
        for_s = self.chance.choice((0.5, 1.4, 2.0, 10.0, 60.0))
        self.world.fault("orchestrator cut from its database", f"{process.name} for {for_s:g} s")
        process.cut_from_database(for_s)

    def stop_a_process(self) -> None:
        process = self.chance.choice(self.orchestrator.processes)
        if self.chance.random() < 0.5:
            self.world.fault("one of several orchestrators killed", process.name)
            process.crash()
        else:
            self.world.fault("one of several orchestrators stalled", process.name)
            process.stall(self.chance.choice((0.5, 1.4, 1.6, 3.0, 60.0)))

    def interpose_middle_box(self) -> None:
        """Lets a proxy or a portal answer every request instead, before the orchestrator or after it."""
        behind = [machine for machine in self.chaos.machines if machine.kind.forwarded]
        if not behind:
            return
        machine, for_s = self.chance.choice(behind), self.chance.choice((5.0, 30.0, 90.0))
        self.world.fault("middle box answers", f"{machine.kind.name} for {for_s:g} s")
        machine.link.middle_box = self.chance
        self.world.after(for_s, partial(self._remove, machine.link))

    @staticmethod
    def _remove(link: Link) -> None:
        link.middle_box = None
