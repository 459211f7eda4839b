"""Gathers what steps have changed and no commit has stored yet, and turns it into writes."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.ports import IdempotentAnswer
from simpletuner_fleet.store.rows.audit import AUDIT_TABLE, ChainedEntry
from simpletuner_fleet.store.rows.batches import RowWrite, Table, Values
from simpletuner_fleet.store.rows.jobs import (
    ATTEMPT_TABLE,
    ATTEMPT_UPDATE_TABLES,
    ATTEMPTS,
    JOB_TABLE,
    JOB_UPDATE_TABLES,
    JOBS,
    requirements_text,
)
from simpletuner_fleet.store.rows.live_rows import ENDED, LiveRows
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.rows.workers import MARKS_TABLE, WORKER_TABLE, worker_values
from simpletuner_fleet.store.sql.tallies import AUDIT as AUDIT_TALLY
from simpletuner_fleet.store.sql.tallies import JOBS as JOB_TALLY

CLASS_TABLE = Table(name="classes", columns=("class_id", "requires"))
BUNDLE_TABLE = Table(name="job_bundles", columns=("job_id", "bundle"))
DEPENDENCY_TABLE = Table(name="job_dependencies", columns=("job_id", "needs"))
ANSWER_TABLE = Table(name="idempotency", columns=("key", "owner", "request_hash", "job_id", "at"))
TALLY_TABLE = Table(name="tallies", columns=("kind", "key", "n"))
KEEP_OLD = "ON CONFLICT DO NOTHING"
KEEP_NEW_ANSWER = (
    "ON CONFLICT (key, owner) DO UPDATE SET request_hash = excluded.request_hash, job_id = excluded.job_id,"
    " at = excluded.at"
)
ADD_TO_TALLY = "ON CONFLICT (kind, key) DO UPDATE SET n = tallies.n + excluded.n"

AnswerKey = tuple[str, str]
Tally = tuple[str, str]


class ChangedWorker(NamedTuple):
    """Tells of a worker whose row has changed."""

    stored_version: int
    renamed: bool
    """It has come by another name, or another token."""


class Unsaved:
    """Gathers what steps have changed and no commit has stored yet.

    It holds the ids of changed rows, each once however often it changed, and rows that are only ever added.
    """

    __slots__ = (
        "answers",
        "attempts",
        "audit",
        "bundles",
        "classes",
        "deleted_workers",
        "jobs",
        "marks",
        "new_attempts",
        "new_jobs",
        "new_workers",
        "tallies",
        "workers",
    )

    def __init__(self) -> None:
        self.new_jobs: dict[str, None] = {}
        self.jobs: dict[str, Job] = {}
        """By id, the row as it is stored; that of attempts, too. None of them is new, nor are the workers."""
        self.new_attempts: dict[str, None] = {}
        self.attempts: dict[str, Attempt] = {}
        self.new_workers: dict[str, None] = {}
        self.workers: dict[str, ChangedWorker] = {}
        self.deleted_workers: dict[str, None] = {}
        self.marks: dict[str, None] = {}
        self.classes: dict[str, Job] = {}
        """By class id, a job of the class."""
        self.bundles: dict[str, bytes] = {}
        self.answers: dict[AnswerKey, IdempotentAnswer] = {}
        self.audit: list[ChainedEntry] = []
        self.tallies: defaultdict[Tally, int] = defaultdict(int)
        """What is counted beside the rows above, which are counted once they are written."""

    def __bool__(self) -> bool:
        return bool(
            self.audit  # first what most steps leave
            or self.marks
            or self.jobs
            or self.attempts
            or self.new_jobs
            or self.new_attempts
            or self.workers
            or self.new_workers
            or self.deleted_workers
            or self.classes
            or self.bundles
            or self.answers
            or self.tallies
        )

    def change_worker(self, worker_id: str, stored_version: int, *, renamed: bool) -> None:
        """Notes that a worker has changed. One that is not stored yet is inserted in its last state.

        The others keep the order in which they came by their names and tokens: a row that took another's is written
        after the one that gave it up.
        """
        if worker_id in self.new_workers:
            return
        known = self.workers.get(worker_id, ChangedWorker(stored_version, renamed=False))
        if renamed:
            self.workers.pop(worker_id, None)
        self.workers[worker_id] = ChangedWorker(known.stored_version, renamed=known.renamed or renamed)

    def absorb(self, later: "Unsaved") -> None:
        """Takes over what a later step has changed. That step may have deleted a worker and added it again.

        It is called for every step, and so calls nothing for what most steps change.
        """
        if later.workers or later.marks or later.new_workers or later.deleted_workers:
            self._absorb_workers(later)
        self.new_jobs |= later.new_jobs
        self.bundles |= later.bundles
        self.classes |= later.classes
        self.new_attempts |= later.new_attempts
        self.answers |= later.answers
        for job_id in later.jobs:
            if job_id not in self.jobs and job_id not in self.new_jobs:
                self.jobs[job_id] = later.jobs[job_id]
        for attempt_id in later.attempts:
            if attempt_id not in self.attempts and attempt_id not in self.new_attempts:
                self.attempts[attempt_id] = later.attempts[attempt_id]
        self.audit += later.audit
        for key in later.tallies:
            self.tallies[key] += later.tallies[key]

    def clear(self) -> None:
        """Empties it for the next step: to make all its containers anew takes longer, since most are empty already."""
        self.audit.clear()
        if self.jobs:
            self.jobs.clear()
        if self.attempts:
            self.attempts.clear()
        if self.new_jobs or self.bundles:
            self.new_jobs.clear()
            self.bundles.clear()
        if self.new_attempts:
            self.new_attempts.clear()
        if self.marks or self.workers or self.new_workers or self.deleted_workers:
            for workers in (self.marks, self.workers, self.new_workers, self.deleted_workers):
                workers.clear()
        if self.classes or self.answers or self.tallies:
            for others in (self.classes, self.answers, self.tallies):
                others.clear()

    def _absorb_workers(self, later: "Unsaved") -> None:
        for worker_id in later.deleted_workers:
            self.delete_worker(worker_id)
        if later.new_workers:
            self.new_workers |= later.new_workers
        for worker_id, changed in later.workers.items():
            self.change_worker(worker_id, changed.stored_version, renamed=changed.renamed)
        for worker_id in later.marks:
            if worker_id not in self.new_workers:
                self.marks[worker_id] = None

    def delete_worker(self, worker_id: str) -> None:
        self.workers.pop(worker_id, None)
        self.marks.pop(worker_id, None)
        if worker_id in self.new_workers:
            del self.new_workers[worker_id]
        else:
            self.deleted_workers[worker_id] = None

    def writes(self, rows: LiveRows) -> list[RowWrite]:
        """Returns the writes in an order that violates no constraint: an attempt ends before the next one begins."""
        return [write for write in self._writes(rows) if write.rows]

    def _writes(self, rows: LiveRows) -> Iterator[RowWrite]:
        yield RowWrite(
            CLASS_TABLE,
            [(id, requirements_text(job.requires)) for id, job in self.classes.items()],
            on_conflict=KEEP_OLD,
        )
        new_jobs = [rows.jobs[job_id] for job_id in self.new_jobs]
        yield RowWrite(JOB_TABLE, [JOBS.values(job) for job in new_jobs])
        yield RowWrite(BUNDLE_TABLE, list(self.bundles.items()))
        yield RowWrite(
            DEPENDENCY_TABLE,
            [(job.id, needed) for job in new_jobs for needed in job.depends_on],
            on_conflict=KEEP_OLD,
        )
        yield from self._job_updates(rows)
        yield from self._attempt_updates(rows, ended=True)
        yield from self._attempt_updates(rows, ended=False)
        yield from self._new_attempts(rows)
        yield RowWrite(
            WORKER_TABLE,
            [(*worker_values(rows.workers[id]), one.stored_version) for id, one in self.workers.items()],
            update=True,
        )
        yield RowWrite(WORKER_TABLE, [worker_values(rows.workers[id]) for id in self.new_workers])
        yield RowWrite(MARKS_TABLE, list(self._marks(rows)), update=True)
        yield RowWrite(
            ANSWER_TABLE,
            [_answer_values(answer) for answer in self.answers.values()],
            on_conflict=KEEP_NEW_ANSWER,
        )
        yield RowWrite(AUDIT_TABLE, [row for _, row in self.audit])
        yield RowWrite(TALLY_TABLE, self._tallied(rows), on_conflict=ADD_TO_TALLY)

    def _job_updates(self, rows: LiveRows) -> Iterator[RowWrite]:
        updates: list[list[Values]] = [[] for _ in JOB_UPDATE_TABLES]
        for job_id, stored in self.jobs.items():
            narrowest, values = JOBS.update(stored, rows.jobs[job_id])
            updates[narrowest].append((*values, stored.version))
        for table, some in zip(JOB_UPDATE_TABLES, updates, strict=True):
            yield RowWrite(table, some, update=True)

    def _attempt_updates(self, rows: LiveRows, *, ended: bool) -> Iterator[RowWrite]:
        updates: list[list[Values]] = [[] for _ in ATTEMPT_UPDATE_TABLES]
        for attempt_id, stored in self.attempts.items():
            attempt = rows.attempts[attempt_id]
            if (attempt.state is ENDED) is ended:
                narrowest, values = ATTEMPTS.update(stored, attempt)
                updates[narrowest].append(values)
        for table, some in zip(ATTEMPT_UPDATE_TABLES, updates, strict=True):
            yield RowWrite(table, some, update=True)

    def _tallied(self, rows: LiveRows) -> list[Values]:
        """Returns by how much each count changes with the rows that are written."""
        tallies = self.tallies.copy()
        for job_id in self.new_jobs:
            tallies[JOB_TALLY, rows.jobs[job_id].state] += 1
        for job_id, stored in self.jobs.items():
            state = rows.jobs[job_id].state
            if state is not stored.state:
                tallies[JOB_TALLY, stored.state] -= 1
                tallies[JOB_TALLY, state] += 1
        for entry, _ in self.audit:
            tallies[AUDIT_TALLY, entry.event_type] += 1
        return [(kind, str(key), change) for (kind, key), change in tallies.items() if change]

    def _new_attempts(self, rows: LiveRows) -> Iterator[RowWrite]:
        added = [rows.attempts[attempt_id] for attempt_id in self.new_attempts]
        yield RowWrite(ATTEMPT_TABLE, [ATTEMPTS.values(one) for one in added])

    def _marks(self, rows: LiveRows) -> Iterator[Values]:
        for worker_id in self.marks:
            if worker_id not in self.workers:
                worker = rows.workers[worker_id]
                yield worker_id, worker.message_seq, worker.last_heartbeat


def _answer_values(answer: IdempotentAnswer) -> Values:
    return storable(answer.key), answer.owner, answer.request_hash, answer.job_id, answer.at
