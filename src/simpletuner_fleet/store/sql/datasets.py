"""Stores datasets, what people have uploaded for them, and which jobs name them, in any SQL database."""

from collections.abc import Collection, Mapping, Sequence

from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.jobs.states import ENDED
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.sql.database import Database, Row
from simpletuner_fleet.store.sql.jobs import NOTHING
from simpletuner_fleet.store.sql.statements import listed

_COLUMNS = (
    *("id", "name", "files", "total_bytes", "manifest_bytes", "created_at", "created_by", "owner"),
    *("team", "visibility"),
)
_DATASET = f"SELECT {', '.join(_COLUMNS)} FROM datasets"

DATASET = f"{_DATASET} WHERE id = :id AND ready = 1"
DATASETS = f"{_DATASET} WHERE ready = 1 ORDER BY created_at DESC, id"
UNREADY = "SELECT id FROM datasets WHERE ready = 0 AND created_at < :before ORDER BY created_at, id"
BEGIN_DATASET = (
    f"INSERT INTO datasets ({', '.join(_COLUMNS)}, ready)"
    f" VALUES ({', '.join(f':{column}' for column in _COLUMNS)}, 0) ON CONFLICT (id) DO NOTHING"
)
FINISH_DATASET = (
    "UPDATE datasets SET ready = 1, name = :name WHERE id = :id AND (ready = 1 OR :count ="
    " (SELECT count(*) FROM dataset_files WHERE dataset_id = :id))"
)
HIDE_DATASET = "UPDATE datasets SET ready = 0 WHERE id = :id"
ADD_FILE = (
    "INSERT INTO dataset_files (dataset_id, sha256, size) VALUES (:dataset_id, :sha256, :size)"
    " ON CONFLICT DO NOTHING"
)
FILE_SIZE = "SELECT size FROM dataset_files WHERE dataset_id = :dataset_id AND sha256 = :sha256"
OBJECT_SIZE = "SELECT size FROM dataset_objects WHERE sha256 = :sha256"
CLAIMED_SIZE = (
    f"{OBJECT_SIZE} AND (EXISTS (SELECT 1 FROM dataset_claims WHERE sha256 = :sha256 AND owner = :owner)"
    " OR EXISTS (SELECT 1 FROM dataset_files JOIN datasets ON datasets.id = dataset_files.dataset_id"
    " WHERE dataset_files.sha256 = :sha256 AND datasets.ready = 1"
    " AND (datasets.visibility = 'everybody' OR datasets.owner = :owner)))"
)
ALL_BYTES = "SELECT coalesce(sum(size), 0) FROM dataset_objects"
UNUSED = (
    "SELECT sha256 FROM dataset_objects WHERE unused_since IS NOT NULL AND unused_since < :before"
    " ORDER BY unused_since, sha256 LIMIT :limit"
)
# What a dataset names stays in use; what waits for one waits anew.
OWN = (
    "INSERT INTO dataset_objects (sha256, size, unused_since) VALUES (:sha256, :size, :at)"
    " ON CONFLICT (sha256) DO UPDATE SET unused_since = excluded.unused_since"
    " WHERE dataset_objects.unused_since IS NOT NULL"
)
CLAIM = "INSERT INTO dataset_claims (sha256, owner) VALUES (:sha256, :owner) ON CONFLICT DO NOTHING"
MARK_USED = "UPDATE dataset_objects SET unused_since = NULL WHERE sha256 = :sha256"
SOME_FILES = "SELECT sha256 FROM dataset_files WHERE dataset_id = :id ORDER BY sha256 LIMIT :limit"
DELETE_FILE = "DELETE FROM dataset_files WHERE dataset_id = :id AND sha256 = :sha256"
MARK_FREED = (
    "UPDATE dataset_objects SET unused_since = :at WHERE sha256 = :sha256 AND unused_since IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM dataset_files WHERE sha256 = :sha256)"
)
DELETE_DATASET = "DELETE FROM datasets WHERE id = :id AND ready = 0"
DISOWN = "DELETE FROM dataset_objects WHERE sha256 = :sha256"
DISCLAIM = "DELETE FROM dataset_claims WHERE sha256 = :sha256"
NAME_DATASET = (
    "INSERT INTO job_datasets (dataset_id, job_id) VALUES (:dataset_id, :job_id) ON CONFLICT DO NOTHING"
)
JOB_NAMING = (
    "SELECT jobs.id FROM job_datasets JOIN jobs ON jobs.id = job_datasets.job_id"
    f" WHERE job_datasets.dataset_id = :id AND jobs.state NOT IN ({listed(ENDED)})"
    " ORDER BY jobs.seq LIMIT 1"
)


class DatasetsView:
    _db: Database

    def dataset(self, dataset_id: str) -> Dataset | None:
        row = self._db.row(DATASET, {"id": dataset_id})
        return None if row is None else _dataset_of(row)

    def datasets(self) -> list[Dataset]:
        return [_dataset_of(row) for row in self._db.rows(DATASETS, NOTHING)]

    def unready_datasets(self, before: float) -> list[str]:
        return [row[0] for row in self._db.rows(UNREADY, {"before": float(before)})]

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        for dataset_id in dataset_ids:
            row = self._db.row(FILE_SIZE, {"dataset_id": dataset_id, "sha256": sha256})
            if row is not None:
                size: int = row[0]
                return size
        return None

    def dataset_objects(self, shas: Collection[str], claimant: str | None = None) -> dict[str, int]:
        statement, owner = (OBJECT_SIZE, {}) if claimant is None else (CLAIMED_SIZE, {"owner": claimant})
        rows = ((sha256, self._db.row(statement, {"sha256": sha256, **owner})) for sha256 in shas)
        return {sha256: row[0] for sha256, row in rows if row is not None}

    def dataset_bytes(self) -> int:
        row = self._db.row(ALL_BYTES, NOTHING)
        return int(row[0]) if row else 0

    def unused_dataset_objects(self, before: float, limit: int) -> list[str]:
        return [row[0] for row in self._db.rows(UNUSED, {"before": float(before), "limit": limit})]

    def job_naming(self, dataset_id: str) -> str | None:
        row = self._db.row(JOB_NAMING, {"id": dataset_id})
        return None if row is None else str(row[0])


class DatasetsTx(DatasetsView):
    def begin_dataset(self, dataset: Dataset) -> None:
        self._db.run(BEGIN_DATASET, _params(dataset))

    def add_dataset_files(self, dataset_id: str, files: Mapping[str, int]) -> None:
        rows = [{"dataset_id": dataset_id, "sha256": sha256, "size": size} for sha256, size in files.items()]
        self._db.many(ADD_FILE, rows)
        self._db.many(MARK_USED, [{"sha256": sha256} for sha256 in files])

    def finish_dataset(self, dataset_id: str, name: str, files: int) -> bool:
        params = {"id": dataset_id, "name": storable(name), "count": files}
        return bool(self._db.run(FINISH_DATASET, params))

    def hide_dataset(self, dataset_id: str) -> None:
        self._db.run(HIDE_DATASET, {"id": dataset_id})

    def drop_dataset_files(self, dataset_id: str, at: float, limit: int) -> int:
        rows = self._db.rows(SOME_FILES, {"id": dataset_id, "limit": limit})
        self._db.many(DELETE_FILE, [{"id": dataset_id, "sha256": row[0]} for row in rows])
        self._db.many(MARK_FREED, [{"sha256": row[0], "at": float(at)} for row in rows])
        if len(rows) < limit:
            self._db.run(DELETE_DATASET, {"id": dataset_id})
        return len(rows)

    def own_dataset_object(self, sha256: str, size: int, at: float, owner: str = "") -> None:
        self._db.run(OWN, {"sha256": sha256, "size": size, "at": float(at)})
        self._db.run(CLAIM, {"sha256": sha256, "owner": owner})

    def disown_dataset_objects(self, shas: Collection[str]) -> None:
        rows = [{"sha256": sha256} for sha256 in shas]
        self._db.many(DISOWN, rows)
        self._db.many(DISCLAIM, rows)

    def name_datasets(self, job_id: str, dataset_ids: Collection[str]) -> None:
        self._db.many(NAME_DATASET, [{"dataset_id": id, "job_id": job_id} for id in dataset_ids])


def _params(dataset: Dataset) -> dict[str, object]:
    return {
        "id": dataset.id,
        "name": storable(dataset.name),
        "files": dataset.files,
        "total_bytes": dataset.total_bytes,
        "manifest_bytes": dataset.manifest_bytes,
        "created_at": dataset.created_at,
        "created_by": storable(dataset.created_by),
        "owner": dataset.owner,
        "team": dataset.team,
        "visibility": dataset.visibility.value,
    }


def _dataset_of(row: Row) -> Dataset:
    """Raises UnreadableRow."""
    fields = dict(zip(_COLUMNS, row, strict=True))
    try:
        return Dataset(**{**fields, "visibility": Visibility(fields["visibility"])})
    except ValueError as error:
        raise UnreadableRow(f"The dataset {row[0]} cannot be read: {error}") from error
