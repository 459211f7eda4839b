"""Implements the store in memory, for tests and the simulator. It is deterministic, and never suspends."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from simpletuner_fleet.core.audit import GENESIS, AuditEntry, emptied, is_emptied
from simpletuner_fleet.core.errors import IllegalTransition, NameTaken, StoreUnavailable
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import (
    ApiToken,
    ConcurrentChange,
    ConfigVersion,
    IdempotentAnswer,
    JobNote,
    RowObserver,
    SavedView,
    StoredManifest,
    Tx,
    View,
)
from simpletuner_fleet.store.memory.datasets import MemoryDatasetsTx
from simpletuner_fleet.store.memory.deleted_jobs import MemoryDeletedJobsTx
from simpletuner_fleet.store.memory.endpoints import MemoryEndpointsTx
from simpletuner_fleet.store.memory.machines import MemoryMachinesTx
from simpletuner_fleet.store.memory.scim import MemoryScimTx
from simpletuner_fleet.store.memory.tables import Tables
from simpletuner_fleet.store.memory.view import MemoryView
from simpletuner_fleet.store.rows.chain import chained
from simpletuner_fleet.store.rows.live_rows import LEGAL_ATTEMPT_EDGES, LEGAL_EDGES
from simpletuner_fleet.store.rows.text import name_key

T = TypeVar("T")


class MemoryTx(
    MemoryView,
    MemoryDatasetsTx,
    MemoryDeletedJobsTx,
    MemoryEndpointsTx,
    MemoryMachinesTx,
    MemoryScimTx,
):
    """Implements ports.Tx in memory. Changes are made in place; the journal of the tables undoes them."""

    def next_seq(self) -> int:
        return self._count("seq")

    def next_epoch(self) -> int:
        return self._count("epoch")

    def _count(self, counter: str) -> int:
        value = self._tables.counters[counter] + 1
        self._tables.set_counter(counter, value)
        return value

    def raise_epoch_to(self, at_least: int) -> None:
        if self._tables.counters["epoch"] < at_least:
            self._tables.set_counter("epoch", at_least)

    def add_job(self, job: Job, bundle: bytes) -> None:
        if job.id in self._tables.jobs or job.seq in self._tables.job_ids_by_seq:
            raise ConcurrentChange(f"there is a job {job.id} or one with sequence number {job.seq} already")
        self._tables.set_job(job.id, job)
        self._tables.set_bundle(job.id, bundle)

    def save_job(self, job: Job) -> Job:
        old = self._tables.jobs.get(job.id)
        if old is None or old.version != job.version:
            raise ConcurrentChange(f"job {job.id} is no longer at version {job.version}")
        if (old.state, job.state) not in LEGAL_EDGES:
            raise IllegalTransition(f"A job in state {old.state} cannot become {job.state}.")
        saved = replace(job, version=job.version + 1)
        self._tables.set_job(job.id, saved)
        return saved

    def next_untold(self) -> str | None:
        return next(iter(self._tables.untold), None)

    def told_up_to(self, job_id: str) -> int | None:
        return self._tables.untold.get(job_id)

    def note_told(self, job_id: str, up_to_seq: int | None) -> None:
        self._tables.set_untold(job_id, up_to_seq)

    def job_goes_on(self, job_id: str) -> bool:
        job = self._tables.jobs.get(job_id)
        return job is not None and not job.terminal

    def add_attempt(self, attempt: Attempt) -> None:
        if attempt.id in self._tables.attempts:
            raise ConcurrentChange(f"there is an attempt {attempt.id} already")
        if (attempt.job_id, attempt.epoch) in self._tables.attempt_ids:
            raise ConcurrentChange(f"job {attempt.job_id} has an attempt with epoch {attempt.epoch} already")
        if attempt.job_id not in self._tables.jobs:
            raise ConcurrentChange(f"there is no job {attempt.job_id}")
        self._check_only_live(attempt)
        self._tables.set_attempt(attempt.id, attempt)

    def save_attempt(self, attempt: Attempt) -> None:
        old = self._tables.attempts.get(attempt.id)
        if old is None or old.epoch != attempt.epoch:
            raise ConcurrentChange(f"there is no attempt {attempt.id} with epoch {attempt.epoch}")
        if (old.state, attempt.state) not in LEGAL_ATTEMPT_EDGES:
            raise IllegalTransition(f"An attempt in state {old.state} cannot become {attempt.state}.")
        self._check_only_live(attempt)
        self._tables.set_attempt(attempt.id, attempt)

    def _check_only_live(self, attempt: Attempt) -> None:
        if attempt.live and self._tables.live_by_job.get(attempt.job_id, attempt.id) != attempt.id:
            raise ConcurrentChange(f"job {attempt.job_id} has a live attempt already")

    def add_worker(self, worker: Worker) -> None:
        self._check_name_and_token(worker)
        if worker.id in self._tables.workers:
            raise ConcurrentChange(f"there is a worker {worker.id} already")
        self._tables.set_worker(worker.id, worker)

    def save_worker(self, worker: Worker) -> None:
        old = self._tables.workers.get(worker.id)
        if old is None or old.version != worker.version:
            raise ConcurrentChange(f"worker {worker.id} is no longer at version {worker.version}")
        self._check_name_and_token(worker)
        self._tables.set_worker(worker.id, replace(worker, version=worker.version + 1))

    def _check_name_and_token(self, worker: Worker) -> None:
        if self._tables.worker_ids_by_name.get(name_key(worker.name), worker.id) != worker.id:
            raise NameTaken(f"A worker named '{worker.name}' already exists.")
        if self._tables.worker_ids_by_hash.get(worker.token_hash, worker.id) != worker.id:
            raise ConcurrentChange("two workers cannot share a token")

    def delete_worker(self, worker_id: str) -> None:
        if worker_id in self._tables.workers:
            self._tables.set_worker(worker_id, None)

    def touch_heartbeats(self, heard: Sequence[tuple[str, float]]) -> None:
        for worker_id, at in heard:
            worker = self._tables.workers.get(worker_id)
            if worker is not None:
                self._tables.set_marks(worker_id, (worker.message_seq, at))

    def note_message_seq(self, worker_id: str, seq: int) -> None:
        worker = self._tables.workers.get(worker_id)
        if worker is not None and worker.message_seq < seq:
            self._tables.set_marks(worker_id, (seq, worker.last_heartbeat))

    def add_config(self, config: ConfigVersion) -> None:
        versions = self._tables.configs[config.name]
        if config.version in versions:
            raise ConcurrentChange(f"config '{config.name}' has a version {config.version} already")
        self._tables.set_configs(config.name, {**versions, config.version: config})

    def delete_config(self, name: str, at: float) -> None:
        self._tables.set_configs(name, {})

    def add_api_token(self, token: ApiToken) -> None:
        if token.id in self._tables.tokens or token.token_hash in self._tables.token_ids_by_hash:
            raise ConcurrentChange(f"there is an API token {token.id} or one with its secret already")
        self._tables.set_token(token.id, token)

    def save_api_token(self, token: ApiToken) -> None:
        if token.id not in self._tables.tokens:
            raise ConcurrentChange(f"there is no API token {token.id}")
        if self._tables.token_ids_by_hash.get(token.token_hash, token.id) != token.id:
            raise ConcurrentChange("two API tokens cannot share a secret")
        self._tables.set_token(token.id, token)

    def note_token_use(self, token_hash: str, at: float) -> None:
        known = self.api_token_by_hash(token_hash)
        if known is not None:
            self._tables.set_token(known.id, replace(known, last_used_at=at))

    def add_user(self, user: User) -> None:
        if user.id in self._tables.users:
            raise ConcurrentChange(f"there is a user {user.id} already")
        self._set_user(user)

    def save_user(self, user: User) -> None:
        if user.id not in self._tables.users:
            raise ConcurrentChange(f"there is no user {user.id}")
        self._set_user(user)

    def _set_user(self, user: User) -> None:
        if self._tables.user_ids_by_name.get(name_key(user.name), user.id) != user.id:
            raise NameTaken(f"The name '{user.name}' is already taken.", next_step="Choose another name.")
        self._tables.set_user(user.id, user)

    def add_session(self, session: Session) -> None:
        if session.token_hash in self._tables.sessions or session.user_id not in self._tables.users:
            raise ConcurrentChange("there is a session with this secret already, or no such user")
        self._tables.set_session(session.token_hash, session)

    def renew_session(self, token_hash: str, at: float) -> None:
        known = self._tables.sessions.get(token_hash)
        if known is not None:
            self._tables.set_session(token_hash, replace(known, seen_at=at))

    def delete_session(self, token_hash: str) -> None:
        if token_hash in self._tables.sessions:
            self._tables.set_session(token_hash, None)

    def delete_sessions_before(self, created_before: float, seen_before: float) -> None:
        for session in list(self._tables.sessions.values()):
            if session.created_at < created_before or session.seen_at < seen_before:
                self._tables.set_session(session.token_hash, None)

    def remember_answer(self, answer: IdempotentAnswer) -> None:
        self._tables.set_answer((answer.key, answer.owner), answer)

    def put_setting(self, key: str, value: str) -> None:
        self._tables.set_setting(key, value)

    def delete_setting(self, key: str) -> None:
        self._tables.set_setting(key, None)

    def append_audit(self, at: float, events: Iterable[Event]) -> list[AuditEntry]:
        head = self._tables.audit[-1] if self._tables.audit else None
        entries = chained(head.seq if head else 0, head.hash if head else GENESIS, at, events)
        for entry, _ in entries:
            self._tables.set_audit_entry(None, entry)
        return [entry for entry, _ in entries]

    def empty_audit(self, upto_seq: int, limit: int) -> int:
        full = (at for at, one in enumerate(self._tables.audit[:upto_seq]) if not is_emptied(one))
        chosen = list(islice(full, limit))
        for index in chosen:
            self._tables.set_audit_row(index, emptied(self._tables.audit[index]))
        return len(chosen)

    def add_manifest(self, manifest: StoredManifest) -> None:
        if manifest.id in self._tables.manifests or manifest.job_id not in self._tables.jobs:
            raise ConcurrentChange(f"there is a manifest {manifest.id} already, or no job {manifest.job_id}")
        self._tables.set_manifest(manifest.id, manifest)

    def pin_manifest(self, manifest_id: str, by: str) -> None:
        manifest = self._tables.manifests.get(manifest_id)
        if manifest is not None:
            self._tables.set_manifest(manifest_id, replace(manifest, pinned_by=by))

    def put_saved_view(self, view: SavedView) -> None:
        self._tables.set_saved_view((view.owner, view.name), view)

    def delete_saved_view(self, owner: str, name: str) -> None:
        self._tables.set_saved_view((owner, name), None)

    def delete_manifest(self, manifest_id: str) -> None:
        if manifest_id in self._tables.manifests:
            self._tables.set_manifest(manifest_id, None)

    def own_object(self, job_id: str, sha256: str, size: int, at: float) -> None:
        known = self._tables.objects[job_id].get(sha256)
        if known is None:
            self._tables.set_object((job_id, sha256), (size, at))
        elif known[1] is not None:
            self._tables.set_object((job_id, sha256), (known[0], at))

    def own_objects(self, job_id: str, sizes: Mapping[str, int], at: float) -> None:
        for sha256, size in sizes.items():
            self.own_object(job_id, sha256, size, at)

    def recount_stored(self) -> None:
        """Does nothing: here it is summed up whenever somebody asks."""

    def mark_objects(self, job_id: str, shas: Collection[str], unused_since: float | None) -> None:
        for sha256 in shas:
            known = self._tables.objects[job_id].get(sha256)
            if known is not None:
                self._tables.set_object((job_id, sha256), (known[0], unused_since))

    def disown_objects(self, rows: Collection[tuple[str, str]]) -> None:
        for job_id, sha256 in rows:
            if sha256 in self._tables.objects[job_id]:
                self._tables.set_object((job_id, sha256), None)

    def put_approval(self, approval: Approval) -> None:
        self._tables.set_approval(approval.job_id, approval)

    def put_publication(self, publication: Publication) -> None:
        self._tables.set_publication(publication.job_id, publication)

    def add_notes(self, notes: Sequence[JobNote]) -> int:
        fresh = 0
        for note in notes:
            if note.id not in self._tables.notes[note.job_id]:
                self._tables.set_note((note.job_id, note.id), note)
                fresh += 1
        return fresh


class MemoryStore:
    """Implements ports.Store in memory.

    A coroutine of it can be driven by hand: it ends at the first `send(None)`.
    """

    def __init__(self) -> None:
        self._tables = Tables()
        self._view = MemoryView(self._tables)
        self._tx = MemoryTx(self._tables)
        self._observer_is_behind = False
        self._commits_to_fail = 0

    def observe(self, observer: RowObserver) -> None:
        self._tables.observer = observer
        self._observer_is_behind = True

    def fail_next_commits(self, count: int) -> None:
        """Lets the next `count` writes run and then fail at their commit, as a full disk would."""
        self._commits_to_fail = count

    def find_trouble(self) -> str | None:
        return None

    def reading_for_s(self) -> float:
        return 0.0

    @property
    def is_stored(self) -> bool:
        return not self._observer_is_behind

    async def write(self, step: Callable[[Tx], T]) -> T:
        return self.write_now(step)

    def write_now(self, step: Callable[[Tx], T]) -> T:
        if self._observer_is_behind:
            self._tables.tell_everything()
            self._observer_is_behind = False
        try:
            result = step(self._tx)
        except BaseException:
            self._tables.take_back()
            raise
        if self._commits_to_fail:
            self._fail_commit()
        self._tables.keep()
        return result

    def _fail_commit(self) -> None:
        self._commits_to_fail -= 1
        self._tables.take_back()
        self._tables.observer.rows_reset()
        self._observer_is_behind = True
        raise StoreUnavailable

    async def read(self, look: Callable[[View], T]) -> T:
        return look(self._view)

    async def scan(self, look: Callable[[View], T]) -> T:
        return look(self._view)

    async def close(self) -> None:
        """Does nothing: there is nothing to release, and what was stored stays readable."""
