"""Extends the memory store with a crash switch and a hook for every commit."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct, field

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import RowObserver, Tx, View
from simpletuner_fleet.sim.world import Violation
from simpletuner_fleet.store.memory.store import MemoryStore
from simpletuner_fleet.store.memory.tables import Tables
from simpletuner_fleet.store.rows.live_rows import NobodyWatches

T = TypeVar("T")
CrashPoint = Literal["before commit", "after commit"]
Backup = dict[str, Any]
NOT_BACKED_UP = frozenset({"observer", "journal"})
CHANGES_BY_SETTER: dict[Any, str] = {
    Tables.set_job: "jobs",
    Tables.set_attempt: "attempts",
    Tables.set_worker: "workers",
    Tables.set_publication: "publications",
}


class SimCrash(BaseException):
    """The death of the orchestrator's process, which may come between any two lines.

    Nobody may catch it but the simulator.
    """


class Changes(Struct):
    """Holds the changes of one transaction: each row's chain of values, the old one first, the final one last."""

    jobs: dict[str, list[Job | None]] = field(default_factory=dict)
    attempts: dict[str, list[Attempt | None]] = field(default_factory=dict)
    workers: dict[str, list[Worker | None]] = field(default_factory=dict)
    publications: dict[str, list[Publication | None]] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)


class StepBrokenOff(BaseException):
    """Breaks off a step that needs what memory does not hold: it will be run again from its start."""


class InterruptingTx:
    """Breaks a step off at one of its calls, as a store does that needs its connection for that call."""

    def __init__(self, tx: Tx, calls_left: int) -> None:
        self._tx = tx
        self._calls_left = calls_left

    def __getattr__(self, name: str) -> Any:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise StepBrokenOff
        return getattr(self._tx, name)


class SimStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.crash_at: CrashPoint | None = None
        self.watch: Callable[[Changes], None] = lambda changes: None
        self.breaks_off_after: Callable[[], int | None] = lambda: None
        """Asked at every step: after how many calls it is broken off, if at all."""
        self.view: View = self._view
        self.lease: Lease | None = None
        """Who leads, where there are several orchestrators."""
        self.terms: list[int] = []
        self.disturbed = 0
        """How often rows may have changed, or were changed and taken back."""
        self._audited = 0

    def fail_commits(self, count: int) -> None:
        self.fail_next_commits(count)

    def take_lease(self, lease: Lease) -> None:
        if self.terms and lease.term <= self.terms[-1]:
            raise Violation("T2", f"term {lease.term} began after {self.terms[-1]}")
        self.terms.append(lease.term)
        self.lease = lease

    def write_now(self, step: Callable[[Tx], T]) -> T:
        changes: Changes | None = None

        def watched(tx: Tx) -> T:
            nonlocal changes
            result = self._run(step, tx)
            if self._tables.journal:
                changes = self._gathered()
                if changes and self.crash_at == "before commit":
                    raise SimCrash
            return result

        try:
            result = super().write_now(watched)
        except BaseException:
            self.disturbed += 1
            raise
        if changes:
            self._audited = len(self._tables.audit)
            self.disturbed += 1
            self.watch(changes)
            if self.crash_at:
                raise SimCrash
        return result

    def _run(self, step: Callable[[Tx], T], tx: Tx) -> T:
        calls = self.breaks_off_after()
        if calls is not None:
            try:
                return step(cast(Tx, InterruptingTx(tx, calls)))
            except StepBrokenOff:
                self.disturbed += 1
                self._tables.take_back()
        return step(tx)

    def _gathered(self) -> Changes | None:
        """Returns the changes; None where nothing was written that is checked: heartbeats, settings, counters."""
        tables, changes = self._tables, Changes()
        watched: list[tuple[dict[str, Any], str, list[Any]]] = []
        journal: Any = tables.journal
        for setter, key, old in journal:
            kind = CHANGES_BY_SETTER.get(setter.__func__)
            if kind is None:
                continue
            chains = getattr(changes, kind)
            chain = chains.get(key)
            if chain is None:
                chains[key] = chain = []
                watched.append((getattr(tables, kind), key, chain))
            chain.append(old)
        if len(tables.audit) > self._audited:
            changes.audit = tables.audit[self._audited :]
        elif not watched:
            return None
        for rows, key, chain in watched:
            chain.append(rows.get(key))
        return changes

    # Backups

    def backup(self) -> Backup:
        return {
            name: _copied(rows) for name, rows in vars(self._tables).items() if name not in NOT_BACKED_UP
        } | {"lease": self.lease}

    def restore(self, backup: Backup, fix_up: Callable[[Tx], None]) -> None:
        """Restores the rows as they were, amended before anybody uses them."""
        for name, rows in backup.items():
            if name != "lease":
                setattr(self._tables, name, _copied(rows))
        self.lease = backup["lease"]
        self._tables.observer = NobodyWatches()
        fix_up(self._tx)
        self._tables.keep()
        self._audited = len(self._tables.audit)
        self.disturbed += 1


def _copied(rows: Any) -> Any:
    """Returns a copy of the containers alone: rows are never changed, only replaced."""
    if isinstance(rows, defaultdict):
        return defaultdict(rows.default_factory, {key: _copied(held) for key, held in rows.items()})
    if isinstance(rows, dict):
        return {key: _copied(held) for key, held in rows.items()}
    return rows.copy() if isinstance(rows, list | set) else rows


class ProcessStore:
    """Gives one process access to the database, with the fence of its term in every write."""

    def __init__(self, shared: SimStore) -> None:
        self.shared = shared
        self.view = shared.view
        self.term: int | None = None
        self.is_cut = False
        self.commits = 0

    def observe(self, observer: RowObserver) -> None:
        """Watches the rows, which all processes share here: one that cannot write takes them from none that can."""
        if not self.is_cut and self._may_write:
            self.shared.observe(observer)

    def find_trouble(self) -> str | None:
        return None

    def reading_for_s(self) -> float:
        return 0.0

    @property
    def is_stored(self) -> bool:
        return self.shared.is_stored

    async def write(self, step: Callable[[Tx], T]) -> T:
        if self.is_cut:
            raise StoreUnavailable
        if not self._may_write:
            raise NotLeader
        self.commits += 1
        return self.shared.write_now(step)

    @property
    def _may_write(self) -> bool:
        lease = self.shared.lease
        return self.term is None or (lease is not None and lease.term == self.term)

    async def read(self, look: Callable[[View], T]) -> T:
        if self.is_cut:
            raise StoreUnavailable
        return look(self.view)

    async def scan(self, look: Callable[[View], T]) -> T:
        return await self.read(look)

    async def close(self) -> None:
        """Does nothing: there is nothing to release."""
