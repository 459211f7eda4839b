"""Reads and empties the audit log in any SQL database."""

from collections import Counter
from typing import Any

from msgspec.structs import asdict

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.ports import AuditFilter
from simpletuner_fleet.store.rows.audit import entry_of
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database, Params
from simpletuner_fleet.store.sql.jobs import NOTHING
from simpletuner_fleet.store.sql.tallies import AUDIT, TallyView

EVERYTHING = AuditFilter()


class AuditView(TallyView):
    def _entries(self, statement: str, params: Params) -> list[AuditEntry]:
        return [entry_of(row) for row in self._db.rows(statement, params)]

    def audit_page(
        self, where: AuditFilter, limit: int, offset: int, newest_first: bool = True
    ) -> list[AuditEntry]:
        conditions, params = _conditions(where)
        statement = sql.AUDIT_WHERE.format(conditions=conditions, direction="DESC" if newest_first else "ASC")
        return self._entries(statement, {**params, "limit": limit, "offset": offset})

    def audit_count(self, where: AuditFilter) -> int:
        if where == EVERYTHING:
            return sum(self.audit_stats().values())
        if where == AuditFilter(event_type=where.event_type):
            return self.audit_stats().get(str(where.event_type), 0)
        if where == AuditFilter(event_types=where.event_types):
            return sum(count for kind, count in self.audit_stats().items() if kind in where.event_types)
        conditions, params = _conditions(where)
        row = self._db.row(sql.AUDIT_COUNT_WHERE.format(conditions=conditions), params)
        return 0 if row is None else int(row[0])

    def audit_stats(self) -> dict[str, int]:
        return self._tally(AUDIT)

    def audit_range(self, after_seq: int, limit: int) -> list[AuditEntry]:
        return self._entries(sql.AUDIT_RANGE, {"after_seq": after_seq, "limit": limit})

    def audit_hashes(self, after_seq: int, limit: int) -> list[tuple[int, str]]:
        rows = self._db.rows(sql.AUDIT_HASHES, {"after_seq": after_seq, "limit": limit})
        return [(seq, entry_hash) for seq, entry_hash in rows]

    def audit_head(self) -> AuditEntry | None:
        row = self._db.row(sql.AUDIT_HEAD, NOTHING)
        return None if row is None else entry_of(row)

    def job_events(self, job_id: str, limit: int) -> list[AuditEntry]:
        """Returns the newest `limit` events of the job, oldest first."""
        return self._entries(sql.JOB_EVENTS, {"job_id": job_id, "limit": limit})[::-1]


class AuditTx:
    _db: Database

    def empty_audit(self, upto_seq: int, limit: int) -> int:
        rows = list(self._db.rows(sql.AUDIT_FULL, {"upto": upto_seq, "limit": limit}))
        if not rows:
            return 0
        self._db.run(sql.EMPTY_AUDIT, {"first": rows[0][0], "last": rows[-1][0]})
        gone = Counter(str(kind) for _, kind in rows)
        self._db.many(sql.ADD_TO_TALLY, [{"kind": AUDIT, "key": key, "n": -n} for key, n in gone.items()])
        return len(rows)


def _conditions(where: AuditFilter) -> tuple[str, dict[str, Any]]:
    """Returns the conditions of a filter: from `since` on, and before `until`."""
    given = {
        name: value for name, value in asdict(where).items() if value is not None and name != "event_types"
    }
    comparison = {"since": "at >= :since", "until": "at < :until"}
    conditions = [comparison.get(name, f"{name} = :{name}") for name in given]
    if where.event_types:
        types = {f"type_{number}": kind for number, kind in enumerate(sorted(where.event_types))}
        conditions.append(f"event_type IN ({', '.join(f':{name}' for name in types)})")
        given |= types
    return " AND ".join(["event_type <> ''", *conditions]), given
