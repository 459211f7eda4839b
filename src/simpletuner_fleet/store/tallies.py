"""Counts kept beside the rows, so that nobody has to walk a table to know how many there are."""

from collections import defaultdict

from simpletuner_fleet.store import statements as sql
from simpletuner_fleet.store.database import Database

JOBS = "job"
"""By state."""
QUEUED = "queued"
"""Queued jobs by class."""
AUDIT = "audit"
"""Entries by event type."""


class TallyView:
    _db: Database

    def _tally(self, kind: str) -> dict[str, int]:
        return dict(self._db.rows(sql.TALLIES, {"kind": kind}))


class TallyTx(TallyView):
    """Changes gather here and are written once a batch: a row changed by every step would be the slowest of all."""

    _unwritten: defaultdict[tuple[str, str], int]
    _of_this_step: list[tuple[str, str, int]]

    def _count(self, kind: str, key: str, change: int) -> None:
        self._of_this_step.append((kind, key, change))

    def _tally(self, kind: str) -> dict[str, int]:
        tally = defaultdict(int, super()._tally(kind))
        for (its_kind, key), change in self._unwritten.items():
            if its_kind == kind:
                tally[key] += change
        for its_kind, key, change in self._of_this_step:
            if its_kind == kind:
                tally[key] += change
        return {key: count for key, count in tally.items() if count}

    def _keep_tally(self) -> None:
        for kind, key, change in self._of_this_step:
            self._unwritten[kind, key] += change
        self._of_this_step.clear()

    def _write_tallies(self) -> None:
        changes = [
            {"kind": kind, "key": key, "n": change}
            for (kind, key), change in self._unwritten.items()
            if change
        ]
        if changes:
            self._db.many(sql.ADD_TO_TALLY, changes)


def recount_jobs(db: Database) -> None:
    """At the start, in case somebody has edited jobs by hand. Writes only what is wrong."""
    for kind, statement in ((JOBS, sql.RECOUNT_JOBS), (QUEUED, sql.RECOUNT_QUEUED)):
        counted: dict[str, int] = dict(db.rows(statement, {}))
        if counted != dict(db.rows(sql.TALLIES, {"kind": kind})):
            db.run(sql.FORGET_TALLY, {"kind": kind})
            db.many(sql.ADD_TO_TALLY, [{"kind": kind, "key": key, "n": n} for key, n in counted.items()])
