"""Counts kept beside the rows, so that nobody has to walk a table to know how many there are."""

from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database

JOBS = "job"
"""By state."""
AUDIT = "audit"
"""Entries by event type."""


class TallyView:
    _db: Database

    def _tally(self, kind: str) -> dict[str, int]:
        return dict(self._db.rows(sql.TALLIES, {"kind": kind}))


def recount_jobs(db: Database) -> None:
    """Counts them at the start, in case somebody has edited jobs by hand. Writes only what is wrong."""
    counted: dict[str, int] = dict(db.rows(sql.RECOUNT_JOBS, {}))
    if counted != dict(db.rows(sql.TALLIES, {"kind": JOBS})):
        db.run(sql.FORGET_TALLY, {"kind": JOBS})
        db.many(sql.ADD_TO_TALLY, [{"kind": JOBS, "key": key, "n": n} for key, n in counted.items()])
