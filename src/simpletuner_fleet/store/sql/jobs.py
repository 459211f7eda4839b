"""Reads jobs, their queue and their attempts from any SQL database."""

from collections.abc import Collection, Iterator
from itertools import chain

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.reports import UsedAttempt, UsedTime
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.ports import JobFilter, SetAsideRow
from simpletuner_fleet.store.rows.codec import UNREADABLE
from simpletuner_fleet.store.rows.documents import APPROVALS, ENDPOINTS, MACHINES, POOLS, PUBLICATIONS
from simpletuner_fleet.store.rows.jobs import ATTEMPTS as ATTEMPT_ROWS
from simpletuner_fleet.store.rows.jobs import DELETED_JOBS
from simpletuner_fleet.store.rows.jobs import JOBS as JOB_ROWS
from simpletuner_fleet.store.rows.used import charges_in, used_attempts_in, used_times_in
from simpletuner_fleet.store.rows.workers import WORKERS
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Params, Row
from simpletuner_fleet.store.sql.job_finding import FindingView, job_conditions, seen_condition
from simpletuner_fleet.store.sql.tallies import JOBS

NOTHING: Params = {}
MOST_NAMED_AT_ONCE = 500
"""In one statement."""
ROWS_IN_A_PART = 5_000
ENDED_AT = 8
"""Where in the row of a used attempt."""


class JobsView(FindingView):
    def job(self, job_id: str) -> Job | None:
        return self._job(sql.JOB, {"id": job_id})

    def _job(self, statement: str, params: Params) -> Job | None:
        row = self._db.row(statement, params)
        return None if row is None else JOB_ROWS.row(row)

    def _jobs(self, statement: str, params: Params) -> list[Job]:
        return JOB_ROWS.rows(self._db.rows(statement, params))

    def job_bundle(self, job_id: str) -> bytes | None:
        row = self._db.row(sql.JOB_BUNDLE, {"id": job_id})
        try:
            return None if row is None else bytes(row[0])
        except UNREADABLE as error:
            raise UnreadableRow(f"The stored config of {job_id} cannot be read: {error}") from error

    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        if not where.states:
            return self._jobs_where(where, None, before_seq, limit)
        # One state at a time is read in order from its index; several at once would have to be sorted whole.
        pages = [self._jobs_where(where, state, before_seq, limit) for state in set(where.states)]
        return sorted(chain.from_iterable(pages), key=lambda job: job.seq, reverse=True)[:limit]

    def _jobs_where(
        self, where: JobFilter, state: str | None, before_seq: int | None, limit: int
    ) -> list[Job]:
        conditions, params = job_conditions(where, state)
        if before_seq is not None:
            conditions.append("seq < :before_seq")
            params["before_seq"] = before_seq
        return self._readable(
            sql.JOBS_SORTED.format(conditions=" AND ".join(conditions), order="seq DESC"),
            params,
            limit,
        )

    def queue_page(
        self, after: tuple[float, int] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Job]:
        condition, params = seen_condition(seen_by)
        seen = f" AND {condition}" if condition else ""
        if after is None:
            return self._readable(sql.QUEUE_START.format(seen=seen), params, limit)
        place = {**params, "rank": float(after[0])}
        rest = {**place, "seq": after[1]}
        page = self._readable(sql.QUEUE_REST_OF_RANK.format(seen=seen), rest, limit)
        if len(page) < limit:
            left = limit - len(page)
            page += self._readable(sql.QUEUE_LATER_RANKS.format(seen=seen), place, left)
        return page

    def queued_ahead(self, rank: float, seq: int, since: tuple[float, int] | None = None) -> int:
        place: Params = {"rank": float(rank), "seq": seq}
        if since is None:
            row = self._db.row(sql.QUEUED_AHEAD, place)
        elif since[0] == rank:
            row = self._db.row(sql.QUEUED_WITHIN_RANK, {**place, "since_seq": since[1]})
        else:
            between = {**place, "since_rank": float(since[0]), "since_seq": since[1]}
            row = self._db.row(sql.QUEUED_BETWEEN_RANKS, between)
        return 0 if row is None else int(row[0])

    def job_counts(self, seen_by: VisibilityScope | None = None, owner: str | None = None) -> dict[str, int]:
        condition, params = seen_condition(seen_by)
        if not condition and owner is None:
            return self._tally(JOBS)
        conditions = [one for one in (condition, "owner = :owner" if owner is not None else "") if one]
        where = {**params, "owner": owner} if owner is not None else params
        return dict(self._db.rows(sql.JOBS_MATCHING.format(conditions=" AND ".join(conditions)), where))

    def job_titles(self, job_ids: Collection[str], seen_by: VisibilityScope | None = None) -> dict[str, str]:
        condition, seen_params = seen_condition(seen_by)
        seen = f" AND {condition}" if condition else ""
        wanted = list(dict.fromkeys(job_ids))
        titles: dict[str, str] = {}
        for at in range(0, len(wanted), MOST_NAMED_AT_ONCE):
            ids = {f"id_{number}": id for number, id in enumerate(wanted[at : at + MOST_NAMED_AT_ONCE])}
            listed = ", ".join(f":{name}" for name in ids)
            titles |= dict(
                self._db.rows(sql.JOB_TITLES.format(ids=listed, seen=seen), {**ids, **seen_params})
            )
        return titles

    def live_jobs(self) -> list[Job]:
        """Returns every job that has not ended; it is for the start only."""
        return JOB_ROWS.checked_rows(self._db.rows(sql.LIVE_JOBS, NOTHING))

    def due_backoffs(self, now: float, limit: int) -> list[Job]:
        return self._jobs(sql.DUE_BACKOFFS, {"now": float(now), "limit": limit})

    def next_backoff_at(self) -> float | None:
        row = self._db.row(sql.NEXT_BACKOFF, NOTHING)
        return None if row is None else row[0]

    def dependents_of(self, job_id: str, after_seq: int, limit: int) -> list[Job]:
        return self._jobs(sql.DEPENDENTS, {"id": job_id, "after": after_seq, "limit": limit})

    def attempt(self, attempt_id: str) -> Attempt | None:
        return self._attempt(sql.ATTEMPT, {"id": attempt_id})

    def _attempt(self, statement: str, params: Params) -> Attempt | None:
        row = self._db.row(statement, params)
        return None if row is None else ATTEMPT_ROWS.row(row)

    def _attempts(self, statement: str, params: Params) -> list[Attempt]:
        return ATTEMPT_ROWS.rows(self._db.rows(statement, params))

    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None:
        return self._attempt(sql.ATTEMPT_BY_EPOCH, {"job_id": job_id, "epoch": epoch})

    def attempt_by_upload_token(self, token_hash: str) -> Attempt | None:
        return self._attempt(sql.ATTEMPT_BY_UPLOAD_TOKEN, {"token_hash": token_hash})

    def attempts_of_job(self, job_id: str) -> list[Attempt]:
        return self._attempts(sql.ATTEMPTS_OF_JOB, {"job_id": job_id})

    def attempts_of_worker(self, worker_id: str, limit: int) -> list[Attempt]:
        return self._attempts(sql.ATTEMPTS_OF_WORKER, {"worker_id": worker_id, "limit": limit})

    def attempts_since(self, at: float, limit: int) -> list[Attempt]:
        ended = self._attempts(sql.ATTEMPTS_ENDED_SINCE, {"at": float(at), "limit": limit})
        by_id = {attempt.id: attempt for attempt in (*ended, *self.live_attempts())}
        return sorted(by_id.values(), key=lambda one: (one.epoch, one.id), reverse=True)

    def charges_since(self, at: float) -> list[Charge]:
        """Returns those that can be read: every step of a leader waits for them."""
        since = {"at": float(at)}
        rows = chain(self._db.rows(sql.CHARGES_SINCE, since), self._db.rows(sql.CHARGES_SPENT_SINCE, since))
        return sorted(charges_in(rows), key=lambda charge: charge.ended_at)

    def attempts_used(self, since: float, until: float) -> Iterator[UsedAttempt]:
        for statement, after in ((sql.SPENT, None), (sql.USED_AND_ENDED, None), (sql.USED_STILL, "")):
            yield from used_attempts_in(self._in_parts(statement, float(since), float(until), after))

    def _in_parts(self, statement: str, since: float, until: float, after: str | None) -> Iterator[Row]:
        """Yields the rows of a statement on used attempts; each part goes on after the last row of the one before."""
        while rows := self._db.rows(
            statement, {"since": since, "until": until, "after": after, "limit": ROWS_IN_A_PART}
        ):
            yield from rows
            if len(rows) < ROWS_IN_A_PART:
                return
            after, ended_at = rows[-1][0], rows[-1][ENDED_AT]
            since = since if ended_at is None else ended_at

    def time_used(self, since: float, now: float) -> list[UsedTime]:
        spent = self._db.rows(sql.TIME_SPENT, {"since": float(since)})
        ended = self._db.rows(sql.TIME_USED_AND_ENDED, {"since": float(since)})
        still = self._db.rows(sql.TIME_USED_STILL, {"since": float(since), "now": float(now)})
        return list(used_times_in(chain(spent, ended, still)))

    def any_priced_attempt(self) -> bool:
        return any(
            self._db.row(statement, NOTHING) is not None
            for statement in (sql.ANY_PRICED_ATTEMPT, sql.ANY_PRICED_SPENT)
        )

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]:
        return self._attempts(sql.LIVE_ATTEMPTS_OF_WORKER, {"worker_id": worker_id})

    def live_attempts(self) -> list[Attempt]:
        return self._attempts(sql.LIVE_ATTEMPTS, NOTHING)

    def live_attempts_checked(self) -> list[Attempt]:
        """Returns the live attempts with every field checked; it is for the start only."""
        return ATTEMPT_ROWS.checked_rows(self._db.rows(sql.LIVE_ATTEMPTS, NOTHING))

    def rows_set_aside(self) -> list[SetAsideRow]:
        """Returns the unreadable rows that this process has met so far: nobody searches all rows for them."""
        known = {
            "workers": WORKERS.set_aside,
            "jobs": JOB_ROWS.set_aside,
            "attempts": ATTEMPT_ROWS.set_aside,
            "deleted_jobs": DELETED_JOBS.set_aside,
            "endpoints": ENDPOINTS.set_aside,
            "pools": POOLS.set_aside,
            "machines": MACHINES.set_aside,
            "approvals": APPROVALS.set_aside,
            "publications": PUBLICATIONS.set_aside,
        }
        return [
            SetAsideRow(table=table, id=row_id, why=why)
            for table, rows in known.items()
            for row_id, why in sorted(rows.items())
        ]
