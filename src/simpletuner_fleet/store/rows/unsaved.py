"""Gathers what steps have changed and no commit has stored yet, and turns it into writes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.ports import IdempotentAnswer
from simpletuner_fleet.store.rows.audit import AUDIT_TABLE, ChainedEntry, entry_values
from simpletuner_fleet.store.rows.batches import RowWrite, Table, Values
from simpletuner_fleet.store.rows.jobs import (
    ATTEMPT_OFTEN_TABLE,
    ATTEMPT_TABLE,
    ATTEMPTS,
    EDITED_JOB,
    JOB_EDIT_TABLE,
    JOB_OFTEN_TABLE,
    JOB_TABLE,
    JOBS,
    requirements_text,
)
from simpletuner_fleet.store.rows.live_rows import LiveRows
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.rows.workers import MARKS_TABLE, WORKER_TABLE, worker_values

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
S = TypeVar("S")
ChangedRows = dict[str, S]
"""Ids of rows, each with what is stored of it: the row itself or its version; 0 where neither matters."""


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
        self.jobs: ChangedRows[Job] = {}
        self.new_attempts: dict[str, None] = {}
        self.attempts: ChangedRows[Attempt] = {}
        self.new_workers: dict[str, None] = {}
        self.workers: ChangedRows[int] = {}
        self.deleted_workers: dict[str, None] = {}
        self.marks: ChangedRows[int] = {}
        self.classes: dict[str, Job] = {}
        """By class id, a job of the class."""
        self.bundles: dict[str, bytes] = {}
        self.answers: dict[AnswerKey, IdempotentAnswer] = {}
        self.audit: list[ChainedEntry] = []
        self.tallies: defaultdict[Tally, int] = defaultdict(int)

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

    @staticmethod
    def change(changed: ChangedRows[S], new: dict[str, None], row_id: str, stored: S) -> None:
        """Notes that a row has changed. A row that is not stored yet is inserted in its last state.

        The others keep the order of their last changes: a row that took another's name is written after the one that
        gave it up.
        """
        if row_id not in new:
            changed[row_id] = changed.pop(row_id, stored)

    def absorb(self, later: "Unsaved") -> None:
        """Takes over what a later step has changed. That step may have deleted a worker and added it again."""
        self._absorb_workers(later)
        if later.new_jobs:
            self.new_jobs |= later.new_jobs
            self.bundles |= later.bundles
        self.classes |= later.classes
        if later.new_attempts:
            self.new_attempts |= later.new_attempts
        if later.jobs:
            self._change_all(self.jobs, self.new_jobs, later.jobs)
        if later.attempts:
            self._change_all(self.attempts, self.new_attempts, later.attempts)
        if later.answers:
            self.answers |= later.answers
        self.audit += later.audit
        for key, change in later.tallies.items():
            self.tallies[key] += change

    def _absorb_workers(self, later: "Unsaved") -> None:
        for worker_id in later.deleted_workers:
            self.delete_worker(worker_id)
        if later.new_workers:
            self.new_workers |= later.new_workers
        if later.workers:
            self._change_all(self.workers, self.new_workers, later.workers)
        if later.marks:
            self._change_all(self.marks, self.new_workers, later.marks)

    def _change_all(self, changed: ChangedRows[S], new: dict[str, None], later: ChangedRows[S]) -> None:
        for row_id, stored in later.items():
            self.change(changed, new, row_id, stored)

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
        yield from _job_updates((stored, rows.jobs[id]) for id, stored in self.jobs.items())
        changed = [(stored, rows.attempts[id]) for id, stored in self.attempts.items()]
        yield from _attempt_updates(pair for pair in changed if not pair[1].live)
        yield from _attempt_updates(pair for pair in changed if pair[1].live)
        yield from self._new_attempts(rows)
        yield RowWrite(
            WORKER_TABLE,
            [(*worker_values(rows.workers[id]), stored) for id, stored in self.workers.items()],
            update=True,
        )
        yield RowWrite(WORKER_TABLE, [worker_values(rows.workers[id]) for id in self.new_workers])
        yield RowWrite(MARKS_TABLE, list(self._marks(rows)), update=True)
        yield RowWrite(
            ANSWER_TABLE,
            [_answer_values(answer) for answer in self.answers.values()],
            on_conflict=KEEP_NEW_ANSWER,
        )
        yield RowWrite(AUDIT_TABLE, [entry_values(entry) for entry in self.audit])
        tallies = [(*key, change) for key, change in self.tallies.items() if change]
        yield RowWrite(TALLY_TABLE, tallies, on_conflict=ADD_TO_TALLY)

    def _new_attempts(self, rows: LiveRows) -> Iterator[RowWrite]:
        added = [rows.attempts[attempt_id] for attempt_id in self.new_attempts]
        yield RowWrite(ATTEMPT_TABLE, [ATTEMPTS.values(one) for one in added])

    def _marks(self, rows: LiveRows) -> Iterator[Values]:
        for worker_id in self.marks:
            if worker_id not in self.workers:
                worker = rows.workers[worker_id]
                yield worker_id, worker.message_seq, worker.last_heartbeat


def _job_updates(changes: Iterable[tuple[Job, Job]]) -> Iterator[RowWrite]:
    """Yields the updates of jobs. Each change is the row as it is stored, and the row to store."""
    often: list[Values] = []
    seldom: list[Values] = []
    edited: list[Values] = []
    for stored, job in changes:
        if job.class_id != stored.class_id:
            edited.append((*EDITED_JOB.values(job), stored.version))
        elif JOBS.changed_as_often(stored, job):
            often.append((*JOBS.often_values(job), stored.version))
        else:
            seldom.append((*JOBS.changing_values(job), stored.version))
    yield RowWrite(JOB_OFTEN_TABLE, often, update=True)
    yield RowWrite(JOB_TABLE, seldom, update=True)
    yield RowWrite(JOB_EDIT_TABLE, edited, update=True)


def _attempt_updates(changes: Iterable[tuple[Attempt, Attempt]]) -> Iterator[RowWrite]:
    often: list[Values] = []
    seldom: list[Values] = []
    for stored, attempt in changes:
        if ATTEMPTS.changed_as_often(stored, attempt):
            often.append(ATTEMPTS.often_values(attempt))
        else:
            seldom.append(ATTEMPTS.changing_values(attempt))
    yield RowWrite(ATTEMPT_OFTEN_TABLE, often, update=True)
    yield RowWrite(ATTEMPT_TABLE, seldom, update=True)


def _answer_values(answer: IdempotentAnswer) -> Values:
    return storable(answer.key), answer.owner, answer.request_hash, answer.job_id, answer.at
