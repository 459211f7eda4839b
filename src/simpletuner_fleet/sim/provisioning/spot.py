"""Simulates spot machines that are taken away at any time, some with a notice, and the agent that gets it."""

from random import Random

from simpletuner_fleet.agent.interruptions.remembered import OVERDUE_S
from simpletuner_fleet.core.workers.interruption import hand_back_within
from simpletuner_fleet.protocol.messages import EndNotice
from simpletuner_fleet.sim.agent import SimulatedAgent
from simpletuner_fleet.sim.machine import SimulatedMachine
from simpletuner_fleet.sim.provisioning.cloud import CloudMachine, QuirkyCloud
from simpletuner_fleet.sim.world import Violation, World

TAKEN_AWAY, WITH_NOTICE = 0.5, 0.7
NOTICES_S = (5.0, 25.0, 120.0)


class SpotAgent(SimulatedAgent):
    ends_at: float | None = None

    def boot(self) -> None:
        """Starts the next agent only once it is clear whether the machine is taken away: it takes no job before."""
        end = self.machine.told_end
        if end is None or self.world.now >= end + OVERDUE_S:
            super().boot()
        else:
            self._later(end + OVERDUE_S - self.world.now, super().boot)

    def notice(self) -> EndNotice | None:
        if self.ends_at is None:
            return None
        return EndNotice(source="sim", in_s=max(0.0, self.ends_at - self.world.now))

    def machine_ends(self, in_s: float) -> None:
        """Acts as the real agent: it takes no new job, saves where there is time, gives everything back, and leaves."""
        plan = hand_back_within(in_s)
        self.ends_at = self.machine.told_end = self.world.now + in_s
        self._act(self.inbox.machine_ends("taken away", plan))
        if not self.alive:
            return
        self.beat_once()
        self._later((plan.save_s or 0.0) + plan.grace_s, lambda: self._act(self.inbox.out_of_patience()))


class SpotMarket:
    """Takes spot machines away, and checks at the end of each whether its notice was used."""

    def __init__(self, world: World, cloud: QuirkyCloud, seed: int) -> None:
        self.world = world
        self.cloud = cloud
        self.chance = Random(f"spot of {seed}")

    def booted(self, machine: CloudMachine, body: SimulatedMachine) -> None:
        if not self.cloud.spot or not self.world.faulty or self.chance.random() >= TAKEN_AWAY:
            return
        notice_s = self.chance.choice(NOTICES_S) if self.chance.random() < WITH_NOTICE else None
        self.world.after(self.chance.uniform(30.0, 1500.0), lambda: self._take_away(machine, body, notice_s))

    def _take_away(self, machine: CloudMachine, body: SimulatedMachine, notice_s: float | None) -> None:
        if machine.ended_at is not None:
            return
        self.world.fault("cloud: taken away", f"{machine.id}, notice: {notice_s}")
        if notice_s is None:
            self.cloud.end(machine)
            return
        if isinstance(body.agent, SpotAgent):
            self.world.counts["notice given"] += 1
            body.agent.machine_ends(notice_s)
        self.world.after(notice_s, lambda: self._end(machine, body))

    def _end(self, machine: CloudMachine, body: SimulatedMachine) -> None:
        running = [shim.turn for shim in body.shims.values() if not shim.done]
        if running and body.powered:
            raise Violation("M6", f"{machine.id} was told of its end, and still ran {running[0]} then")
        self.cloud.end(machine)
