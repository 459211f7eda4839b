"""Runs a simulated agent as a process on virtual time, which can be paused and killed, calls its server and uploads."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import StreamMessage
from simpletuner_fleet.sim.machine import SimulatedMachine, is_final_answer
from simpletuner_fleet.sim.network import Answered
from simpletuner_fleet.sim.server.streams import Stream


class AgentProcess(ABC):
    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.world = machine.world
        self.alive = True
        self.paused = False
        self.stream: Stream | None = None
        self._missed: list[Callable[[], None]] = []
        """What was to be done while it was paused."""

    def pause(self) -> None:
        self.paused = True

    def wake_up(self) -> None:
        if not self.paused:
            return
        self.paused = False
        missed, self._missed = self._missed, []
        for act in missed:
            self._run(act)

    def _run(self, act: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.paused:
            self._missed.append(act)
        else:
            act()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.world.after(delay_s, lambda: self._run(act))

    def _call(self, work: Callable[[], Any], answered: Answered) -> None:
        orchestrator = self.machine.orchestrator
        self.machine.link.call(
            lambda reply: orchestrator.receive(work, reply, self.machine.link),
            lambda outcome: self._run(lambda: answered(outcome)),
        )

    def stream_said(self, stream: Stream, message: StreamMessage) -> None:
        self._run(lambda: self.hear(message))
        self.machine.link.echo(lambda: self._bring_again(message))

    def _bring_again(self, message: StreamMessage) -> None:
        """Lets whichever agent runs on this machine by now hear it."""
        if self.machine.agent is not None:
            self.machine.agent.hear_again(message)

    def hear_again(self, message: StreamMessage) -> None:
        """Hears it where it listens: a new process does so once its registration was answered."""
        if self.stream is not None:
            self._run(lambda: self.hear(message))

    @abstractmethod
    def hear(self, message: StreamMessage) -> None: ...

    def store_checkpoint(self, turn: Turn, step: int) -> None:
        self.machine.unstored[turn, step] = None
        self._run(lambda: self.store_again(turn, step))

    def store_again(self, turn: Turn, step: int) -> None:
        """Uploads it again until it is answered, as a final report."""
        token = self.machine.token

        def answered(outcome: Any) -> None:
            if is_final_answer(outcome):
                self.machine.unstored.pop((turn, step), None)
            else:
                self._later(self.world.chance.uniform(0.5, 8.0), lambda: self.store_again(turn, step))

        self._call(lambda: self.machine.orchestrator.store_checkpoint(token, *turn, step), answered)
