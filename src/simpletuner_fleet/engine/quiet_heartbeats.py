"""Answers heartbeats that report and find nothing new from memory, without a transaction.

Most heartbeats of a fleet are of this kind. The answer to the last one is valid as long as the worker reports the same,
its row is the one by which that answer was decided, it holds nothing, and everything that was ever changed is stored.
"""

from typing import Protocol, cast

from msgspec import Struct

from simpletuner_fleet.core.workers.heartbeat import HeartbeatFacts
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.ports import Store
from simpletuner_fleet.protocol.messages import HeartbeatAnswer


class KnowsWhatIsStored(Protocol):
    @property
    def is_stored(self) -> bool:
        """Tells whether all that memory holds is in the database, with nothing on its way there."""
        ...


class QuietHeartbeat(Struct, frozen=True):
    """Remembers a heartbeat that changed nothing, and whose answer asked nothing of the worker."""

    worker: Worker
    incarnation: str
    facts: HeartbeatFacts
    answer: HeartbeatAnswer


class QuietHeartbeats:
    """Keeps the last quiet heartbeat of each worker."""

    def __init__(self, index: FleetIndex, store: Store) -> None:
        self._index = index
        knows = hasattr(store, "is_stored")
        self._store = cast(KnowsWhatIsStored, store) if knows else None
        self._by_worker: dict[str, QuietHeartbeat] = {}

    def repeated(self, worker_id: str, incarnation: str, facts: HeartbeatFacts) -> QuietHeartbeat | None:
        """Returns the last quiet heartbeat, if this one is the same in all that counts; None if it must be decided."""
        last = self._by_worker.get(worker_id)
        if last is None or self._store is None or not self._store.is_stored:
            return None
        if idle_row(self._index, worker_id) is not last.worker:
            del self._by_worker[worker_id]
            return None
        if last.incarnation != incarnation or last.facts != facts:
            return None
        return last

    def note(
        self,
        worker_id: str,
        incarnation: str,
        facts: HeartbeatFacts,
        answer: HeartbeatAnswer,
        decided_by: Worker | None,
    ) -> None:
        """Remembers a heartbeat and its answer, after it has been stored.

        `decided_by` is the worker's `idle_row` in the very step that decided it; another step of the same commit may
        have changed it since.
        """
        worker = decided_by if idle_row(self._index, worker_id) is decided_by else None
        if worker is None or worker.legacy or facts.held or facts.leaving or not answer.is_empty:
            self._by_worker.pop(worker_id, None)
        else:
            self._by_worker[worker_id] = QuietHeartbeat(worker, incarnation, facts, answer)

    def forget(self, worker_id: str) -> None:
        self._by_worker.pop(worker_id, None)


def idle_row(index: FleetIndex, worker_id: str) -> Worker | None:
    """Returns the row of a reachable worker that holds nothing; the very same object until it changes."""
    if index.unplaced or worker_id not in index.reachable or index.roster.has_attempts(worker_id):
        return None
    return index.roster.workers.get(worker_id)
