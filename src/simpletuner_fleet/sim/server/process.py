"""Simulates one process of the orchestrator: the real functions over the store, with crashes and stalls."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simpletuner_fleet.core.errors import FleetError, IllegalTransition, StoreUnavailable
from simpletuner_fleet.core.restoring import HELD_UNTIL
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.orchestrator.after_restore import hold_after_restore
from simpletuner_fleet.orchestrator.dependents import tell_dependents_once
from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.sim.network import NOBODY_LISTENS, UNREACHABLE, Answered, LinkDown
from simpletuner_fleet.sim.server.serving import Serving
from simpletuner_fleet.sim.server.standing import SimulatedStanding
from simpletuner_fleet.sim.server.store import ProcessStore, SimCrash
from simpletuner_fleet.sim.world import Violation, drive

if TYPE_CHECKING:
    from simpletuner_fleet.sim.server.orchestrator import Orchestrator

TELLS_AFTER_S = (0.05, 0.5, 4.0)
"""In turn: long enough that people and faults come in between."""
SWEEP_LOG = logging.getLogger("simpletuner_fleet.orchestrator.sweep")
TALKATIVE = [
    logging.getLogger(f"simpletuner_fleet.orchestrator.{name}") for name in ("leadership", "after_restore")
]
"""What they tell is in the trace."""
EPOCH_START = 1_700_000_000.0
Work = Callable[[], Any]


class _Failures(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


FAILURES = _Failures()


@contextmanager
def sweep_heard() -> Iterator[None]:
    """Captures what the health check logs instead of printing it.

    The check logs what goes wrong with one worker and continues.
    """
    SWEEP_LOG.addHandler(FAILURES)
    SWEEP_LOG.propagate = False
    for one in TALKATIVE:
        one.disabled = True
    try:
        yield
    finally:
        for one in TALKATIVE:
            one.disabled = False
        SWEEP_LOG.removeHandler(FAILURES)
        SWEEP_LOG.propagate = True


class Process:
    def __init__(self, orchestrator: "Orchestrator", name: str) -> None:
        self.orchestrator = orchestrator
        self.name = name
        self.world = orchestrator.world
        self.policy = orchestrator.policy
        self.store = ProcessStore(orchestrator.store)
        self.up = False
        self.fleet: Fleet | None = None
        """What it works with while it leads; alone, for as long as it lives."""
        self.index = FleetIndex()
        self.serving = Serving(self)
        self.standing: SimulatedStanding | None = None
        """None: it is the only one."""
        self.started_at = 0.0
        self.stalled = False
        self.freezes_for_s: float | None = None
        """It is frozen between its next commit and the answer."""
        self.life = 0
        self._commits_before = 0
        self._backlog: list[tuple[Work, Answered]] = []
        self._unsent: list[tuple[Any, Answered]] = []
        self._sweep_s = self.policy.sweep_interval_s
        self._telling_of = 0
        """The life in which a telling is planned."""
        self._tellings = 0

    # Life and death

    @property
    def may_work(self) -> bool:
        return self.fleet is not None and not self.stalled

    def start(self) -> None:
        was_up, self.up = self.up, True
        if self.standing is None:
            if self.fleet is None and not self.stalled:
                self.begin()
        elif not was_up:
            self.standing.begin()

    def begin(self) -> None:
        """Begins to lead."""
        world, orchestrator = self.world, self.orchestrator
        self.life = orchestrator.next_life()
        self.store.shared.crash_at = None
        clock = SteadyClock(wall=orchestrator.wall_now, monotonic=lambda: world.now)
        self.index = FleetIndex()
        fleet = Fleet(self.store, self.index, clock, orchestrator.ids, self.serving.begin(), self.policy)
        fleet.on_revoked = orchestrator.revoked
        life = self.life
        fleet.on_unfinished = lambda: self._plan_telling(life)
        self.started_at = world.now
        try:
            orchestrator.catch_up_revocations()
            held_until = drive(hold_after_restore(fleet))
            drive(fleet.start())
        except StoreUnavailable:
            world.after(1.0, lambda: self._begin_again(life))
            return
        except SimCrash:
            self.fleet = fleet
            self.crash()
            return
        self.fleet = fleet
        orchestrator.lead = self
        world.note("orchestrator starts" if self.standing is None else f"{self.name} leads")
        self._plan_sweep(self.life)
        self._plan_pings(self.life)
        self._plan_telling(self.life)
        self.serving.look_who_is_gone([worker.id for worker in self.store.view.workers()])
        if held_until is not None:
            self._place_after(held_until - clock.now() + 0.1, self.life)
        orchestrator.on_start(self.life)

    def _begin_again(self, life: int) -> None:
        if self.up and self.life == life and self.fleet is None and self._still_leads():
            if self.stalled:
                self.world.after(1.0, lambda: self._begin_again(life))
            else:
                self.begin()

    def _still_leads(self) -> bool:
        return self.standing is None or self.standing.leads

    def end(self) -> None:
        """Stops leading, and continues as a follower."""
        self.fleet = None
        self.serving.end()
        unsent, self._unsent = self._unsent, []
        for _, answered in unsent:
            answered(UNREACHABLE)

    def crash(self) -> None:
        if not self.up:
            return
        self.world.note(f"{self.name} is gone")
        if self.standing is not None:
            self.standing.stir()
        self.up = self.stalled = False
        self.freezes_for_s = None
        self.store.shared.crash_at = None
        self.store.is_cut = False
        self.fleet = None
        backlog, self._backlog = self._backlog, []
        for _, answered in backlog:
            answered(UNREACHABLE)
        self.end()
        self.life = self.orchestrator.next_life()
        life = self.life
        self.world.after(self.orchestrator.restarts_in_s(), lambda: self._restart(life))

    def _restart(self, life: int) -> None:
        if self.life == life and not self.orchestrator.is_being_restored:
            self.start()

    def stall(self, for_s: float) -> None:
        if self.up and not self.stalled:
            if self.standing is not None:
                self.standing.stir()
            self.stalled = True
            life = self.life
            self.world.after(for_s, lambda: self._go_on(life))

    def _go_on(self, life: int) -> None:
        if not self.stalled or self.life != life:
            return
        if self.standing is not None:
            self.standing.stir()
        self.stalled = False
        if self.world.chance.random() < 0.5 and self.fleet is not None:
            self._sweep()
        unsent, self._unsent = self._unsent, []
        for outcome, answered in unsent:
            self._answer(outcome, answered)
        backlog, self._backlog = self._backlog, []
        for work, answered in backlog:
            self.orchestrator.receive_at(self, work, answered)

    def cut_from_database(self, for_s: float) -> None:
        if self.standing is not None and self.up:
            self.standing.stir()
            self.store.is_cut = True
            self.world.after(for_s, self.mend_database)

    def mend_database(self) -> None:
        if self.store.is_cut:
            self.store.is_cut = False
            if self.standing is not None:
                self.standing.stir()

    # Requests

    def receive(self, work: Work, answered: Answered) -> None:
        """Takes a request that this process answers itself."""
        if not self.up:
            answered(NOBODY_LISTENS)
        elif self.stalled:
            self._backlog.append((work, answered))
        elif self.fleet is None or not self._may_promise():
            answered(UNREACHABLE if self.standing is not None else NOBODY_LISTENS)
        else:
            outcome = self.do(work)
            if self.freezes_for_s is not None and self.store.commits > self._commits_before and self.up:
                self._freeze_before_the_answer(outcome, answered)
            else:
                self._answer(outcome, answered)

    def _freeze_before_the_answer(self, outcome: Any, answered: Answered) -> None:
        for_s, self.freezes_for_s = self.freezes_for_s, None
        assert for_s is not None
        self.world.counts["frozen between commit and answer"] += 1
        self._unsent.append((outcome, answered))
        self.stall(for_s)

    def _may_promise(self) -> bool:
        return self.standing is None or self.standing.may_promise()

    def _answer(self, outcome: Any, answered: Answered) -> None:
        """Sends the answer if the lease still allows it: work takes time, and it may have ended meanwhile."""
        if self.standing is None or isinstance(outcome, (LinkDown, StoreUnavailable)):
            answered(outcome)
        elif not self.standing.may_promise():
            self.world.counts["answer held back in doubt"] += 1
            answered(UNREACHABLE)
        else:
            answered(self.standing.promise(outcome))

    def freeze_after_commit(self, for_s: float) -> None:
        self.freezes_for_s, self._commits_before = for_s, self.store.commits

    def do(self, work: Work) -> Any:
        """Does a piece of work, whether for a request or by itself."""
        orchestrator = self.orchestrator
        orchestrator.working = self
        outcome: Any
        try:
            outcome = work()
        except IllegalTransition as error:
            raise Violation("S13", str(error)) from error
        except FleetError as error:
            outcome = error
        except SimCrash:
            self.crash()
            outcome = UNREACHABLE
        orchestrator.sender = None
        if self.serving.woken:
            self.serving.serve_woken()
        orchestrator.after_step(self)
        return outcome

    def after_step(self) -> None:
        self.orchestrator.after_step(self)

    def alive(self) -> Fleet:
        assert self.fleet is not None
        return self.fleet

    # Timers

    def _plan_sweep(self, life: int) -> None:
        due, pause_s = self.store.view.next_backoff_at(), self._sweep_s
        if due is not None and self.fleet is not None:
            pause_s = min(pause_s, max(0.01, due - self.fleet.clock.now()))
        self.world.after(pause_s, lambda: self._sweep_again(life))

    def _sweep_again(self, life: int) -> None:
        if self.fleet is None or self.life != life:
            return
        if not self.stalled:
            self._sweep()
        if self.fleet is not None:
            self._plan_sweep(life)

    def _sweep(self) -> None:
        errors = FAILURES.errors = []
        fleet = self.alive()
        self.do(lambda: drive(sweep_once(fleet)))
        if self.fleet is fleet:
            outcome = self.do(lambda: drive(watch_quotas(fleet)))
            errors += [outcome] if isinstance(outcome, FleetError) else []
        for error in errors:
            if not isinstance(error, StoreUnavailable):
                raise Violation("S13", f"the health check failed: {error!r}") from error

    def _plan_telling(self, life: int, wait_s: float | None = None) -> None:
        if self._telling_of != life:
            self._telling_of = life
            self._tellings += 1
            wait_s = TELLS_AFTER_S[self._tellings % len(TELLS_AFTER_S)] if wait_s is None else wait_s
            self.world.after(wait_s, lambda: self._tell_dependents(life))

    def _tell_dependents(self, life: int) -> None:
        fleet = self.fleet
        if fleet is None or self.life != life:
            return
        self._telling_of = 0
        if self.stalled:
            self._plan_telling(life, 1.0)
            return
        outcome = self.do(lambda: drive(tell_dependents_once(fleet)))
        if isinstance(outcome, StoreUnavailable):
            self._plan_telling(life, self._sweep_s)
        elif outcome is True:
            self.world.counts["told of an end by several steps"] += 1
            self._plan_telling(life)

    def _plan_pings(self, life: int) -> None:
        self.world.after(self.policy.ping_interval_s, lambda: self._ping_all(life))

    def _ping_all(self, life: int) -> None:
        if self.life != life or self.fleet is None:
            return
        if not self.stalled:
            self.do(lambda: self.serving.ping_all(self.orchestrator.heard))
        self._plan_pings(life)

    def _place_after(self, wait_s: float, life: int) -> None:
        self.world.after(max(0.0, wait_s), lambda: self._place_again(life))

    def _place_again(self, life: int) -> None:
        fleet = self.fleet
        if fleet is None or self.life != life:
            return
        if self.stalled:
            self._place_after(1.0, life)
            return
        outcome = self.do(
            lambda: drive(fleet.act(lambda transaction: transaction.tx.delete_setting(HELD_UNTIL)))
        )
        if isinstance(outcome, StoreUnavailable):
            self._place_after(1.0, life)
