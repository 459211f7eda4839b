"""Stores approvals in any SQL database."""

import msgspec

from simpletuner_fleet.core.jobs.job import Hold, JobState
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.store.rows.documents import APPROVALS
from simpletuner_fleet.store.rows.text import storable_json
from simpletuner_fleet.store.sql.database import Database
from simpletuner_fleet.store.sql.job_finding import seen_condition

_ONE = "SELECT document FROM approvals WHERE job_id = :job_id"
_PENDING = (
    "SELECT job_id, document FROM approvals JOIN jobs ON jobs.id = approvals.job_id"
    f" WHERE approvals.state = 'pending' AND jobs.state = '{JobState.BLOCKED}' AND jobs.hold = '{Hold.APPROVAL}'"
    " AND {conditions} ORDER BY asked_at, job_id LIMIT :limit"
)
_AFTER = "asked_at >= :asked_at AND (asked_at > :asked_at OR job_id > :job_id)"
_DUE = (
    "SELECT job_id, document FROM approvals WHERE state = 'pending' AND expires_at <= :now"
    " ORDER BY expires_at, job_id LIMIT :limit"
)
_PUT = (
    "INSERT INTO approvals (job_id, state, asked_at, expires_at, document)"
    " VALUES (:job_id, :state, :asked_at, :expires_at, :document) ON CONFLICT (job_id) DO UPDATE SET"
    " state = excluded.state, asked_at = excluded.asked_at, expires_at = excluded.expires_at,"
    " document = excluded.document"
)


class ApprovalsView:
    _db: Database

    def approval(self, job_id: str) -> Approval | None:
        row = self._db.row(_ONE, {"job_id": job_id})
        return None if row is None else APPROVALS.row(job_id, row[0])

    def pending_approvals(
        self, after: tuple[float, str] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Approval]:
        seen, params = seen_condition(seen_by)
        if after is not None:
            params |= {"asked_at": float(after[0]), "job_id": after[1]}
        conditions = [one for one in (seen, _AFTER if after is not None else "") if one] or ["1 = 1"]
        statement = _PENDING.format(conditions=" AND ".join(conditions))
        return APPROVALS.rows(self._db.rows(statement, {**params, "limit": limit}))

    def due_approvals(self, now: float, limit: int) -> list[Approval]:
        return APPROVALS.rows(self._db.rows(_DUE, {"now": float(now), "limit": limit}))


class ApprovalsTx(ApprovalsView):
    def put_approval(self, approval: Approval) -> None:
        document = msgspec.json.encode(storable_json(msgspec.to_builtins(approval))).decode()
        self._db.run(
            _PUT,
            {
                "job_id": approval.job_id,
                "state": approval.state.value,
                "asked_at": float(approval.asked_at),
                "expires_at": approval.expires_at,
                "document": document,
            },
        )
