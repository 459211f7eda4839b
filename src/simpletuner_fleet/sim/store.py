"""The memory store with a crash switch and a witness of every commit."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct, field

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import Tx, View
from simpletuner_fleet.store.memory.store import MemoryStore

T = TypeVar("T")
CrashPoint = Literal["before commit", "after commit"]


class SimCrash(BaseException):
    """The orchestrator's process is gone, between any two lines. Nobody may catch it but the simulator."""


class Changes(Struct):
    """The changes of one transaction: each row's chain of values, the old one first, the final one last."""

    jobs: dict[str, list[Job | None]] = field(default_factory=dict)
    attempts: dict[str, list[Attempt | None]] = field(default_factory=dict)
    workers: dict[str, list[Worker | None]] = field(default_factory=dict)
    publications: dict[str, list[Publication | None]] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.attempts or self.workers or self.publications or self.audit)


class StepBrokenOff(BaseException):
    """The step needs what memory does not hold: it will be run again from its beginning."""


class InterruptingTx:
    """A transaction that breaks a step off at one of its calls, as a store does that needs its connection for it."""

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
        self._audited = 0

    @property
    def view(self) -> View:
        return self._view

    def fail_commits(self, count: int) -> None:
        self.fail_next_commits(count)

    async def write(self, step: Callable[[Tx], T]) -> T:
        changes = Changes()

        def watched(tx: Tx) -> T:
            result = self._run(step, tx)
            self._gather(changes)
            if self.crash_at == "before commit" and changes:
                raise SimCrash
            return result

        result = await super().write(watched)
        self._audited = len(self._tables.audit)
        if changes:
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
                self._tables.take_back()
        return step(tx)

    def _gather(self, changes: Changes) -> None:
        tables = self._tables
        kinds: dict[Any, tuple[dict[str, list[Any]], dict[str, Any]]] = {
            "set_job": (changes.jobs, tables.jobs),
            "set_attempt": (changes.attempts, tables.attempts),
            "set_worker": (changes.workers, tables.workers),
            "set_publication": (changes.publications, tables.publications),
        }
        for setter, key, old in tables.journal:
            kind = kinds.get(setter.__name__)
            if kind is not None:
                kind[0].setdefault(key, []).append(old)
        for chains, rows in kinds.values():
            for key, chain in chains.items():
                chain.append(rows.get(key))
        changes.audit = tables.audit[self._audited :]
