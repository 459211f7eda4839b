"""Stores publications in any SQL database."""

import msgspec

from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.store.rows.documents import PUBLICATIONS
from simpletuner_fleet.store.rows.text import storable_json
from simpletuner_fleet.store.sql.database import Database

_ONE = "SELECT document FROM publications WHERE job_id = :job_id"
_DUE = (
    "SELECT job_id, document FROM publications WHERE state = 'due' AND not_before <= :now "
    "ORDER BY not_before, job_id LIMIT :limit"
)
_PUT = (
    "INSERT INTO publications (job_id, state, not_before, document) "
    "VALUES (:job_id, :state, :not_before, :document) ON CONFLICT (job_id) DO UPDATE SET "
    "state = excluded.state, not_before = excluded.not_before, document = excluded.document"
)


class PublicationsView:
    _db: Database

    def publication(self, job_id: str) -> Publication | None:
        row = self._db.row(_ONE, {"job_id": job_id})
        return None if row is None else PUBLICATIONS.row(job_id, row[0])

    def due_publications(self, now: float, limit: int) -> list[Publication]:
        return PUBLICATIONS.rows(self._db.rows(_DUE, {"now": float(now), "limit": limit}))


class PublicationsTx(PublicationsView):
    def put_publication(self, publication: Publication) -> None:
        document = msgspec.json.encode(storable_json(msgspec.to_builtins(publication))).decode()
        self._db.run(
            _PUT,
            {
                "job_id": publication.job_id,
                "state": str(publication.state),
                "not_before": publication.not_before,
                "document": document,
            },
        )
