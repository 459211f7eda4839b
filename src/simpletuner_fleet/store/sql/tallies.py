"""Keeps counts beside the rows, so that no table has to be scanned to know how many rows there are."""

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
    """Counts jobs at the start, in case somebody has edited them by hand. It writes only if a count is wrong."""
    counted: dict[str, int] = dict(db.rows(sql.RECOUNT_JOBS, {}))
    if counted != dict(db.rows(sql.TALLIES, {"kind": JOBS})):
        db.run(sql.FORGET_TALLY, {"kind": JOBS})
        db.many(sql.ADD_TO_TALLY, [{"kind": JOBS, "key": key, "n": n} for key, n in counted.items()])
