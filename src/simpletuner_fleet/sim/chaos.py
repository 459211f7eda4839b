"""Injects faults: it decides what fails and when, and how that is repaired."""

from collections.abc import Callable
from functools import partial

from simpletuner_fleet.sim.draw import Size
from simpletuner_fleet.sim.machine import SimulatedMachine
from simpletuner_fleet.sim.network import Link
from simpletuner_fleet.sim.people import People
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.world import World


class Chaos:
    def __init__(
        self,
        world: World,
        orchestrator: Orchestrator,
        people: People,
        machines: list[SimulatedMachine],
        clone: Callable[[SimulatedMachine], SimulatedMachine],
    ) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.people = people
        self.machines = machines
        self.clones: list[SimulatedMachine] = []
        self._clone = clone
        self.clock_goes_on = False
        self._faults: list[tuple[int, Callable[[], None]]] = [
            (3, self.crash_orchestrator),
            (3, self.crash_at_commit),
            (2, self.stall_orchestrator),
            (2, self.refuse_commits),
            (4, self.cut_both_ways),
            (2, self.cut_and_crash),
            (3, self.cut_up),
            (3, self.cut_down),
            (3, self.kill_agent),
            (3, self.power_cut),
            (3, self.pause_agent),
            (2, self.terminate_agent),
            (2, self.drop_stream),
            (2, self.freeze_stream),
            (2, self.break_machine),
            (2, self.fail_storage),
            (2, self.kill_forwarder),
            (1, self.cut_everybody),
            (1, self.jump_wall_clock),
            (1, self.clone_machine),
        ]
        self._acts: list[tuple[int, Callable[[], None]]] = [
            (4, people.cancel_something),
            (2, people.retry_something),
            (2, people.change_priority),
            (3, people.decide_approvals),
            (3, people.drain_something),
            (2, people.rotate_something),
            (2, people.delete_something),
            (2, people.relabel_something),
            (1, people.change_limits),
        ]

    def plan(self, for_s: float, size: Size) -> None:
        chance = self.world.chance
        faults, acts = chance.choice(size.faults), chance.randint(0, size.most_acts)
        for _ in range(chance.choice(size.jobs)):
            self.world.after(chance.uniform(0.0, for_s * size.jobs_until), self.people.submit_something)
        self._plan(self._faults, faults, for_s * size.faults_until)
        self._plan(self._acts, acts, for_s)

    def _plan(self, choices: list[tuple[int, Callable[[], None]]], count: int, within_s: float) -> None:
        chance, weights = self.world.chance, [weight for weight, _ in choices]
        for _, act in chance.choices(choices, weights, k=count):
            self.world.after(chance.uniform(0.0, within_s), partial(self._unless_healed, act))

    def _unless_healed(self, act: Callable[[], None]) -> None:
        if self.world.faulty:
            act()

    def _machine(self) -> SimulatedMachine:
        """Chooses a machine, mostly one that has something to lose."""
        busy = [machine for machine in self.machines if machine.shims]
        aimed = bool(busy) and self.world.chance.random() < 0.7
        return self.world.chance.choice(busy if aimed else self.machines)

    def _some_s(self) -> float:
        """Draws a time that is shorter or longer than every timeout."""
        timeout_s = self.orchestrator.policy.heartbeat_timeout_s
        return (
            self.world.chance.choice((0.05, 0.3, 0.9, 1.4, 2.5))
            * timeout_s
            * self.world.chance.uniform(0.8, 1.2)
        )

    # The orchestrator

    def crash_orchestrator(self) -> None:
        self.world.fault("orchestrator killed")
        self.orchestrator.crash()

    def crash_at_commit(self) -> None:
        point = self.world.chance.choice(("before commit", "after commit"))
        self.world.fault(f"orchestrator killed {point}")
        self.orchestrator.store.crash_at = "before commit" if point == "before commit" else "after commit"

    def stall_orchestrator(self) -> None:
        for_s = self._some_s()
        self.world.fault("orchestrator stalled", f"for {for_s:.0f} s")
        self.orchestrator.stall(for_s)

    def refuse_commits(self) -> None:
        self.world.fault("disk full")
        self.orchestrator.store.fail_commits(self.world.chance.randint(1, 4))

    def fail_storage(self) -> None:
        """Makes every upload fail, as if nothing could be stored or a proxy refused it."""
        for_s = self._some_s()
        self.world.fault("storage fails", f"for {for_s:.0f} s")
        self.orchestrator.storage_fails = True
        self.world.after(for_s, partial(setattr, self.orchestrator, "storage_fails", False))

    def jump_wall_clock(self) -> None:
        """Moves the wall clock; it goes back only where one orchestrator leads and no database was restored.

        The docs ask for that.
        """
        self.world.fault("wall clock jumps")
        jump_s = self.world.chance.choice((-86_400.0, -3_600.0, 3_600.0, 86_400.0))
        self.orchestrator.wall_offset_s += abs(jump_s) if self.clock_goes_on else jump_s

    # The network

    def cut_both_ways(self) -> None:
        self._cut("network cut both ways", up=False, down=False)

    def cut_and_crash(self) -> None:
        """Crashes the orchestrator as a cut-off worker comes back, whose job may run elsewhere."""
        machine = self._machine()
        for_s = self.world.chance.uniform(1.1, 2.0) * self.orchestrator.policy.heartbeat_timeout_s
        self.world.fault(
            "orchestrator killed as the network returns", f"{machine.kind.name} after {for_s:.0f} s"
        )
        machine.link.up = machine.link.down = False
        self.world.after(for_s - 2.0, partial(self._unless_healed, self.orchestrator.crash))
        self.world.after(for_s, lambda: self.mend(machine.link))

    def cut_up(self) -> None:
        self._cut("network cut worker to orchestrator", up=False, down=True)

    def cut_down(self) -> None:
        self._cut("network cut orchestrator to worker", up=True, down=False)

    def _cut(self, kind: str, *, up: bool, down: bool) -> None:
        machine, for_s = self._machine(), self._some_s()
        self.world.fault(kind, f"{machine.kind.name} for {for_s:.0f} s")
        machine.link.up, machine.link.down = up, down
        self.world.after(for_s, lambda: self.mend(machine.link))

    def kill_forwarder(self) -> None:
        """Kills the forwarder between a worker and the orchestrator, which then refuses in its place."""
        forwarded = [machine for machine in self.machines if machine.kind.forwarded]
        if not forwarded:
            return
        machine, for_s = self.world.chance.choice(forwarded), self._some_s()
        self.world.fault("forwarder dead", f"{machine.kind.name} for {for_s:.0f} s")
        machine.link.refuses = True
        for stream in self.orchestrator.streams():
            if stream.link is machine.link:
                stream.frozen = True
        self.world.after(for_s, lambda: self.mend(machine.link))

    def cut_everybody(self) -> None:
        """Cuts off the whole fleet at once, as a switch or the orchestrator's own network does."""
        for_s = self._some_s()
        self.world.fault("network cut to everybody", f"for {for_s:.0f} s")
        for machine in self.machines:
            machine.link.up = machine.link.down = False
            self.world.after(for_s, partial(self.mend, machine.link))

    def mend(self, link: Link) -> None:
        link.up = link.down = True
        link.refuses = False
        link.middle_box = None
        for stream in self.orchestrator.streams():
            if stream.link is link:
                stream.thaw()

    def drop_stream(self) -> None:
        machine = self._machine()
        agent = machine.agent
        if agent is not None and agent.stream is not None:
            self.world.fault("stream dropped", machine.kind.name)
            stream = agent.stream
            agent.stream_dropped(stream)
            stream.listener = None
            self.world.after(0.05, lambda: self.orchestrator.peer_closed(stream))

    def freeze_stream(self) -> None:
        machine = self._machine()
        if machine.agent is not None and machine.agent.stream is not None:
            self.world.fault("stream half open", machine.kind.name)
            machine.agent.stream.frozen = True

    # Machines

    def kill_agent(self) -> None:
        machine = self._machine()
        if machine.agent is None:
            return
        self.world.fault("agent killed", machine.kind.name)
        machine.kill_agent()
        self.world.after(self.world.chance.choice((0.5, 1.5, 10.0, self._some_s())), machine.boot)

    def power_cut(self) -> None:
        machine = self._machine()
        if machine.powered:
            self.world.fault("machine lost power", machine.kind.name)
            machine.power_off()
            self.world.after(self.world.chance.choice((5.0, self._some_s())), machine.power_on)

    def break_machine(self) -> None:
        """Breaks a machine whose agent lives and can start nothing: it is the first to be free for the next job."""
        machine = self._machine()
        machine.broken = True
        self.world.fault("machine can start nothing", machine.kind.name)
        self.world.after(self._some_s(), partial(setattr, machine, "broken", False))

    def pause_agent(self) -> None:
        machine = self._machine()
        agent = machine.agent
        if agent is not None and not agent.paused:
            for_s = self._some_s()
            self.world.fault("agent paused", f"{machine.kind.name} for {for_s:.0f} s")
            agent.pause()
            self.world.after(for_s, agent.wake_up)

    def terminate_agent(self) -> None:
        machine = self._machine()
        if machine.agent is not None:
            self.world.fault("agent told to leave", machine.kind.name)
            machine.agent.terminate()
            self.world.after(self.world.chance.uniform(20.0, 100.0), machine.boot)

    def clone_machine(self) -> None:
        machine = self._machine()
        if machine.kind.older or not machine.powered or len(self.clones) > 1:
            return
        self.world.fault("token used twice", machine.kind.name)
        clone = self._clone(machine)
        self.clones.append(clone)
        clone.boot()
        self.world.after(self._some_s(), lambda: self._end_clone(clone, machine))

    def _end_clone(self, clone: SimulatedMachine, original: SimulatedMachine) -> None:
        if not clone.retired:
            clone.power_off()
            clone.retired = True
            self.world.after(5.0, original.boot)

    # Healing

    def heal(self, size: Size) -> None:
        """Ends the faults: the network works, what was down comes back, and what was frozen continues."""
        self.world.faulty, self.world.hurries = False, size.hurries
        self.world.note("-- faults end")
        orchestrator = self.orchestrator
        orchestrator.store.crash_at = None
        orchestrator.store.fail_commits(0)
        orchestrator.storage_fails = False
        if not orchestrator.is_being_restored:
            orchestrator.start()
        for process in orchestrator.processes:
            process.freezes_for_s = None
            process.mend_database()
        for clone in self.clones:
            clone.power_off()
            clone.retired = True
        for machine in self.machines:
            self._mend_machine(machine)
        self.mend(self.people.link)
        self._let_people_tidy_up(size)
        for machine in self.machines:
            self.world.after(8.0 if size.hurries else 30.0, machine.boot)

    def _mend_machine(self, machine: SimulatedMachine) -> None:
        machine.broken = False
        self.mend(machine.link)
        if machine.agent is not None:
            machine.agent.wake_up()
        machine.power_on()
        if self.world.hurries:
            machine.hurry()

    def _let_people_tidy_up(self, size: Size) -> None:
        """Lets people undo what the faults left; dead tokens are replaced after all repeated requests.

        That is after the last repeated request, and when what was on its way by then has arrived.
        """
        if self.people.limits_were_set or not size.hurries:
            self.world.after(1.0, self.people.lift_limits)
        self.world.after(1.5, lambda: self.people.decide_approvals(always=True))
        if self.world.chance.random() < 0.85:
            self.world.after(2.0, self.people.resume_all)
        last_repeat_s = size.latest_repeat_s + 1.0
        early = [size.longest_hand_over_s] if size.hurries else []
        for at_s in (*early, last_repeat_s, last_repeat_s + size.longest_hand_over_s + 10.0):
            self.world.after(at_s, self.people.replace_dead_tokens)
