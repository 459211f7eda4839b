"""The memory store with a crash switch and a witness of every commit."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from msgspec import Struct, field

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.jobs.job import Attempt, Job
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
    audit: list[AuditEntry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.attempts or self.workers or self.audit)


class SimStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.crash_at: CrashPoint | None = None
        self.watch: Callable[[Changes], None] = lambda changes: None
        self._audited = 0

    @property
    def view(self) -> View:
        return self._view

    def fail_commits(self, count: int) -> None:
        self.fail_next_commits(count)

    async def write(self, step: Callable[[Tx], T]) -> T:
        changes = Changes()

        def watched(tx: Tx) -> T:
            result = step(tx)
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

    def _gather(self, changes: Changes) -> None:
        tables = self._tables
        kinds: dict[Any, tuple[dict[str, list[Any]], dict[str, Any]]] = {
            "set_job": (changes.jobs, tables.jobs),
            "set_attempt": (changes.attempts, tables.attempts),
            "set_worker": (changes.workers, tables.workers),
        }
        for setter, key, old in tables.journal:
            kind = kinds.get(setter.__name__)
            if kind is not None:
                kind[0].setdefault(key, []).append(old)
        for chains, rows in kinds.values():
            for key, chain in chains.items():
                chain.append(rows.get(key))
        changes.audit = tables.audit[self._audited :]
