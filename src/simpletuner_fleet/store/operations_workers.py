"""Workers, over any SQL database."""

from collections.abc import Sequence

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.worker import Worker
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store import statements as sql
from simpletuner_fleet.store.database import Database, Params
from simpletuner_fleet.store.failures import Duplicate
from simpletuner_fleet.store.operations_jobs import NOTHING
from simpletuner_fleet.store.rows_workers import worker_of, worker_params
from simpletuner_fleet.store.text import name_key


class WorkersView:
    _db: Database

    def worker(self, worker_id: str) -> Worker | None:
        return self._worker(sql.WORKER, {"id": worker_id})

    def _worker(self, statement: str, params: Params) -> Worker | None:
        row = self._db.row(statement, params)
        return None if row is None else worker_of(row)

    def worker_by_token_hash(self, token_hash: str) -> Worker | None:
        return self._worker(sql.WORKER_BY_TOKEN_HASH, {"token_hash": token_hash})

    def worker_by_name(self, name: str) -> Worker | None:
        return self._worker(sql.WORKER_BY_NAME, {"name_key": name_key(name)})

    def workers(self) -> list[Worker]:
        return [worker_of(row) for row in self._db.rows(sql.WORKERS, NOTHING)]

    def offline_workers_before(self, at: float) -> list[Worker]:
        return [worker_of(row) for row in self._db.rows(sql.OFFLINE_WORKERS, {"at": float(at)})]


class WorkersTx(WorkersView):
    def add_worker(self, worker: Worker) -> None:
        if self._db.run(sql.ADD_WORKER, worker_params(worker)):
            return
        namesake = self.worker_by_name(worker.name)
        if namesake is not None and namesake.id != worker.id:
            raise _name_taken(worker)
        raise ConcurrentChange(f"there is a worker {worker.id} or one with its token already")

    def save_worker(self, worker: Worker) -> None:
        try:
            saved = self._db.run(sql.SAVE_WORKER, worker_params(worker))
        except Duplicate as duplicate:
            if "name_key" in str(duplicate):
                raise _name_taken(worker) from None
            raise
        if not saved:
            raise ConcurrentChange(f"worker {worker.id} is no longer at version {worker.version}")

    def delete_worker(self, worker_id: str) -> None:
        self._db.run(sql.DELETE_WORKER, {"id": worker_id})

    def touch_heartbeats(self, heard: Sequence[tuple[str, float]]) -> None:
        self._db.many(sql.TOUCH_HEARTBEAT, [{"id": worker_id, "at": at} for worker_id, at in heard])

    def note_message_seq(self, worker_id: str, seq: int) -> None:
        self._db.run(sql.NOTE_MESSAGE_SEQ, {"id": worker_id, "seq": seq})


def _name_taken(worker: Worker) -> NameTaken:
    return NameTaken(f"A living worker already has the name '{worker.name}'.")
