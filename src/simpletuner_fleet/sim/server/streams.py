"""Simulates the stream of one worker as a TCP connection on virtual time."""

from typing import Protocol

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.engine.streams import WorkerStream
from simpletuner_fleet.protocol.messages import StopAttempt, StreamMessage
from simpletuner_fleet.sim.network import Link


class Listener(Protocol):
    """Represents the agent's end of a stream."""

    alive: bool

    def stream_said(self, stream: "Stream", message: StreamMessage) -> None: ...
    def stream_dropped(self, stream: "Stream") -> None: ...


class Stream:
    """Represents the TCP connection of one worker's stream; what cannot be delivered now waits, as in TCP."""

    def __init__(self, link: Link, listener: Listener, worker_id: str, token_hash: str) -> None:
        self.link = link
        self.listener: Listener | None = listener
        """It is None once the agent's end is closed."""
        self.worker_id = worker_id
        self.token_hash = token_hash
        self.served: WorkerStream | None = None
        self.frozen = False
        """Half open: nothing arrives, and nobody is told."""
        self.heard_at = link.world.now
        self.acked_at = link.world.now
        self.offered_at: dict[Turn, float] = {}
        self.stopped: set[StopAttempt] = set()
        self.requested: set[tuple[str, int, str, float]] = set()
        """Requests for checkpoints and validations that it has carried: each is sent once on a stream."""
        self.drain_sent = False
        self.shutdown_sent = False
        self.resend_planned = False
        self._held_back: list[StreamMessage] = []
        self._free_at = 0.0

    @property
    def flows(self) -> bool:
        return self.link.down and not self.frozen

    def push(self, message: StreamMessage) -> None:
        if not self.flows:
            self._held_back.append(message)
            return
        world = self.link.world
        at = self._free_at = max(self._free_at, world.now + self.link.delay_s())
        world.after(at - world.now, lambda: self._arrive(message))

    def _arrive(self, message: StreamMessage) -> None:
        if self.listener is None:
            return
        if not self.flows:
            self._held_back.append(message)
            return
        self.heard_at = self.link.world.now
        self.listener.stream_said(self, message)

    def thaw(self) -> None:
        """Delivers what was held back, now that the network is back."""
        held, self._held_back = self._held_back, []
        for message in held:
            self.push(message)

    def ping(self) -> None:
        """Pings the agent; a process that died while its request was on its way acknowledges nothing."""
        if self.flows and self.listener is not None and self.listener.alive:
            self.heard_at = self.link.world.now
            if self.link.up:
                self.acked_at = self.link.world.now

    def reset_agent_end(self) -> None:
        """Ends the connection for the agent, unless the network keeps that from it."""
        listener, world = self.listener, self.link.world
        if listener is not None and self.flows:
            world.after(self.link.delay_s(), self._tell_drop)

    def _tell_drop(self) -> None:
        if self.listener is not None and self.flows:
            listener, self.listener = self.listener, None
            listener.stream_dropped(self)
