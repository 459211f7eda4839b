"""Keeps counts beside the rows, so that no table has to be scanned to know how many rows there are."""

from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database

JOBS = "job"
"""By state."""
AUDIT = "audit"
"""Entries by event type."""
STORED_BY_JOB, STORED_BY_OWNER, STORED_BY_TEAM = "stored by job", "stored by owner", "stored by team"
"""Bytes of the files that jobs have stored; what two jobs have stored counts for either."""
STORED = "stored"
"""Bytes of all of them together, each content once; its key is empty."""


class TallyView:
    _db: Database

    def _tally(self, kind: str) -> dict[str, int]:
        return dict(self._db.rows(sql.TALLIES, {"kind": kind}))

    def _tally_of(self, kind: str, key: str) -> int:
        row = self._db.row(sql.TALLY, {"kind": kind, "key": key})
        return int(row[0]) if row else 0


def recount_jobs(db: Database) -> None:
    """Counts jobs at the start, in case somebody has edited them by hand. It writes only if a count is wrong."""
    counted: dict[str, int] = dict(db.rows(sql.RECOUNT_JOBS, {}))
    if counted != dict(db.rows(sql.TALLIES, {"kind": JOBS})):
        db.run(sql.FORGET_TALLY, {"kind": JOBS})
        db.many(sql.ADD_TO_TALLY, [{"kind": JOBS, "key": key, "n": n} for key, n in counted.items()])


def count_stored(db: Database, job_id: str, size: int, *, of_content: int) -> None:
    """Counts what a job has stored more, or less; `of_content` is how much of that no other job has stored."""
    if size:
        db.run(sql.ADD_STORED_BYTES, {"job_id": job_id, "size": size})
    count_content(db, of_content)


def count_stored_file(db: Database, job_id: str, sha256: str, size: int) -> None:
    """Counts a file that a job has stored just now, in one statement: each that arrives costs one."""
    if size:
        db.run(sql.ADD_STORED_FILE, {"job_id": job_id, "sha256": sha256, "size": size})


def count_content(db: Database, size: int) -> None:
    if size:
        db.run(sql.ADD_TO_TALLY, {"kind": STORED, "key": "", "n": size})


def count_deleted_job(db: Database, job_id: str) -> None:
    """Takes off what a job has stored that is about to be deleted with its rows."""
    stored = db.row(sql.TALLY, {"kind": STORED_BY_JOB, "key": job_id})
    if stored is None:
        return
    alone = db.row(sql.HELD_BY_NO_OTHER, {"id": job_id})
    count_stored(db, job_id, -int(stored[0]), of_content=-int(alone[0]) if alone else 0)
    db.run(sql.FORGET_TALLY_OF, {"kind": STORED_BY_JOB, "key": job_id})


def recount_stored(db: Database) -> None:
    """Counts what is stored by the rows of all files, as after somebody has edited them by hand."""
    db.run(sql.FORGET_STORED, {})
    db.run(sql.COUNT_STORED, {})
