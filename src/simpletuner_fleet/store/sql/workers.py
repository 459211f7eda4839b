"""Reads workers from any SQL database."""

from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.store.rows.text import name_key
from simpletuner_fleet.store.rows.workers import WORKERS
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database, Params
from simpletuner_fleet.store.sql.jobs import NOTHING


class WorkersView:
    _db: Database

    def worker(self, worker_id: str) -> Worker | None:
        return self._worker(sql.WORKER, {"id": worker_id})

    def _worker(self, statement: str, params: Params) -> Worker | None:
        row = self._db.row(statement, params)
        return None if row is None else WORKERS.row(row)

    def worker_by_token_hash(self, token_hash: str) -> Worker | None:
        return self._worker(sql.WORKER_BY_TOKEN_HASH, {"token_hash": token_hash})

    def worker_by_name(self, name: str) -> Worker | None:
        return self._worker(sql.WORKER_BY_NAME, {"name_key": name_key(name)})

    def workers(self) -> list[Worker]:
        return WORKERS.rows(self._db.rows(sql.WORKERS, NOTHING))

    def workers_checked(self) -> list[Worker]:
        """Returns the workers with every field checked; it is for the start only."""
        return WORKERS.checked_rows(self._db.rows(sql.WORKERS, NOTHING))

    def offline_workers_before(self, at: float) -> list[Worker]:
        return WORKERS.rows(self._db.rows(sql.OFFLINE_WORKERS, {"at": float(at)}))
