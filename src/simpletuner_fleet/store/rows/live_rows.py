"""Keeps the live rows in memory beside the writer: waiting and running jobs, live attempts, every worker.

They mirror the database, which stays the truth. Steps read and change them here; a commit writes what changed. Every
change goes through a `set_…` method, which keeps the indexes up to date, tells the observer, and writes the journal
that undoes a failed step. Rows that have ended stay until the commit that stores them, then they are evicted.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    Attempt,
    AttemptState,
    Job,
    JobState,
)
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import RowObserver
from simpletuner_fleet.store.rows.text import name_key

LEGAL_EDGES = frozenset((state, after) for (state, _), after in JOB_TRANSITIONS.items()) | {
    (state, state) for state in JobState
}
LEGAL_ATTEMPT_EDGES = frozenset((state, after) for (state, _), after in ATTEMPT_TRANSITIONS.items()) | {
    (state, state) for state in AttemptState
}
ENDED = AttemptState.ENDED

Undo = tuple[Callable[[Any, Any], None], Any, Any]
Marks = tuple[int, float | None]
"""A worker's `message_seq` and `last_heartbeat`, which change without a new version."""


class NobodyWatches:
    """Observes nothing, for a store that no index follows."""

    def rows_reset(self) -> None: ...
    def worker_changed(self, before: Worker | None, after: Worker | None) -> None: ...
    def job_changed(self, before: Job | None, after: Job | None) -> None: ...
    def attempt_changed(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None: ...


class LiveRows:
    def __init__(self) -> None:
        self.observer: RowObserver = NobodyWatches()
        self.journal: list[Undo] = []
        self.jobs: dict[str, Job] = {}
        self.job_ids_by_seq: dict[int, str] = {}
        self.dependents: dict[str, list[int]] = {}
        """By the job they wait for: the sequence numbers of those that are blocked, in order."""
        self.untold: dict[str, int] = {}
        """Jobs that have ended, and up to which sequence number their dependents have been told.

        It follows from the rows: where it is lost, every end with dependents is told from the first of them on again.
        """
        self.going_on: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """By the job whose checkpoint they began with: those that have not ended."""
        self.attempts: dict[str, Attempt] = {}
        self.attempt_ids: dict[tuple[str, int], str] = {}
        """By job and epoch: their turn, as a plain tuple, which costs no call to make."""
        self.live_by_worker: defaultdict[str, dict[str, Attempt]] = defaultdict(dict)
        self.live_by_job: dict[str, str] = {}
        self.stand_ins: dict[str, Attempt] = {}
        """By job, for an attempt whose row is not there or cannot be read: nobody knows whether its trainer runs."""
        self.workers: dict[str, Worker] = {}
        self.worker_ids_by_hash: dict[str, str] = {}
        self.worker_ids_by_name: dict[str, str] = {}

    def clear(self) -> None:
        """Forgets every row, and tells the observer so."""
        self.journal.clear()
        for rows in (
            *(self.jobs, self.job_ids_by_seq, self.dependents, self.attempts, self.attempt_ids),
            *(self.live_by_job, self.live_by_worker, self.stand_ins, self.going_on, self.untold),
            *(self.workers, self.worker_ids_by_hash, self.worker_ids_by_name),
        ):
            rows.clear()
        self.observer.rows_reset()

    def load(self, workers: Iterable[Worker], jobs: Iterable[Job], attempts: Iterable[Attempt]) -> None:
        """Replaces all rows by those of the database.

        An attempt whose job cannot be read is set aside with it, and holds its GPUs.
        """
        self.clear()
        for worker in workers:
            self.set_worker(worker.id, worker)
        for job in jobs:
            self.set_job(job.id, job)
        for attempt in attempts:
            if attempt.job_id in self.jobs:
                self.set_attempt(attempt.id, attempt)
            else:
                self.observer.attempt_changed(None, attempt, None)
        for job in self.jobs.values():
            if job.attempt_id and job.worker_id and job.attempt_id not in self.attempts:
                self.stand_ins[job.id] = _stand_in(job)
                self.observer.attempt_changed(None, self.stand_ins[job.id], job)
        self.find_untold()
        self.journal.clear()

    def find_untold(self) -> None:
        """Finds the ends that dependents may not have been told of: nobody knows any more how far that had come."""
        waited_for = ((job_id, self.jobs.get(job_id)) for job_id in self.dependents)
        self.untold = {job_id: 0 for job_id, job in waited_for if job is None or job.terminal}

    def take_back(self) -> None:
        """Undoes every change in the journal, newest first."""
        undo, self.journal = self.journal, []
        for setter, key, old in reversed(undo):
            setter(key, old)
        self.journal.clear()

    def set_job(self, job_id: str, job: Job | None) -> None:
        old = self.jobs.get(job_id)
        self.journal.append((self.set_job, job_id, old))
        if job is not None:
            self.jobs[job_id] = job
            self.job_ids_by_seq[job.seq] = job_id
        elif old is not None:
            del self.jobs[job_id], self.job_ids_by_seq[old.seq]
        known = job or old
        if known is not None and (known.depends_on or known.resume_from):
            self._index_dependencies(known, waits=job is not None and job.state is JobState.BLOCKED)
            self._index_source(known, goes_on=job is not None and not job.terminal)
        if job_id in self.dependents and (job is None or job.terminal) is not (old is None or old.terminal):
            self._index_end(job_id, ended=job is not None and job.terminal)
        if job_id in self.stand_ins:
            self._follow_stand_in(self.stand_ins[job_id], old, job)
        self.observer.job_changed(old, job)

    def _follow_stand_in(self, stand_in: Attempt, old: Job | None, job: Job | None) -> None:
        """Tells the observer when such an attempt holds its GPUs no longer, since its job has ended, or does again."""
        holds, held = (
            (one is not None and not one.terminal and one.attempt_id == stand_in.id) for one in (job, old)
        )
        if holds is not held:
            before, after = (None, stand_in) if holds else (stand_in, None)
            self.observer.attempt_changed(before, after, job or old)

    def _index_end(self, job_id: str, *, ended: bool) -> None:
        if ended:
            self.untold[job_id] = 0
        else:
            self.untold.pop(job_id, None)

    def _index_dependencies(self, job: Job, *, waits: bool) -> None:
        for other in job.depends_on:
            waiting = self.dependents.get(other)
            if waiting is None:
                if waits:
                    self.dependents[other] = [job.seq]
                continue
            at = bisect_left(waiting, job.seq)
            is_there = at < len(waiting) and waiting[at] == job.seq
            if waits and not is_there:
                waiting.insert(at, job.seq)
            elif is_there and not waits:
                del waiting[at]
                if not waiting:
                    del self.dependents[other]

    def _index_source(self, job: Job, *, goes_on: bool) -> None:
        if not job.resume_from:
            return
        source = job.resume_from.partition(":")[0]
        if goes_on:
            self.going_on[source][job.id] = None
        else:
            _forget(self.going_on, source, job.id)

    def dependents_of(self, job_id: str, after_seq: int, limit: int) -> list[Job]:
        waiting = self.dependents.get(job_id, [])
        at = bisect_right(waiting, after_seq)
        return [self.jobs[self.job_ids_by_seq[seq]] for seq in waiting[at : at + limit]]

    def set_untold(self, job_id: str, up_to_seq: int | None) -> None:
        """Notes up to which dependent the end of a job has been told; None: nobody is left."""
        self.journal.append((self.set_untold, job_id, self.untold.get(job_id)))
        if up_to_seq is None:
            self.untold.pop(job_id, None)
        else:
            self.untold[job_id] = up_to_seq

    def set_attempt(self, attempt_id: str, attempt: Attempt | None) -> None:
        """Sets or removes an attempt. Its job, its epoch and its worker never change."""
        old = self.attempts.get(attempt_id)
        self.journal.append((self.set_attempt, attempt_id, old))
        known = attempt or old
        if known is None:
            return
        if attempt is None:
            del self.attempts[attempt_id], self.attempt_ids[known.job_id, known.epoch]
        else:
            self.attempts[attempt_id] = attempt
            self.attempt_ids[known.job_id, known.epoch] = attempt_id
        if attempt is not None and attempt.state is not ENDED:
            self.live_by_worker[known.worker_id][attempt_id] = attempt
            self.live_by_job[known.job_id] = attempt_id
        elif old is not None and old.state is not ENDED:
            self._no_longer_live(old)
        self.observer.attempt_changed(old, attempt, self.jobs.get(known.job_id))

    def _no_longer_live(self, attempt: Attempt) -> None:
        held = self.live_by_worker[attempt.worker_id]
        del held[attempt.id]
        if not held:
            del self.live_by_worker[attempt.worker_id]
        if self.live_by_job.get(attempt.job_id) == attempt.id:
            del self.live_by_job[attempt.job_id]

    def set_worker(self, worker_id: str, worker: Worker | None) -> None:
        old = self.workers.get(worker_id)
        self.journal.append((self.set_worker, worker_id, old))
        if old is not None:
            del self.worker_ids_by_hash[old.token_hash]
            del self.worker_ids_by_name[name_key(old.name)]
        if worker is None:
            self.workers.pop(worker_id, None)
        else:
            self.workers[worker_id] = worker
            self.worker_ids_by_hash[worker.token_hash] = worker_id
            self.worker_ids_by_name[name_key(worker.name)] = worker_id
        self.observer.worker_changed(old, worker)

    def set_marks(self, worker_id: str, marks: Marks) -> None:
        """Sets what changes with many messages. No placement rule depends on it, so the observer is not told."""
        worker = self.workers[worker_id]
        self.journal.append((self.set_marks, worker_id, (worker.message_seq, worker.last_heartbeat)))
        self.workers[worker_id] = replace(worker, message_seq=marks[0], last_heartbeat=marks[1])

    def live_of_worker(self, worker_id: str) -> list[Attempt]:
        held = self.live_by_worker.get(worker_id)
        if not held:
            return []
        return sorted(held.values(), key=by_epoch) if len(held) > 1 else list(held.values())

    def evict_job(self, job_id: str) -> None:
        """Evicts a job that has ended and is stored; nobody is told, since nothing has changed."""
        job = self.jobs.get(job_id)
        if job is not None and job.terminal:
            del self.jobs[job_id], self.job_ids_by_seq[job.seq]

    def visit_job(self, job: Job) -> None:
        """Adds an ended job for one step."""
        self.jobs[job.id] = job
        self.job_ids_by_seq[job.seq] = job.id

    def visit_attempt(self, attempt: Attempt) -> None:
        """Adds an ended attempt for one step."""
        self.attempts[attempt.id] = attempt
        self.attempt_ids[attempt.job_id, attempt.epoch] = attempt.id

    def evict_attempt(self, attempt_id: str) -> None:
        attempt = self.attempts.get(attempt_id)
        if attempt is not None and not attempt.live:
            del self.attempts[attempt_id]
            del self.attempt_ids[attempt.job_id, attempt.epoch]


def _forget(jobs: dict[str, dict[str, None]], key: str, job_id: str) -> None:
    named = jobs.get(key)
    if named is not None:
        named.pop(job_id, None)
        if not named:
            del jobs[key]


def _stand_in(job: Job) -> Attempt:
    """Returns a stand-in for the attempt of a job: its GPUs are not free."""
    return Attempt(
        id=str(job.attempt_id),
        job_id=job.id,
        number=job.attempts,
        epoch=job.epoch,
        worker_id=str(job.worker_id),
        worker_name="",
        state=AttemptState.RUNNING,
        offered_at=job.created_at,
        gpus=job.gpus,
    )


def by_epoch(attempt: Attempt) -> tuple[int, str]:
    return attempt.epoch, attempt.id
