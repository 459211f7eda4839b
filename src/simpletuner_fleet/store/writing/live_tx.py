"""Reads and changes jobs, attempts and workers of a transaction in memory; only ended ones come from the database."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.errors import IllegalTransition, NameTaken
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.ports import ConcurrentChange, IdempotentAnswer, JobFilter
from simpletuner_fleet.store.rows.chain import chained
from simpletuner_fleet.store.rows.live_rows import (
    ENDED,
    LEGAL_ATTEMPT_EDGES,
    LEGAL_EDGES,
    LiveRows,
    Marks,
    by_epoch,
)
from simpletuner_fleet.store.rows.text import (
    is_plain,
    name_key,
    storable,
    storable_json,
    storable_or_none,
    storable_progress,
)
from simpletuner_fleet.store.rows.unsaved import Unsaved
from simpletuner_fleet.store.sql.view import SqlView

ATTEMPT_TEXTS = ("worker_name", "error", "last_lines", "failure_class", "failure_evidence", "reason")
attempt_texts = attrgetter(*ATTEMPT_TEXTS)


class LiveTx(SqlView):
    """Reads and changes a transaction's jobs, attempts and workers in memory.

    What is not in memory has ended, or does not exist, and is looked up in the database.
    """

    _rows: LiveRows
    _step: Unsaved
    """What the running step has changed."""
    _audit_head: tuple[int, str]
    _known_classes: set[str]
    _top_seq: int
    _top_epoch: int
    """The highest that any job or attempt has; the next one is new because it is higher."""
    _visited_jobs: list[str]
    _visited_attempts: list[str]
    """Rows that are over, taken in for the running step."""

    @property
    @abstractmethod
    def _stored(self) -> SqlView:
        """Returns the rows that no unsaved change concerns."""

    @property
    @abstractmethod
    def _layers(self) -> tuple[Unsaved, ...]:
        """Returns what is not stored yet, newest first."""

    # Jobs

    def job(self, job_id: str) -> Job | None:
        return self._rows.jobs.get(job_id) or self._stored.job(job_id)

    def job_bundle(self, job_id: str) -> bytes | None:
        for unsaved in self._layers:
            if job_id in unsaved.bundles:
                return unsaved.bundles[job_id]
        return self._stored.job_bundle(job_id)

    def dependents_of(self, job_id: str, after_seq: int, limit: int) -> list[Job]:
        return self._rows.dependents_of(job_id, after_seq, limit)

    def next_untold(self) -> str | None:
        return next(iter(self._rows.untold), None)

    def told_up_to(self, job_id: str) -> int | None:
        return self._rows.untold.get(job_id)

    def note_told(self, job_id: str, up_to_seq: int | None) -> None:
        self._rows.set_untold(job_id, up_to_seq)

    def job_goes_on(self, job_id: str) -> bool:
        job = self._rows.jobs.get(job_id)
        return job is not None and not job.terminal

    def going_on_from(self, job_id: str) -> list[str]:
        return sorted(self._rows.going_on.get(job_id, ()))

    def add_job(self, job: Job, bundle: bytes) -> None:
        if self._job_exists(job):
            raise ConcurrentChange(f"there is a job {job.id} or one with sequence number {job.seq} already")
        self._top_seq = max(self._top_seq, job.seq)
        job = _storable_job(job)
        step = self._step
        if job.class_id not in self._known_classes:
            step.classes[job.class_id] = job
        step.new_jobs[job.id] = None
        step.bundles[job.id] = bundle
        self._rows.set_job(job.id, job)

    def _job_exists(self, job: Job) -> bool:
        """Tells whether there is such a job. A sequence number above all others is new; only others are looked up."""
        if job.id in self._rows.jobs or job.seq in self._rows.job_ids_by_seq:
            return True
        if job.seq > self._top_seq:
            return False
        older = self._stored.jobs_page(JobFilter(), job.seq + 1, 1)
        return self._stored.job(job.id) is not None or any(one.seq == job.seq for one in older)

    def save_job(self, job: Job) -> Job:
        old = self._rows.jobs.get(job.id) or self._visited_job(job.id)
        if old is None or old.version != job.version:
            raise ConcurrentChange(f"job {job.id} is no longer at version {job.version}")
        if (old.state, job.state) not in LEGAL_EDGES:
            raise IllegalTransition(f"A job in state {old.state} cannot become {job.state}.")
        step = self._step
        if job.id not in step.jobs and job.id not in step.new_jobs:
            step.jobs[job.id] = old
        if job.class_id != old.class_id and job.class_id not in self._known_classes:
            step.classes[job.class_id] = job
        saved = replace(job, version=job.version + 1)
        if not _same_texts(job, old):
            saved = _storable_job(saved)
        self._rows.set_job(job.id, saved)
        return saved

    def _visited_job(self, job_id: str) -> Job | None:
        stored = self._stored.job(job_id)
        if stored is not None:
            self._rows.visit_job(stored)
            self._visited_jobs.append(job_id)
        return stored

    # Attempts

    def attempt(self, attempt_id: str) -> Attempt | None:
        return self._rows.attempts.get(attempt_id) or self._stored.attempt(attempt_id)

    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None:
        attempt_id = self._rows.attempt_ids.get((job_id, epoch))
        if attempt_id is not None:
            return self._rows.attempts[attempt_id]
        return self._stored.attempt_by_epoch(job_id, epoch)

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]:
        return self._rows.live_of_worker(worker_id)

    def live_attempts(self) -> list[Attempt]:
        live = (attempt for held in self._rows.live_by_worker.values() for attempt in held.values())
        return sorted(live, key=by_epoch)

    def add_attempt(self, attempt: Attempt) -> None:
        if self._attempt_exists(attempt):
            raise ConcurrentChange(
                f"there is an attempt {attempt.id}, or one with epoch {attempt.epoch}, already"
            )
        self._top_epoch = max(self._top_epoch, attempt.epoch)
        if attempt.job_id not in self._rows.jobs and self._visited_job(attempt.job_id) is None:
            raise ConcurrentChange(f"there is no job {attempt.job_id}")
        self._refuse_second_live(attempt)
        self._step.new_attempts[attempt.id] = None
        self._rows.set_attempt(attempt.id, _storable_attempt(attempt))

    def _attempt_exists(self, attempt: Attempt) -> bool:
        if attempt.epoch > self._top_epoch:
            return attempt.id in self._rows.attempts
        by_epoch = self.attempt_by_epoch(attempt.job_id, attempt.epoch)
        return by_epoch is not None or self.attempt(attempt.id) is not None

    def save_attempt(self, attempt: Attempt) -> None:
        old = self._rows.attempts.get(attempt.id) or self._visited_attempt(attempt.id)
        if old is None or old.epoch != attempt.epoch:
            raise ConcurrentChange(f"there is no attempt {attempt.id} with epoch {attempt.epoch}")
        if (old.state, attempt.state) not in LEGAL_ATTEMPT_EDGES:
            raise IllegalTransition(f"An attempt in state {old.state} cannot become {attempt.state}.")
        self._refuse_second_live(attempt)
        step = self._step
        if attempt.id not in step.attempts and attempt.id not in step.new_attempts:
            step.attempts[attempt.id] = old
        same_texts = attempt_texts(attempt) == attempt_texts(old)
        self._rows.set_attempt(attempt.id, attempt if same_texts else _storable_attempt(attempt))

    def _visited_attempt(self, attempt_id: str) -> Attempt | None:
        stored = self._stored.attempt(attempt_id)
        if stored is not None:
            self._rows.visit_attempt(stored)
            self._visited_attempts.append(attempt_id)
        return stored

    def _refuse_second_live(self, attempt: Attempt) -> None:
        if (
            attempt.state is not ENDED
            and self._rows.live_by_job.get(attempt.job_id, attempt.id) != attempt.id
        ):
            raise ConcurrentChange(f"job {attempt.job_id} has a live attempt already")

    # Workers

    def worker(self, worker_id: str) -> Worker | None:
        return self._rows.workers.get(worker_id)

    def worker_by_token_hash(self, token_hash: str) -> Worker | None:
        return self._rows.workers.get(self._rows.worker_ids_by_hash.get(token_hash, ""))

    def worker_by_name(self, name: str) -> Worker | None:
        return self._rows.workers.get(self._rows.worker_ids_by_name.get(name_key(name), ""))

    def workers(self) -> list[Worker]:
        return sorted(self._rows.workers.values(), key=lambda worker: (worker.created_at, worker.id))

    def offline_workers_before(self, at: float) -> list[Worker]:
        gone = [
            (worker.offline_since, worker.id, worker)
            for worker in self._rows.workers.values()
            if worker.connection is Connection.OFFLINE and worker.offline_since is not None
        ]
        return [worker for since, _, worker in sorted(gone, key=lambda row: row[:2]) if since < at]

    def add_worker(self, worker: Worker) -> None:
        self._refuse_namesake(worker)
        if worker.id in self._rows.workers:
            raise ConcurrentChange(f"there is a worker {worker.id} already")
        self._step.new_workers[worker.id] = None
        self._rows.set_worker(worker.id, _storable_worker(worker))

    def save_worker(self, worker: Worker) -> None:
        old = self._rows.workers.get(worker.id)
        if old is None or old.version != worker.version:
            raise ConcurrentChange(f"worker {worker.id} is no longer at version {worker.version}")
        self._refuse_namesake(worker)
        renamed = worker.name != old.name or worker.token_hash != old.token_hash
        self._step.change_worker(worker.id, worker.version, renamed=renamed)
        self._rows.set_worker(worker.id, _storable_worker(replace(worker, version=worker.version + 1)))

    def _refuse_namesake(self, worker: Worker) -> None:
        if self._rows.worker_ids_by_name.get(name_key(worker.name), worker.id) != worker.id:
            raise NameTaken(f"A worker named '{worker.name}' already exists.")
        if self._rows.worker_ids_by_hash.get(worker.token_hash, worker.id) != worker.id:
            raise ConcurrentChange("two workers cannot share a token")

    def delete_worker(self, worker_id: str) -> None:
        if worker_id in self._rows.workers:
            self._step.delete_worker(worker_id)
            self._rows.set_worker(worker_id, None)

    def touch_heartbeats(self, heard: Sequence[tuple[str, float]]) -> None:
        for worker_id, at in heard:
            worker = self._rows.workers.get(worker_id)
            if worker is not None:
                self._set_marks(worker_id, (worker.message_seq, at))

    def note_message_seq(self, worker_id: str, seq: int) -> None:
        worker = self._rows.workers.get(worker_id)
        if worker is not None and worker.message_seq < seq:
            self._set_marks(worker_id, (seq, worker.last_heartbeat))

    def _set_marks(self, worker_id: str, marks: Marks) -> None:
        if worker_id not in self._step.new_workers:
            self._step.marks[worker_id] = None
        self._rows.set_marks(worker_id, marks)

    # Answers and the audit log

    def idempotent_answer(self, key: str, owner: str) -> IdempotentAnswer | None:
        for unsaved in self._layers:
            if (key, owner) in unsaved.answers:
                return unsaved.answers[key, owner]
        return self._stored.idempotent_answer(key, owner)

    def remember_answer(self, answer: IdempotentAnswer) -> None:
        self._step.answers[answer.key, answer.owner] = answer

    def append_audit(self, at: float, events: Iterable[Event]) -> list[AuditEntry]:
        entries = chained(*self._audit_head, at, events)
        if entries:
            self._step.audit += entries
            last = entries[-1][0]
            self._audit_head = (last.seq, last.hash)
        return [entry for entry, _ in entries]


def _same_texts(job: Job, stored: Job) -> bool:
    """Tells whether every text of the job is the same as in the stored row."""
    return (
        job.error is stored.error
        and job.reason is stored.reason
        and job.progress is stored.progress
        and job.name is stored.name
        and job.config_name is stored.config_name
        and job.note is stored.note
    )


def _storable_job(job: Job) -> Job:
    """Returns the job as it will be read back: characters that a database cannot hold are replaced before storing."""
    if not is_plain(f"{job.name}{job.error}{job.reason}{job.config_name}{job.note}"):
        job = replace(
            job,
            name=storable_or_none(job.name),
            error=storable_or_none(job.error),
            reason=storable_or_none(job.reason),
            config_name=storable(job.config_name),
            note=storable(job.note),
        )
    progress = None if job.progress is None else storable_progress(job.progress)
    return job if progress is job.progress else replace(job, progress=progress)


def _storable_attempt(attempt: Attempt) -> Attempt:
    texts = attempt_texts(attempt)
    if is_plain("".join(filter(None, texts))):
        return attempt
    return replace(attempt, **dict(zip(ATTEMPT_TEXTS, map(storable_or_none, texts), strict=True)))


def _storable_worker(worker: Worker) -> Worker:
    texts = {
        name: storable(text)
        for name in ("name", "agent_version", "home", "incarnation", "drain_note", "address")
        if storable(text := getattr(worker, name)) != text
    }
    labels = {name: storable_json(getattr(worker, name)) for name in ("labels", "reported_labels")}
    trainers = tuple(map(storable, worker.trainers))
    gpus = tuple(replace(gpu, uuid=storable(gpu.uuid), name=storable(gpu.name)) for gpu in worker.gpus)
    return replace(worker, **texts, **labels, trainers=trainers, gpus=gpus)
