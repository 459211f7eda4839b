"""Holds the rows of the memory store, the indexes over them, and the journal that undoes a failed step."""

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Any

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.money.reports import UsedAttempt
from simpletuner_fleet.core.notices.endpoint import DeliveryTry, Endpoint
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.ports import (
    ApiToken,
    ConfigVersion,
    IdempotentAnswer,
    JobNote,
    SavedView,
    ScimEntry,
    StoredManifest,
)
from simpletuner_fleet.store.rows.live_rows import LiveRows
from simpletuner_fleet.store.rows.text import name_key

Place = tuple[float, int, str]
"""(rank or time, seq, job id): sorts as the queue does."""


class Tables(LiveRows):
    """Holds all rows of the memory store, live or ended.

    Each is set through a `set_…` method, which keeps the indexes up to date and writes the journal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bundles: dict[str, bytes] = {}
        self.seqs: list[int] = []
        self.queue: list[Place] = []
        self.backoffs: list[Place] = []
        self.state_counts: defaultdict[str, int] = defaultdict(int)
        self.attempts_by_job: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.attempts_by_worker: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.attempts_by_upload_token: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.configs: defaultdict[str, dict[int, ConfigVersion]] = defaultdict(dict)
        self.tokens: dict[str, ApiToken] = {}
        self.token_ids_by_hash: dict[str, str] = {}
        self.users: dict[str, User] = {}
        self.user_ids_by_name: dict[str, str] = {}
        self.sessions: dict[str, Session] = {}
        self.answers: dict[tuple[str, str], IdempotentAnswer] = {}
        self.settings: dict[str, str] = {}
        self.manifests: dict[str, StoredManifest] = {}
        self.manifests_by_job: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.objects: defaultdict[str, dict[str, tuple[int, float | None]]] = defaultdict(dict)
        """Per job, by SHA-256: size, and since when no manifest names it."""
        self.owners: defaultdict[str, set[str]] = defaultdict(set)
        self.publications: dict[str, Publication] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.deliveries: dict[str, tuple[DeliveryTry, ...]] = {}
        self.saved_views: dict[tuple[str, str], SavedView] = {}
        self.scim_entries: dict[tuple[str, str], ScimEntry] = {}
        self.scim_members: dict[tuple[str, str], bool] = {}
        """Group and user."""
        self.pools: dict[str, MachinePool] = {}
        self.machines: dict[str, Machine] = {}
        self.approvals: dict[str, Approval] = {}
        self.notes: defaultdict[str, dict[str, JobNote]] = defaultdict(dict)
        self.datasets: dict[str, tuple[Dataset, bool]] = {}
        """And whether all of its files are there."""
        self.dataset_files: dict[str, dict[str, int]] = {}
        self.dataset_objects: dict[str, tuple[int, float | None, frozenset[str]]] = {}
        """By SHA-256: size, since when no dataset names it, and who has sent it."""
        self.dataset_jobs: dict[str, frozenset[str]] = {}
        self.deleted_jobs: dict[str, DeletedJob] = {}
        self.spent: dict[str, UsedAttempt] = {}
        """What attempts of deleted jobs have used, by their ids."""
        self.counters: dict[str, int] = {"seq": 0, "epoch": 0}
        self.audit: list[AuditEntry] = []
        self.audit_by_job: defaultdict[str, list[AuditEntry]] = defaultdict(list)
        self.audit_counts: defaultdict[str, int] = defaultdict(int)

    def keep(self) -> None:
        self.journal.clear()

    def tell_everything(self) -> None:
        """Tells the observer about every live row, as after a start."""
        self.observer.rows_reset()
        self.find_untold()
        for worker in self.workers.values():
            self.observer.worker_changed(None, worker)
        for job in self.jobs.values():
            if not job.terminal:
                self.observer.job_changed(None, job)
        for held in self.live_by_worker.values():
            for attempt in held.values():
                self.observer.attempt_changed(None, attempt, self.jobs[attempt.job_id])

    def set_job(self, job_id: str, job: Job | None) -> None:
        old = self.jobs.get(job_id)
        if old is not None:
            self._unindex_job(old)
        if job is not None:
            if old is None:
                insort(self.seqs, job.seq)
            self._index_job(job)
        elif old is not None:
            del self.seqs[bisect_left(self.seqs, old.seq)]
        super().set_job(job_id, job)

    def _index_job(self, job: Job) -> None:
        self.state_counts[job.state] += 1
        if job.state is not JobState.QUEUED:
            return
        insort(self.queue, (job.rank, job.seq, job.id))
        if job.not_before is not None:
            insort(self.backoffs, (job.not_before, job.seq, job.id))

    def _unindex_job(self, job: Job) -> None:
        self.state_counts[job.state] -= 1
        if job.state is not JobState.QUEUED:
            return
        _remove(self.queue, (job.rank, job.seq, job.id))
        if job.not_before is not None:
            _remove(self.backoffs, (job.not_before, job.seq, job.id))

    def set_bundle(self, job_id: str, bundle: bytes | None) -> None:
        self.journal.append((self.set_bundle, job_id, self.bundles.get(job_id)))
        _put(self.bundles, job_id, bundle)

    def set_attempt(self, attempt_id: str, attempt: Attempt | None) -> None:
        old = self.attempts.get(attempt_id)
        if old is not None:
            self._unindex_attempt(old)
        if attempt is not None:
            self._index_attempt(attempt)
        super().set_attempt(attempt_id, attempt)

    def _index_attempt(self, attempt: Attempt) -> None:
        self.attempts_by_job[attempt.job_id][attempt.id] = None
        self.attempts_by_worker[attempt.worker_id][attempt.id] = None
        if attempt.upload_token_hash:
            self.attempts_by_upload_token[attempt.upload_token_hash][attempt.id] = None

    def _unindex_attempt(self, attempt: Attempt) -> None:
        del self.attempts_by_job[attempt.job_id][attempt.id]
        del self.attempts_by_worker[attempt.worker_id][attempt.id]
        if attempt.upload_token_hash:
            del self.attempts_by_upload_token[attempt.upload_token_hash][attempt.id]

    def set_configs(self, name: str, versions: dict[int, ConfigVersion]) -> None:
        self.journal.append((self.set_configs, name, self.configs[name]))
        self.configs[name] = versions

    def set_token(self, token_id: str, token: ApiToken | None) -> None:
        old = self.tokens.get(token_id)
        self.journal.append((self.set_token, token_id, old))
        if old is not None:
            del self.token_ids_by_hash[old.token_hash]
        _put(self.tokens, token_id, token)
        if token is not None:
            self.token_ids_by_hash[token.token_hash] = token_id

    def set_user(self, user_id: str, user: User | None) -> None:
        old = self.users.get(user_id)
        self.journal.append((self.set_user, user_id, old))
        if old is not None:
            del self.user_ids_by_name[name_key(old.name)]
        _put(self.users, user_id, user)
        if user is not None:
            self.user_ids_by_name[name_key(user.name)] = user_id

    def set_session(self, token_hash: str, session: Session | None) -> None:
        self.journal.append((self.set_session, token_hash, self.sessions.get(token_hash)))
        _put(self.sessions, token_hash, session)

    def set_answer(self, place: tuple[str, str], answer: IdempotentAnswer | None) -> None:
        self.journal.append((self.set_answer, place, self.answers.get(place)))
        _put(self.answers, place, answer)

    def set_setting(self, key: str, value: str | None) -> None:
        self.journal.append((self.set_setting, key, self.settings.get(key)))
        _put(self.settings, key, value)

    def set_manifest(self, manifest_id: str, manifest: StoredManifest | None) -> None:
        old = self.manifests.get(manifest_id)
        self.journal.append((self.set_manifest, manifest_id, old))
        if old is not None:
            del self.manifests_by_job[old.job_id][manifest_id]
        _put(self.manifests, manifest_id, manifest)
        if manifest is not None:
            self.manifests_by_job[manifest.job_id][manifest_id] = None

    def set_object(self, place: tuple[str, str], held: tuple[int, float | None] | None) -> None:
        job_id, sha256 = place
        self.journal.append((self.set_object, place, self.objects[job_id].get(sha256)))
        _put(self.objects[job_id], sha256, held)
        if held is None:
            self.owners[sha256].discard(job_id)
        else:
            self.owners[sha256].add(job_id)

    def set_approval(self, job_id: str, approval: Approval | None) -> None:
        self.journal.append((self.set_approval, job_id, self.approvals.get(job_id)))
        _put(self.approvals, job_id, approval)

    def set_publication(self, job_id: str, publication: Publication | None) -> None:
        self.journal.append((self.set_publication, job_id, self.publications.get(job_id)))
        _put(self.publications, job_id, publication)

    def set_endpoint(self, endpoint_id: str, endpoint: Endpoint | None) -> None:
        self.journal.append((self.set_endpoint, endpoint_id, self.endpoints.get(endpoint_id)))
        _put(self.endpoints, endpoint_id, endpoint)

    def set_deliveries(self, endpoint_id: str, rows: tuple[DeliveryTry, ...] | None) -> None:
        self.journal.append((self.set_deliveries, endpoint_id, self.deliveries.get(endpoint_id)))
        _put(self.deliveries, endpoint_id, rows)

    def set_saved_view(self, place: tuple[str, str], view: SavedView | None) -> None:
        self.journal.append((self.set_saved_view, place, self.saved_views.get(place)))
        _put(self.saved_views, place, view)

    def set_scim_entry(self, place: tuple[str, str], entry: ScimEntry | None) -> None:
        self.journal.append((self.set_scim_entry, place, self.scim_entries.get(place)))
        _put(self.scim_entries, place, entry)

    def set_scim_member(self, place: tuple[str, str], is_member: bool | None) -> None:
        self.journal.append((self.set_scim_member, place, self.scim_members.get(place)))
        _put(self.scim_members, place, is_member)

    def set_pool(self, name: str, pool: MachinePool | None) -> None:
        self.journal.append((self.set_pool, name, self.pools.get(name)))
        _put(self.pools, name, pool)

    def set_machine(self, machine_id: str, machine: Machine | None) -> None:
        self.journal.append((self.set_machine, machine_id, self.machines.get(machine_id)))
        _put(self.machines, machine_id, machine)

    def set_note(self, place: tuple[str, str], note: JobNote | None) -> None:
        job_id, note_id = place
        self.journal.append((self.set_note, place, self.notes[job_id].get(note_id)))
        _put(self.notes[job_id], note_id, note)

    def set_dataset(self, dataset_id: str, dataset: tuple[Dataset, bool] | None) -> None:
        self.journal.append((self.set_dataset, dataset_id, self.datasets.get(dataset_id)))
        _put(self.datasets, dataset_id, dataset)

    def set_dataset_files(self, dataset_id: str, files: dict[str, int] | None) -> None:
        self.journal.append((self.set_dataset_files, dataset_id, self.dataset_files.get(dataset_id)))
        _put(self.dataset_files, dataset_id, files)

    def set_dataset_object(self, sha256: str, held: tuple[int, float | None, frozenset[str]] | None) -> None:
        self.journal.append((self.set_dataset_object, sha256, self.dataset_objects.get(sha256)))
        _put(self.dataset_objects, sha256, held)

    def set_dataset_jobs(self, dataset_id: str, jobs: frozenset[str] | None) -> None:
        self.journal.append((self.set_dataset_jobs, dataset_id, self.dataset_jobs.get(dataset_id)))
        _put(self.dataset_jobs, dataset_id, jobs)

    def set_deleted_job(self, job_id: str, deleted: DeletedJob | None) -> None:
        self.journal.append((self.set_deleted_job, job_id, self.deleted_jobs.get(job_id)))
        _put(self.deleted_jobs, job_id, deleted)

    def set_spent(self, attempt_id: str, used: UsedAttempt | None) -> None:
        self.journal.append((self.set_spent, attempt_id, self.spent.get(attempt_id)))
        _put(self.spent, attempt_id, used)

    def set_ended_job(self, job_id: str, job: Job | None) -> None:
        """Removes an ended job, or puts it back. The observer, which counts what was used, is not told."""
        old = self.jobs.pop(job_id, None)
        self.journal.append((self.set_ended_job, job_id, old))
        if old is not None:
            self._unindex_job(old)
            del self.job_ids_by_seq[old.seq], self.seqs[bisect_left(self.seqs, old.seq)]
        if job is not None:
            self.jobs[job_id] = job
            self.job_ids_by_seq[job.seq] = job_id
            insort(self.seqs, job.seq)
            self._index_job(job)

    def set_ended_attempt(self, attempt_id: str, attempt: Attempt | None) -> None:
        """Does the same with an attempt."""
        old = self.attempts.pop(attempt_id, None)
        self.journal.append((self.set_ended_attempt, attempt_id, old))
        if old is not None:
            self._unindex_attempt(old)
        if attempt is not None:
            self.attempts[attempt_id] = attempt
            self._index_attempt(attempt)

    def set_counter(self, name: str, value: int) -> None:
        self.journal.append((self.set_counter, name, self.counters[name]))
        self.counters[name] = value

    def set_audit_entry(self, _: None, entry: AuditEntry | None) -> None:
        """Appends the entry; with None, removes the newest one."""
        self.journal.append((self.set_audit_entry, None, None))
        if entry is None:
            entry = self.audit.pop()
            self.audit_counts[entry.event_type] -= 1
            if entry.target_type == "job":
                self.audit_by_job[entry.target_id].pop()
        else:
            self.audit.append(entry)
            self.audit_counts[entry.event_type] += 1
            if entry.target_type == "job":
                self.audit_by_job[entry.target_id].append(entry)

    def set_audit_row(self, index: int, entry: AuditEntry) -> None:
        """Replaces the entry at this index."""
        was = self.audit[index]
        self.journal.append((self.set_audit_row, index, was))
        self.audit[index] = entry
        self.audit_counts[was.event_type] -= 1
        self.audit_counts[entry.event_type] += 1
        if was.target_type == "job":
            self.audit_by_job[was.target_id].remove(was)
        if entry.target_type == "job":
            insort(self.audit_by_job[entry.target_id], entry, key=lambda one: one.seq)


def _put(rows: dict[str, Any] | dict[tuple[str, str], Any], key: Any, value: Any) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


def _remove(places: list[Place], place: Place) -> None:
    del places[bisect_left(places, place)]
