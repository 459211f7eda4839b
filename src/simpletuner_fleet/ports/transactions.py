"""Declares what a step may read, and what it may write."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.core.jobs.finding import JobOrder, JobPlace
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.reports import UsedAttempt, UsedTime
from simpletuner_fleet.core.notices.endpoint import DeliveryTry, Endpoint
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports.deletions import DeletedJobsRead, DeletedJobsWrite
from simpletuner_fleet.ports.machines import MachinesRead, MachinesWrite
from simpletuner_fleet.ports.records import (
    ApiToken,
    AuditFilter,
    ConfigVersion,
    Ending,
    IdempotentAnswer,
    JobFilter,
    JobNote,
    SavedView,
    SetAsideRow,
    WaitingGroup,
)
from simpletuner_fleet.ports.scim import ScimRead, ScimWrite


class View(MachinesRead, ScimRead, DeletedJobsRead, Protocol):
    """Reads from the store.

    Every method costs one indexed look-up or one page, never the whole table, unless it says so.
    """

    def job(self, job_id: str) -> Job | None: ...
    def job_bundle(self, job_id: str) -> bytes | None: ...
    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        """Returns them newest first; `before_seq` is the cursor."""
        ...

    def jobs_sorted(self, where: JobFilter, order: JobOrder, after: JobPlace | None, limit: int) -> list[Job]:
        """Returns those after the place, in this order; all orders but by number may look at every job that fits."""
        ...

    def jobs_matching(self, where: JobFilter, most_ended: int | None = None) -> dict[str, int]:
        """Returns how many jobs fit, by state; of ended ones it may count any `most_ended`, and no others."""
        ...

    def waiting_groups(self, where: JobFilter, limit: int) -> list[WaitingGroup]:
        """Returns at most so many of those that fit, those with the most jobs first. Looks at every waiting job."""
        ...

    def queue_page(
        self, after: tuple[float, int] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Job]:
        """Returns queued jobs (held ones too) that may be seen, in scheduling order (rank, seq) after the cursor."""
        ...

    def queued_ahead(self, rank: float, seq: int, since: tuple[float, int] | None = None) -> int:
        """Returns how many queued jobs stand before this place, or from an earlier place `since` on up to it.

        Walks an index from there.
        """
        ...

    def job_counts(self, seen_by: VisibilityScope | None = None, owner: str | None = None) -> dict[str, int]:
        """Returns how many jobs are in which state. For one caller, or of one owner, it counts them one by one."""
        ...

    def job_titles(self, job_ids: Collection[str], seen_by: VisibilityScope | None = None) -> dict[str, str]:
        """Returns the name of each of them, or its config's: of those that there are and that may be seen."""
        ...

    def due_backoffs(self, now: float, limit: int) -> list[Job]: ...
    def next_backoff_at(self) -> float | None: ...
    def dependents_of(self, job_id: str, after_seq: int, limit: int) -> list[Job]:
        """Returns the first blocked jobs that name this one in `depends_on`, by number after the cursor."""
        ...

    def attempt(self, attempt_id: str) -> Attempt | None: ...
    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None: ...
    def attempt_by_upload_token(self, token_hash: str) -> Attempt | None: ...
    def attempts_of_job(self, job_id: str) -> list[Attempt]:
        """Returns them, oldest first."""
        ...

    def attempts_of_worker(self, worker_id: str, limit: int) -> list[Attempt]:
        """Returns them, newest first, live or ended."""
        ...

    def attempts_since(self, at: float, limit: int) -> list[Attempt]:
        """Returns, newest first, those that are live, and of those that ended at or after `at` the last `limit`."""
        ...

    def charges_since(self, at: float) -> list[Charge]:
        """Returns what every attempt that ended since then has cost. It is for the start of counting only."""
        ...

    def attempts_used(self, since: float, until: float) -> Iterator[UsedAttempt]:
        """Yields every attempt that was accepted and went on between the two, for reports.

        It reads them a part at a time: in a year there may be millions. It is used up within the look.
        """
        ...

    def time_used(self, since: float, now: float) -> list[UsedTime]:
        """Returns what all attempts that were accepted have used of GPUs since then: summed by the database."""
        ...

    def any_priced_attempt(self) -> bool:
        """Tells whether something was ever counted in money. May look at every attempt."""
        ...

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]: ...
    def live_attempts(self) -> list[Attempt]:
        """Returns all of them: for the start and for snapshots."""
        ...

    def worker(self, worker_id: str) -> Worker | None: ...
    def worker_by_token_hash(self, token_hash: str) -> Worker | None: ...
    def worker_by_name(self, name: str) -> Worker | None:
        """Finds a worker by name, without regard to case."""
        ...

    def workers(self) -> list[Worker]:
        """Returns all of them, oldest first."""
        ...

    def offline_workers_before(self, at: float) -> list[Worker]: ...
    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        """Returns the newest version unless one is named; None if unknown or deleted."""
        ...

    def configs(self) -> list[ConfigVersion]:
        """Returns the newest version of each living config, by name."""
        ...

    def config_versions(self, name: str) -> list[ConfigVersion]: ...
    def api_token(self, token_id: str) -> ApiToken | None: ...
    def api_token_by_hash(self, token_hash: str) -> ApiToken | None: ...
    def api_tokens(self) -> list[ApiToken]:
        """Returns all of them, oldest first."""
        ...

    def api_tokens_of(self, owner: str, name: str | None = None) -> list[ApiToken]:
        """Returns those that act for this user, oldest first; with a name, those of that name alone."""
        ...

    def user(self, user_id: str) -> User | None: ...
    def user_by_name(self, name: str) -> User | None:
        """Finds a user by name, without regard to case."""
        ...

    def user_by_subject(self, issuer: str, subject: str) -> User | None:
        """Returns the one whom this issuer vouches for by this name; None for an empty issuer."""
        ...

    def users(self) -> list[User]:
        """Returns all of them, oldest first."""
        ...

    def users_page(self, after: tuple[float, str] | None, limit: int) -> list[User]:
        """Returns them, oldest first, by (created at, id) after the cursor."""
        ...

    def session(self, token_hash: str) -> Session | None: ...
    def sessions_of_user(self, user_id: str) -> list[Session]:
        """Returns them, oldest first, whether they are still good or not."""
        ...

    def sessions_by_sid(self, issuer: str, sid: str) -> list[Session]:
        """Returns those that began at this issuer under this name; none for an empty one."""
        ...

    def sessions_of_issuer(self, issuer: str) -> list[Session]:
        """Returns all that began at this issuer. Looks at every session."""
        ...

    def idempotent_answer(self, key: str, owner: str) -> IdempotentAnswer | None: ...
    def rows_set_aside(self) -> list[SetAsideRow]:
        """Returns those that were met since the start and could not be read."""
        ...

    def setting(self, key: str) -> str | None: ...
    def settings_with_prefix(self, prefix: str) -> dict[str, str]:
        """Returns them by whole key, in order. Looks at every setting, of which there are few."""
        ...

    def audit_page(
        self, where: AuditFilter, limit: int, offset: int, newest_first: bool = True
    ) -> list[AuditEntry]: ...
    def audit_count(self, where: AuditFilter) -> int: ...
    def audit_stats(self) -> dict[str, int]:
        """Returns how many entries there are of each event type."""
        ...

    def audit_range(self, after_seq: int, limit: int) -> list[AuditEntry]:
        """Returns entries in order of sequence."""
        ...

    def audit_hashes(self, after_seq: int, limit: int) -> list[tuple[int, str]]:
        """Returns the sequence number and the hash of each, in order: what they say need not be read for that."""
        ...

    def audit_head(self) -> AuditEntry | None: ...
    def job_events(self, job_id: str, limit: int) -> list[AuditEntry]: ...
    def manifest(self, manifest_id: str) -> StoredManifest | None: ...
    def manifests_of_job(self, job_id: str) -> list[StoredManifest]:
        """Returns them, oldest first."""
        ...

    def newest_checkpoint(self, job_id: str) -> StoredManifest | None:
        """Returns the one with the highest step, then the newest."""
        ...

    def objects_of_job(self, job_id: str, shas: Collection[str] | None = None) -> dict[str, int]:
        """Returns the size by SHA-256 of what the job has uploaded whole and that is still stored: of all, or of these."""
        ...

    def stored_bytes_of_job(self, job_id: str) -> int:
        """Returns the size of all of that."""
        ...

    def stored_bytes_of(self, owner: str) -> int:
        """Returns the size of all that the jobs of this owner have uploaded."""
        ...

    def stored_bytes_of_team(self, team: str) -> int:
        """Returns the same of all jobs of a team."""
        ...

    def stored_bytes_by_owner(self) -> dict[str, int]:
        """Returns the same of everybody whose jobs have uploaded something."""
        ...

    def stored_bytes_of_jobs(self) -> int:
        """Returns the size of all that jobs have uploaded; the same content counts once."""
        ...

    def stored_is_miscounted(self) -> bool:
        """Tells whether these sizes are others than those of the rows. Walks all of them."""
        ...

    def unused_objects(self, before: float, limit: int) -> list[tuple[str, str]]:
        """Returns (job id, SHA-256) of uploads that no manifest of the job has named since `before`, longest first."""
        ...

    def endings(self, after: Ending, before: float, limit: int) -> list[Ending]:
        """Returns the endings of jobs that ended after this one and before that time, in their order. Looks at every job."""
        ...

    def object_has_owner(self, sha256: str) -> bool:
        """Tells whether any job still has it, or somebody uploaded it for a dataset."""
        ...

    def approval(self, job_id: str) -> Approval | None: ...
    def pending_approvals(
        self, after: tuple[float, str] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Approval]:
        """Returns those that jobs wait for that may be seen, by (asked at, job id) after the cursor."""
        ...

    def due_approvals(self, now: float, limit: int) -> list[Approval]:
        """Returns the undecided ones whose time is over, the longest due first."""
        ...

    def publication(self, job_id: str) -> Publication | None: ...
    def due_publications(self, now: float, limit: int) -> list[Publication]:
        """Returns those that are to be tried by now, the longest due first."""
        ...

    def endpoint(self, endpoint_id: str) -> Endpoint | None: ...
    def endpoints(self) -> list[Endpoint]:
        """Returns all of them, oldest first."""
        ...

    def deliveries(self, endpoint_id: str, limit: int) -> list[DeliveryTry]:
        """Returns them, newest first."""
        ...

    def notes_of_job(self, job_id: str) -> list[JobNote]:
        """Returns them, oldest first."""
        ...

    def saved_views(self, owner: str) -> list[SavedView]:
        """Returns them by name."""
        ...

    def dataset(self, dataset_id: str) -> Dataset | None: ...
    def datasets(self) -> list[Dataset]:
        """Returns all of them, newest first."""
        ...

    def unready_datasets(self, before: float) -> list[str]:
        """Returns the ids of those begun before this time and not finished, or hidden and not gone."""
        ...

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        """Returns its size, None where none of these datasets has such a file; its manifest is one of its files."""
        ...

    def dataset_objects(self, shas: Collection[str], claimant: str | None = None) -> dict[str, int]:
        """Returns the size by SHA-256 of those that were uploaded whole for a dataset and are still stored.

        With a claimant, it returns only those that they have sent themselves, or that a whole dataset names that is
        theirs or everybody's.
        """
        ...

    def dataset_bytes(self) -> int:
        """Returns the size of all that was uploaded for datasets. Walks all of it."""
        ...

    def unused_dataset_objects(self, before: float, limit: int) -> list[str]:
        """Returns the SHA-256 of uploads that no dataset has named since `before`, longest first."""
        ...

    def job_naming(self, dataset_id: str) -> str | None:
        """Returns the id of the first job that has not ended and names this dataset."""
        ...


class Tx(View, MachinesWrite, ScimWrite, DeletedJobsWrite, Protocol):
    """Runs one transaction on the store, in which a step reads and writes.

    All of it is durable when `Store.write` returns, or none of it happened.
    """

    def next_untold(self) -> str | None:
        """Returns a job that has ended and whose dependents may not all have been told; the longest ended first.

        It follows from the rows alone. After a start, and where a commit failed, it is every job that is over and that
        blocked jobs name.
        """
        ...

    def told_up_to(self, job_id: str) -> int | None:
        """Returns the number of the last dependent that was told of this job's end; None where nobody is left to tell."""
        ...

    def note_told(self, job_id: str, up_to_seq: int | None) -> None:
        """Notes how far that has come; None: nobody is left. It is no row: where it is lost, all are told once more."""
        ...

    def job_goes_on(self, job_id: str) -> bool:
        """Tells whether the job is known to have not ended; it is answered from memory."""
        ...

    def next_seq(self) -> int: ...
    def next_epoch(self) -> int:
        """Returns a number that strictly rises over the life of the store."""
        ...

    def raise_epoch_to(self, at_least: int) -> None: ...
    def add_job(self, job: Job, bundle: bytes) -> None: ...
    def save_job(self, job: Job) -> Job:
        """Stores it with version + 1 and returns it as it is read from now on.

        Raises ConcurrentChange unless `job.version` (as read) is the stored one.
        """
        ...

    def add_attempt(self, attempt: Attempt) -> None:
        """Raises ConcurrentChange if the job has a live attempt already."""
        ...

    def save_attempt(self, attempt: Attempt) -> None:
        """Stores it, guarded by id and epoch."""
        ...

    def add_worker(self, worker: Worker) -> None: ...
    def save_worker(self, worker: Worker) -> None:
        """Stores it with version + 1. Raises ConcurrentChange unless `worker.version` (as read) is the stored one."""
        ...

    def delete_worker(self, worker_id: str) -> None: ...
    def touch_heartbeats(self, heard: Sequence[tuple[str, float]]) -> None:
        """Sets last_heartbeat alone, without the guard and without raising the version."""
        ...

    def note_message_seq(self, worker_id: str, seq: int) -> None:
        """Raises message_seq alone, never lowers it, without the guard and without raising the version."""
        ...

    def add_config(self, config: ConfigVersion) -> None: ...
    def delete_config(self, name: str, at: float) -> None: ...
    def add_api_token(self, token: ApiToken) -> None: ...
    def save_api_token(self, token: ApiToken) -> None: ...
    def note_token_use(self, token_hash: str, at: float) -> None:
        """Sets last_used_at alone; does nothing where the token is gone."""
        ...

    def add_user(self, user: User) -> None:
        """Raises NameTaken if another user has the name."""
        ...

    def save_user(self, user: User) -> None:
        """Raises NameTaken, or ConcurrentChange if there is no such user."""
        ...

    def add_session(self, session: Session) -> None: ...
    def renew_session(self, token_hash: str, at: float) -> None:
        """Sets seen_at alone; does nothing where the session is gone."""
        ...

    def delete_session(self, token_hash: str) -> None: ...
    def delete_sessions_before(self, created_before: float, seen_before: float) -> None:
        """Deletes those made, or last seen, before that. Looks at every session."""
        ...

    def remember_answer(self, answer: IdempotentAnswer) -> None: ...
    def put_setting(self, key: str, value: str) -> None: ...
    def delete_setting(self, key: str) -> None: ...
    def append_audit(self, at: float, events: Iterable[Event]) -> list[AuditEntry]: ...
    def empty_audit(self, upto_seq: int, limit: int) -> int:
        """Leaves of the oldest entries up to this one number, time and hash alone; returns how many, at most `limit`."""
        ...

    def add_manifest(self, manifest: StoredManifest) -> None: ...
    def pin_manifest(self, manifest_id: str, by: str) -> None:
        """Notes who keeps it from being deleted; with an empty id nobody does."""
        ...

    def delete_manifest(self, manifest_id: str) -> None: ...
    def put_saved_view(self, view: SavedView) -> None:
        """Puts it in place of the one that the same owner has under the same name."""
        ...

    def delete_saved_view(self, owner: str, name: str) -> None: ...
    def own_object(self, job_id: str, sha256: str, size: int, at: float) -> None:
        """Records that the job has uploaded it whole. Unless a manifest names it, it counts as unused since `at`."""
        ...

    def own_objects(self, job_id: str, sizes: Mapping[str, int], at: float) -> None:
        """Records the same of many, by SHA-256, which costs little more than one."""
        ...

    def recount_stored(self) -> None: ...
    def mark_objects(self, job_id: str, shas: Collection[str], unused_since: float | None) -> None:
        """`unused_since` is None where a manifest of the job names them."""
        ...

    def disown_objects(self, rows: Collection[tuple[str, str]]) -> None:
        """Takes pairs of job id and SHA-256."""
        ...

    def put_approval(self, approval: Approval) -> None: ...
    def put_publication(self, publication: Publication) -> None: ...
    def put_endpoint(self, endpoint: Endpoint) -> None: ...
    def delete_endpoint(self, endpoint_id: str) -> None:
        """Deletes it and all that was sent there."""
        ...

    def add_delivery(self, delivery: DeliveryTry, keep: int) -> None:
        """Numbers it; of the endpoint's deliveries the newest `keep` stay."""
        ...

    def add_notes(self, notes: Sequence[JobNote]) -> int:
        """Returns how many were new: one whose (job, id) is known is left as it is."""
        ...

    def begin_dataset(self, dataset: Dataset) -> None:
        """Records a dataset that nobody sees yet; one that is known stays as it is.

        Its files come and go a few at a time: it may have many.
        """
        ...

    def add_dataset_files(self, dataset_id: str, files: Mapping[str, int]) -> None:
        """Takes the size of each by its SHA-256. Raises ConcurrentChange if the dataset is gone."""
        ...

    def finish_dataset(self, dataset_id: str, name: str, files: int) -> bool:
        """Lets it be seen under this name if it has so many files, its manifest among them; returns False if not."""
        ...

    def hide_dataset(self, dataset_id: str) -> None: ...
    def drop_dataset_files(self, dataset_id: str, at: float, limit: int) -> int:
        """Returns how many went; where fewer than `limit` did, it went itself if it was hidden.

        Content that no other dataset names counts as unused since `at`.
        """
        ...

    def own_dataset_object(self, sha256: str, size: int, at: float, owner: str = "") -> None:
        """Records that it was uploaded whole. Unless a dataset names it, it counts as unused since `at`."""
        ...

    def disown_dataset_objects(self, shas: Collection[str]) -> None: ...
    def name_datasets(self, job_id: str, dataset_ids: Collection[str]) -> None:
        """Records that the job needs these datasets: until it has ended they cannot be deleted."""
        ...
