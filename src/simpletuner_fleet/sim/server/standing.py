"""Simulates one of several orchestrators by the real rules of the lease, on clocks that run at unequal speed.

Lease turns happen several times a second for as long as anything is wrong. While all is well they would only repeat
themselves, so they are left out then, and the leader's renewal is made up for when somebody asks.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.leadership import RENEW_EVERY_S, Lease, next_term
from simpletuner_fleet.orchestrator.leadership import RETRY_S, Leadership
from simpletuner_fleet.sim.network import Said
from simpletuner_fleet.sim.world import Violation

if TYPE_CHECKING:
    from simpletuner_fleet.sim.server.process import Process

WATCHED_FOR_S = 5.0
"""For so long after anything happened to any of them every turn is made."""


class SimLeaseBook:
    """Gives one process of the orchestrator access to the stored lease."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    def _reached(self) -> None:
        if self._process.store.is_cut or self._process.orchestrator.is_being_restored:
            raise StoreUnavailable

    def look(self) -> Lease | None:
        self._reached()
        return self._process.orchestrator.store.lease

    def take(self, seen: Lease | None, holder: str, url: str, fingerprint: str) -> Lease | None:
        self._reached()
        store = self._process.orchestrator.store
        if store.lease != seen:
            return None
        term = next_term(seen.term if seen else 0, self._process.orchestrator.wall_now())
        store.take_lease(Lease(term=term, holder=holder, url=url))
        return store.lease

    def renew(self, term: int) -> bool:
        self._reached()
        store = self._process.orchestrator.store
        lease = store.lease
        if lease is None or lease.term != term:
            return False
        store.lease = Lease(term=term, holder=lease.holder, url=lease.url, renewals=lease.renewals + 1)
        return True

    def release(self, term: int) -> None:
        """Does nothing: no process stops in good order here, since whoever ends is killed."""

    def close(self) -> None: ...


class Reached(Struct, frozen=True):
    """Names the leader that a follower passes requests on to, and its term."""

    process: "Process"
    term: int


def make_up_for_all(processes: Iterable["Process"]) -> None:
    """Makes up for skipped turns, the leader's first: the others check whether it has renewed."""
    standings = [process.standing for process in processes if process.standing is not None]
    for standing in sorted(standings, key=lambda one: not one.leads):
        standing.make_up()


class SimulatedStanding:
    def __init__(self, process: "Process", clock_rate: float) -> None:
        self._process = process
        self._rate = clock_rate
        self._world = process.world
        self._watched_until = 0.0
        self._renewed_at = -1e9
        self._turns = 0
        self._leadership = self._fresh()

    def _fresh(self) -> Leadership:
        rate, world = self._rate, self._world
        return Leadership(SimLeaseBook(self._process), self._process.name, lambda: world.now * rate)

    @property
    def leads(self) -> bool:
        return self._leadership.term is not None

    @property
    def term(self) -> int:
        return self._leadership.term or 0

    def begin(self) -> None:
        """Begins with fresh state: a new process knows nothing of what an earlier one was promised."""
        self._leadership = self._fresh()
        self.stir()

    def stir(self) -> None:
        """Makes every process watch the lease closely for a while, since something is about to happen."""
        make_up_for_all(self._process.orchestrator.processes)
        for process in self._process.orchestrator.processes:
            if process.standing is not None and process.up:
                process.standing.look_closely()

    def look_closely(self) -> None:
        self._watched_until = self._world.now + WATCHED_FOR_S
        self._turns += 1
        self._plan(0.0, self._turns)

    def _plan(self, pause_s: float, turn: int) -> None:
        self._world.after(pause_s / self._rate, lambda: self._turn(turn))

    def _turn(self, turn: int) -> None:
        process = self._process
        if turn != self._turns or not process.up or process.stalled:
            return
        pause_s = self._look_after_lease()
        if self._world.now < self._watched_until:
            self._plan(max(pause_s, 0.01), turn)

    def _look_after_lease(self) -> float:
        process, before = self._process, self._leadership.term
        try:
            pause_s = self._leadership.turn()
        except StoreUnavailable:
            pause_s = RETRY_S
        self._renewed_at = self._world.now
        if self._leadership.term != before:
            if before is not None:
                process.end()
            if self._leadership.term is not None:
                process.store.term = self._leadership.term
                process.begin()
        return pause_s

    def make_up(self) -> None:
        """Makes up for the turn that was skipped while all was well."""
        process, now = self._process, self._world.now
        left_out = now > self._watched_until and now - self._renewed_at >= RENEW_EVERY_S
        if left_out and process.up and not process.stalled:
            self._look_after_lease()

    def may_promise(self) -> bool:
        self.make_up()
        term = self._leadership.term
        return term is not None and self._leadership.may_promise(term)

    def promise(self, outcome: Any) -> Said:
        """Checks by ground truth that nobody else has begun to lead at the moment a promise is sent."""
        lease = self._process.orchestrator.store.lease
        if lease is None or lease.term != self.term:
            raise Violation(
                "T1", f"{self._process.name} promises in term {self.term}, and {lease} has begun since"
            )
        return Said(self.term, outcome)

    def whom_to_ask(self) -> "Reached | None":
        """Returns the leader as far as this process knows."""
        make_up_for_all(self._process.orchestrator.processes)
        lease = self._leadership.leader
        if lease is None:
            return None
        known = (one for one in self._process.orchestrator.processes if one.name == lease.holder)
        leader = next(known, None)
        return Reached(leader, lease.term) if leader is not None else None
