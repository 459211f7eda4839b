"""Jobs, their queue and their attempts, over any SQL database."""

from collections import defaultdict
from itertools import chain
from typing import Any

from simpletuner_fleet.core.job import Attempt, Job, JobState, Requirements
from simpletuner_fleet.ports import ConcurrentChange, JobFilter, QueuedClass
from simpletuner_fleet.store import statements as sql
from simpletuner_fleet.store.database import Params
from simpletuner_fleet.store.rows_jobs import (
    attempt_of,
    attempt_params,
    job_changes,
    job_of,
    job_params,
    requirements_of,
    requirements_text,
)
from simpletuner_fleet.store.tallies import JOBS, QUEUED, TallyTx, TallyView

NOTHING: Params = {}


class JobsView(TallyView):
    def job(self, job_id: str) -> Job | None:
        return self._job(sql.JOB, {"id": job_id})

    def _job(self, statement: str, params: Params) -> Job | None:
        row = self._db.row(statement, params)
        return None if row is None else job_of(row)

    def _jobs(self, statement: str, params: Params) -> list[Job]:
        return [job_of(row) for row in self._db.rows(statement, params)]

    def job_bundle(self, job_id: str) -> bytes | None:
        row = self._db.row(sql.JOB_BUNDLE, {"id": job_id})
        return None if row is None else bytes(row[0])

    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        if not where.states:
            return self._jobs_where(where, None, before_seq, limit)
        # One state at a time is read in order from its index; several at once would have to be sorted whole.
        pages = [self._jobs_where(where, state, before_seq, limit) for state in set(where.states)]
        return sorted(chain.from_iterable(pages), key=lambda job: job.seq, reverse=True)[:limit]

    def _jobs_where(
        self, where: JobFilter, state: str | None, before_seq: int | None, limit: int
    ) -> list[Job]:
        conditions, params = _job_conditions(where, state, before_seq)
        return self._jobs(sql.JOBS_WHERE.format(conditions=conditions), {**params, "limit": limit})

    def queue_page(self, after: tuple[float, int] | None, limit: int) -> list[Job]:
        if after is None:
            return self._jobs(sql.QUEUE_START, {"limit": limit})
        rank, seq = float(after[0]), after[1]
        page = self._jobs(sql.QUEUE_REST_OF_RANK, {"rank": rank, "seq": seq, "limit": limit})
        if len(page) < limit:
            page += self._jobs(sql.QUEUE_LATER_RANKS, {"rank": rank, "limit": limit - len(page)})
        return page

    def queued_ahead(self, rank: float, seq: int) -> int:
        row = self._db.row(sql.QUEUED_AHEAD, {"rank": float(rank), "seq": seq})
        return 0 if row is None else int(row[0])

    def job_counts(self) -> dict[str, int]:
        return self._tally(JOBS)

    def class_counts(self) -> dict[str, int]:
        return self._tally(QUEUED)

    def head_of_class(self, class_id: str) -> Job | None:
        return self._job(sql.HEAD_OF_CLASS, {"class_id": class_id})

    def queued_classes(self) -> list[QueuedClass]:
        ranks: defaultdict[str, list[float]] = defaultdict(list)
        for class_id, rank in self._db.rows(sql.READY_RANKS, NOTHING):
            ranks[class_id].append(rank)
        return [
            QueuedClass(class_id=class_id, requires=requires, ranks=tuple(ranks[class_id]))
            for class_id in sorted(self.class_counts())
            if (requires := self.class_requirements(class_id)) is not None
        ]

    def class_requirements(self, class_id: str) -> Requirements | None:
        row = self._db.row(sql.CLASS_REQUIREMENTS, {"class_id": class_id})
        return None if row is None else requirements_of(row[0])

    def due_backoffs(self, now: float, limit: int) -> list[Job]:
        return self._jobs(sql.DUE_BACKOFFS, {"now": float(now), "limit": limit})

    def next_backoff_at(self) -> float | None:
        row = self._db.row(sql.NEXT_BACKOFF, NOTHING)
        return None if row is None else row[0]

    def dependents_of(self, job_id: str) -> list[Job]:
        return self._jobs(sql.DEPENDENTS, {"id": job_id})

    def attempt(self, attempt_id: str) -> Attempt | None:
        return self._attempt(sql.ATTEMPT, {"id": attempt_id})

    def _attempt(self, statement: str, params: Params) -> Attempt | None:
        row = self._db.row(statement, params)
        return None if row is None else attempt_of(row)

    def _attempts(self, statement: str, params: Params) -> list[Attempt]:
        return [attempt_of(row) for row in self._db.rows(statement, params)]

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
        found = {attempt.id: attempt for attempt in (*ended, *self.live_attempts())}
        return sorted(found.values(), key=lambda one: (one.epoch, one.id), reverse=True)[:limit]

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]:
        return self._attempts(sql.LIVE_ATTEMPTS_OF_WORKER, {"worker_id": worker_id})

    def live_attempts(self) -> list[Attempt]:
        return self._attempts(sql.LIVE_ATTEMPTS, NOTHING)


class JobsTx(TallyTx, JobsView):
    _known_classes: set[str]
    _new_classes: list[str]

    def add_job(self, job: Job, bundle: bytes) -> None:
        self._add_class(job)
        if not self._db.run(sql.ADD_JOB, job_params(job)):
            raise ConcurrentChange(f"there is a job {job.id} or one with sequence number {job.seq} already")
        self._count_arrival(job)
        self._db.run(sql.ADD_BUNDLE, {"job_id": job.id, "bundle": bundle})
        for needed in job.depends_on:
            self._db.run(sql.ADD_DEPENDENCY, {"job_id": job.id, "needs": needed})

    def _add_class(self, job: Job) -> None:
        if job.class_id in self._known_classes:
            return
        self._db.run(sql.ADD_CLASS, {"class_id": job.class_id, "requires": requirements_text(job.requires)})
        self._known_classes.add(job.class_id)
        self._new_classes.append(job.class_id)

    def save_job(self, job: Job) -> None:
        row = self._db.row(sql.SAVE_JOB, job_changes(job))
        if row is None:
            raise ConcurrentChange(f"job {job.id} is no longer at version {job.version}")
        prior_state: str = row[0]
        if prior_state != job.state:
            self._count(JOBS, prior_state, -1)
            if prior_state == JobState.QUEUED:
                self._count(QUEUED, job.class_id, -1)
            self._count_arrival(job)

    def _count_arrival(self, job: Job) -> None:
        self._count(JOBS, job.state.value, 1)
        if job.state is JobState.QUEUED:
            self._count(QUEUED, job.class_id, 1)

    def add_attempt(self, attempt: Attempt) -> None:
        if not self._db.run(sql.ADD_ATTEMPT, attempt_params(attempt)):
            raise ConcurrentChange(f"job {attempt.job_id} has a live attempt, or this one, already")

    def save_attempt(self, attempt: Attempt) -> None:
        if not self._db.run(sql.SAVE_ATTEMPT, attempt_params(attempt)):
            raise ConcurrentChange(f"there is no attempt {attempt.id} with epoch {attempt.epoch}")


_TITLE = "(coalesce(name, '') || ' ' || config_name || ' ' || id)"


def _job_conditions(
    where: JobFilter, state: str | None, before_seq: int | None
) -> tuple[str, dict[str, Any]]:
    conditions = ["1 = 1"]
    params: dict[str, Any] = {}
    if state is not None:
        conditions.append("state = :state AND state <> ''")
        params["state"] = str(state)
    for column in ("owner", "worker_id", "config_name"):
        value = getattr(where, column)
        if value is not None:
            conditions.append(f"{column} = :{column}")
            params[column] = value
    if where.created_since is not None:
        conditions.append("created_at >= :created_since")
        params["created_since"] = float(where.created_since)
    if where.text:
        conditions.append(f"({_TITLE} LIKE :text ESCAPE '!' OR lower({_TITLE}) LIKE :lowered ESCAPE '!')")
        params["text"] = f"%{_literally(where.text)}%"
        params["lowered"] = f"%{_literally(where.text.lower())}%"
    if before_seq is not None:
        conditions.append("seq < :before_seq")
        params["before_seq"] = before_seq
    return " AND ".join(conditions), params


def _literally(text: str) -> str:
    """For LIKE with '!' as its escape."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")
