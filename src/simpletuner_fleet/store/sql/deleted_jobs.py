"""Stores jobs whose record was deleted, and what their attempts have used, in any SQL database."""

from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.jobs.states import ENDED
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store.rows.jobs import DELETED_JOBS
from simpletuner_fleet.store.sql.database import Database
from simpletuner_fleet.store.sql.statements import listed
from simpletuner_fleet.store.sql.tallies import count_deleted_job

_COLUMNS = ", ".join(DELETED_JOBS.columns)
_DELETED = f"SELECT {_COLUMNS} FROM deleted_jobs"
_ONE = f"{_DELETED} WHERE id = :id"
_WITH_FILES = f"{_DELETED} WHERE files_left = 1 ORDER BY deleted_at, id LIMIT :limit"
_SINCE = f"{_DELETED} WHERE deleted_at > :at ORDER BY deleted_at, id"
_ADD = (
    f"INSERT INTO deleted_jobs ({_COLUMNS})"
    f" VALUES ({', '.join(f':{column}' for column in DELETED_JOBS.columns)})"
)
_KEEP_WHAT_WAS_SPENT = (
    "INSERT INTO spent_attempts (id, owner, team, visibility, config_name, gpu_kind, gpus, accepted_at, ended_at,"
    " hourly_micros, rates) SELECT attempts.id, jobs.owner, jobs.team, jobs.visibility, jobs.config_name,"
    " attempts.gpu_kind, attempts.gpus, attempts.accepted_at, attempts.ended_at, attempts.hourly_micros, attempts.rates"
    " FROM attempts JOIN jobs ON jobs.id = attempts.job_id WHERE attempts.job_id = :id"
    " AND attempts.accepted_at IS NOT NULL AND attempts.ended_at IS NOT NULL"
)
_DELETE_APPROVAL = "DELETE FROM approvals WHERE job_id = :id"
_DELETE_JOB = f"DELETE FROM jobs WHERE id = :id AND state IN ({listed(ENDED)})"
_FILES_ARE_GONE = "UPDATE deleted_jobs SET files_left = 0, attempts = '[]' WHERE id = :id"


class DeletedJobsView:
    _db: Database

    def deleted_job(self, job_id: str) -> DeletedJob | None:
        row = self._db.row(_ONE, {"id": job_id})
        return None if row is None else DELETED_JOBS.row(row)

    def deleted_jobs_with_files(self, limit: int) -> list[DeletedJob]:
        return DELETED_JOBS.rows(self._db.rows(_WITH_FILES, {"limit": limit}))

    def deleted_jobs_since(self, at: float) -> list[DeletedJob]:
        return DELETED_JOBS.rows(self._db.rows(_SINCE, {"at": float(at)}))


class DeletedJobsTx(DeletedJobsView):
    def delete_job(self, deleted: DeletedJob) -> None:
        named = {"id": deleted.id}
        self._db.run(_KEEP_WHAT_WAS_SPENT, named)
        self._db.run(_DELETE_APPROVAL, named)
        count_deleted_job(self._db, deleted.id)
        if not self._db.run(_DELETE_JOB, named):  # the rest of its rows go with it
            raise ConcurrentChange(f"there is no job {deleted.id} that has ended")
        self._db.run(_ADD, dict(zip(DELETED_JOBS.columns, DELETED_JOBS.values(deleted), strict=True)))

    def files_are_gone(self, job_id: str) -> None:
        self._db.run(_FILES_ARE_GONE, {"id": job_id})
