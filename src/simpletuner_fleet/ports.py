"""What the shell must provide. The orchestrator knows these promises, never their homes."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.people.visibility import Belonging, Onlooker, Visibility
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.core.training.checkpoint import StoredManifest as StoredManifest
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.protocol.messages import AuditHead, JobSubmit

T = TypeVar("T")


TOKEN_USE_NOTED_EVERY_S = 3_600.0


class SignedHeads(Protocol):
    """Heads of the audit log that the orchestrator has signed, and proofs that later ones hold earlier ones."""

    newest: AuditHead | None

    def is_ours(self, head: AuditHead) -> bool: ...

    async def proofs(self, heads: Sequence[AuditHead], newest: AuditHead) -> list[list[str] | None]: ...


class ApiToken(Struct, frozen=True, kw_only=True):
    """A credential for people and programs. An empty permission set allows nothing."""

    id: str
    name: str
    token_hash: str
    permissions: tuple[str, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    """To the hour: a request need not be a write."""
    owner: str = ""
    """The user that it acts for; empty where a token without one has made it."""

    def wants_noting(self, now: float) -> bool:
        return self.last_used_at is None or now >= self.last_used_at + TOKEN_USE_NOTED_EVERY_S


class ConfigVersion(Struct, frozen=True, kw_only=True):
    name: str
    version: int
    bundle: bytes
    created_at: float
    created_by: str
    owner: str = ""
    """The same for all versions of a name: who saved the first, and may save others."""
    team: str = ""
    visibility: Visibility = Visibility.EVERYBODY
    """Team and visibility are the same for all versions, too."""

    @property
    def belongs(self) -> Belonging:
        return Belonging(self.owner, self.team, self.visibility)


class IdempotentAnswer(Struct, frozen=True, kw_only=True):
    key: str
    owner: str
    request_hash: str
    job_id: str
    at: float


class JobFilter(Struct, frozen=True, kw_only=True):
    states: tuple[str, ...] = ()
    owner: str | None = None
    worker_id: str | None = None
    config_name: str | None = None
    created_since: float | None = None
    text: str | None = None
    """Part of its name, its config's name or its id; the case of plain letters does not matter."""
    team: str | None = None
    seen_by: Onlooker | None = None
    """Only what they may see; None: everything."""


class AuditFilter(Struct, frozen=True, kw_only=True):
    event_type: str | None = None
    actor_id: str | None = None
    target_type: str | None = None
    target_id: str | None = None
    since: float | None = None
    until: float | None = None

    def fits(self, entry: AuditEntry) -> bool:
        return (
            (self.event_type is None or entry.event_type == self.event_type)
            and (self.actor_id is None or entry.actor_id == self.actor_id)
            and (self.target_type is None or entry.target_type == self.target_type)
            and (self.target_id is None or entry.target_id == self.target_id)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


class JobNote(Struct, frozen=True, kw_only=True):
    """A remark on an attempt, as its worker made it."""

    id: str
    job_id: str
    attempt_number: int
    at: float
    kind: str
    text: str
    data: dict[str, Any] = {}


class Ending(Struct, frozen=True, order=True):
    """When a job ended; those of one moment are ordered by their id."""

    at: float
    job_id: str


class SetAsideRow(Struct, frozen=True, kw_only=True):
    """A row that could not be read: a damaged disk, a hand in the database, a newer program."""

    table: str
    id: str
    why: str


class View(Protocol):
    """Reading. Every method costs one indexed look-up or one page, never the whole table, unless it says so."""

    def job(self, job_id: str) -> Job | None: ...
    def job_bundle(self, job_id: str) -> bytes | None: ...
    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        """Newest first; `before_seq` is the cursor."""
        ...

    def queue_page(
        self, after: tuple[float, int] | None, limit: int, seen_by: Onlooker | None = None
    ) -> list[Job]:
        """Queued jobs (held ones too) in scheduling order (rank, seq) after the cursor, as far as they may be seen."""
        ...

    def queued_ahead(self, rank: float, seq: int) -> int:
        """Returns how many queued jobs stand before this place. Walks an index: for single look-ups only."""
        ...

    def job_counts(self, seen_by: Onlooker | None = None) -> dict[str, int]:
        """Returns how many jobs are in which state. For an onlooker it counts those they may see, one by one."""
        ...

    def due_backoffs(self, now: float, limit: int) -> list[Job]: ...
    def next_backoff_at(self) -> float | None: ...
    def dependents_of(self, job_id: str) -> list[Job]:
        """Blocked jobs that name this one in `depends_on`."""
        ...

    def attempt(self, attempt_id: str) -> Attempt | None: ...
    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None: ...
    def attempt_by_upload_token(self, token_hash: str) -> Attempt | None: ...
    def attempts_of_job(self, job_id: str) -> list[Attempt]:
        """Oldest first."""
        ...

    def attempts_of_worker(self, worker_id: str, limit: int) -> list[Attempt]:
        """Newest first, live or ended."""
        ...

    def attempts_since(self, at: float, limit: int) -> list[Attempt]:
        """Ended at or after `at`, or live: the newest `limit` of them, newest first."""
        ...

    def charges_since(self, at: float) -> list[Charge]:
        """Returns what every attempt that ended since then has cost. For the start of counting only."""
        ...

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]: ...
    def live_attempts(self) -> list[Attempt]:
        """All of them: for the start and for snapshots."""
        ...

    def worker(self, worker_id: str) -> Worker | None: ...
    def worker_by_token_hash(self, token_hash: str) -> Worker | None: ...
    def worker_by_name(self, name: str) -> Worker | None:
        """Names compare without regard to case."""
        ...

    def workers(self) -> list[Worker]:
        """All of them, oldest first."""
        ...

    def offline_workers_before(self, at: float) -> list[Worker]: ...
    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        """The newest version unless one is named; None if unknown or deleted."""
        ...

    def configs(self) -> list[ConfigVersion]:
        """The newest version of each living config, by name."""
        ...

    def config_versions(self, name: str) -> list[ConfigVersion]: ...
    def api_token(self, token_id: str) -> ApiToken | None: ...
    def api_token_by_hash(self, token_hash: str) -> ApiToken | None: ...
    def api_tokens(self) -> list[ApiToken]: ...
    def user(self, user_id: str) -> User | None: ...
    def user_by_name(self, name: str) -> User | None:
        """Names compare without regard to case."""
        ...

    def users(self) -> list[User]:
        """All of them, oldest first."""
        ...

    def session(self, token_hash: str) -> Session | None: ...
    def sessions_of_user(self, user_id: str) -> list[Session]:
        """Oldest first, whether they are still good or not."""
        ...

    def idempotent_answer(self, key: str, owner: str) -> IdempotentAnswer | None: ...
    def rows_set_aside(self) -> list[SetAsideRow]:
        """Those that were met since the start and could not be read."""
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
        """Entries per event type."""
        ...

    def audit_range(self, after_seq: int, limit: int) -> list[AuditEntry]:
        """Entries in order of sequence."""
        ...

    def audit_hashes(self, after_seq: int, limit: int) -> list[tuple[int, str]]:
        """Returns the sequence number and the hash of each, in order: what they say need not be read for that."""
        ...

    def audit_head(self) -> AuditEntry | None: ...
    def job_events(self, job_id: str, limit: int) -> list[AuditEntry]: ...
    def manifest(self, manifest_id: str) -> StoredManifest | None: ...
    def manifests_of_job(self, job_id: str) -> list[StoredManifest]:
        """Oldest first."""
        ...

    def newest_checkpoint(self, job_id: str) -> StoredManifest | None:
        """The highest step, then the newest."""
        ...

    def objects_of_job(self, job_id: str) -> dict[str, int]:
        """Size by SHA-256 of all that the job has uploaded whole and that is still stored."""
        ...

    def stored_bytes_of(self, owner: str) -> int:
        """Of all that the jobs of this owner have uploaded. Walks all of it."""
        ...

    def stored_bytes_of_team(self, team: str) -> int:
        """The same of all jobs of a team."""
        ...

    def unused_objects(self, before: float, limit: int) -> list[tuple[str, str]]:
        """(job id, SHA-256) of uploads that no manifest of the job has named since `before`, longest first."""
        ...

    def endings(self, after: Ending, before: float, limit: int) -> list[Ending]:
        """Returns the endings of jobs that ended after this one and before that time, in their order. Looks at every job."""
        ...

    def object_has_owner(self, sha256: str) -> bool:
        """Tells whether any job still has it, or somebody uploaded it for a dataset."""
        ...

    def approval(self, job_id: str) -> Approval | None: ...
    def pending_approvals(self, limit: int) -> list[Approval]:
        """Those that wait for somebody's word, the oldest first."""
        ...

    def due_approvals(self, now: float, limit: int) -> list[Approval]:
        """Those of them whose time is over, the longest due first."""
        ...

    def publication(self, job_id: str) -> Publication | None: ...
    def due_publications(self, now: float, limit: int) -> list[Publication]:
        """Those that are to be tried by now, the longest due first."""
        ...

    def notes_of_job(self, job_id: str) -> list[JobNote]:
        """Oldest first."""
        ...

    def dataset(self, dataset_id: str) -> Dataset | None: ...
    def datasets(self) -> list[Dataset]:
        """All of them, newest first."""
        ...

    def unready_datasets(self, before: float) -> list[str]:
        """Ids of those begun before this time and not finished, or hidden and not gone."""
        ...

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        """None where none of these datasets has such a file; its manifest is one of its files."""
        ...

    def dataset_objects(self, shas: Collection[str], claimant: str | None = None) -> dict[str, int]:
        """Size by SHA-256 of those that were uploaded whole for a dataset and are still stored.

        With a claimant, only those that they have sent themselves, or that a whole dataset names.
        """
        ...

    def dataset_bytes(self) -> int:
        """Returns the size of all that was uploaded for datasets. Walks all of it."""
        ...

    def unused_dataset_objects(self, before: float, limit: int) -> list[str]:
        """SHA-256 of uploads that no dataset has named since `before`, longest first."""
        ...

    def job_naming(self, dataset_id: str) -> str | None:
        """The first job that has not ended and names this dataset."""
        ...


class Tx(View, Protocol):
    """Writing, inside one transaction: all of it is durable when `Store.write` returns, or none of it happened."""

    def next_seq(self) -> int: ...
    def next_epoch(self) -> int:
        """Strictly rising over the life of the store."""
        ...

    def raise_epoch_to(self, at_least: int) -> None: ...
    def add_job(self, job: Job, bundle: bytes) -> None: ...
    def save_job(self, job: Job) -> None:
        """Guarded by `job.version` (as read); raises ConcurrentChange. Stores version + 1."""
        ...

    def add_attempt(self, attempt: Attempt) -> None:
        """Raises ConcurrentChange if the job has a live attempt already."""
        ...

    def save_attempt(self, attempt: Attempt) -> None:
        """Guarded by id and epoch."""
        ...

    def add_worker(self, worker: Worker) -> None: ...
    def save_worker(self, worker: Worker) -> None:
        """Guarded by `worker.version` (as read); raises ConcurrentChange. Stores version + 1."""
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
        """Those made, or last seen, before that. Looks at every session."""
        ...

    def remember_answer(self, answer: IdempotentAnswer) -> None: ...
    def put_setting(self, key: str, value: str) -> None: ...
    def delete_setting(self, key: str) -> None: ...
    def append_audit(self, at: float, events: Iterable[Event]) -> list[AuditEntry]: ...
    def add_manifest(self, manifest: StoredManifest) -> None: ...
    def delete_manifest(self, manifest_id: str) -> None: ...
    def own_object(self, job_id: str, sha256: str, size: int, at: float) -> None:
        """The job has uploaded it whole. Unless a manifest names it, it counts as unused since `at`."""
        ...

    def mark_objects(self, job_id: str, shas: Collection[str], unused_since: float | None) -> None:
        """None: a manifest of the job names them."""
        ...

    def disown_objects(self, rows: Collection[tuple[str, str]]) -> None:
        """Takes pairs of job id and SHA-256."""
        ...

    def put_approval(self, approval: Approval) -> None: ...
    def put_publication(self, publication: Publication) -> None: ...
    def add_notes(self, notes: Sequence[JobNote]) -> int:
        """Returns how many were new: one whose (job, id) is known is left as it is."""
        ...

    def begin_dataset(self, dataset: Dataset) -> None:
        """Nobody sees it yet; one that is known stays as it is. Its files come and go a few at a time: it may have many."""
        ...

    def add_dataset_files(self, dataset_id: str, files: Mapping[str, int]) -> None:
        """Size by SHA-256. Raises ConcurrentChange if the dataset is gone."""
        ...

    def finish_dataset(self, dataset_id: str, name: str, files: int) -> bool:
        """Lets it be seen under this name if it has so many files, its manifest among them; False if not."""
        ...

    def hide_dataset(self, dataset_id: str) -> None: ...
    def drop_dataset_files(self, dataset_id: str, at: float, limit: int) -> int:
        """Returns how many went; fewer than `limit`, and it went itself if it was hidden.

        Content that no other dataset names counts as unused since `at`.
        """
        ...

    def own_dataset_object(self, sha256: str, size: int, at: float, owner: str = "") -> None:
        """It was uploaded whole. Unless a dataset names it, it counts as unused since `at`."""
        ...

    def disown_dataset_objects(self, shas: Collection[str]) -> None: ...
    def name_datasets(self, job_id: str, dataset_ids: Collection[str]) -> None:
        """The job needs them: until it has ended they cannot be deleted."""
        ...


class ConcurrentChange(Exception):
    """The row changed between being read and being written; nothing of the transaction was kept."""


class RowObserver(Protocol):
    """Follows every change of a live row, in the order of changes; an undone change is told as one more."""

    def rows_reset(self) -> None:
        """Memory was lost: every row that is live will be told anew, as if it had just come."""
        ...

    def worker_changed(self, before: Worker | None, after: Worker | None) -> None: ...
    def job_changed(self, before: Job | None, after: Job | None) -> None: ...
    def attempt_changed(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        """`job` is the attempt's own, as far as it can be read."""
        ...


class Store(Protocol):
    def observe(self, observer: RowObserver) -> None:
        """Tells this observer of every live row before the next step, and of every change from then on."""
        ...

    async def write(self, step: Callable[[Tx], T]) -> T:
        """Runs `step` in a transaction of its own; returns when it is durable. An exception keeps nothing of it.

        Raises core.errors.StoreUnavailable when the database cannot accept. Steps run one at a time, in order. A step
        may be undone and run again before it is kept, so it has no effect but through its transaction.
        """
        ...

    async def read(self, look: Callable[[View], T]) -> T:
        """Sees every write that has returned."""
        ...

    def find_trouble(self) -> str | None:
        """Returns why it takes no more writes until it is opened anew, if that is so."""
        ...

    async def close(self) -> None: ...


MARK = "fleet.json"
"""What says whose a storage is, at its root."""


class Blobs(Protocol):
    """Bytes too many for the database. Keys are ids joined by '/', made by us, never taken from a user."""

    async def append(self, key: str, offset: int, data: bytes) -> int:
        """Writes at `offset` if the blob is at least that long; returns the blob's length. Repeats are harmless."""
        ...

    async def read(self, key: str, start: int, length: int) -> bytes: ...
    async def size(self, key: str) -> int: ...
    async def truncate(self, key: str, size: int) -> None:
        """Takes back what was appended beyond `size`; a shorter blob stays as it is, and none is left of size 0."""
        ...

    async def delete(self, prefix: str) -> None: ...
    async def names(self, prefix: str) -> list[str]:
        """The next segments of all keys beneath this one."""
        ...

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        """Does as `append`, for the parts of an object that is on its way."""
        ...

    async def part_size(self, key: str) -> int: ...
    async def seal(self, key: str, sha256: str, size: int) -> bool:
        """Makes the parts an object if they are what they should be; drops them if not. Durable on return."""
        ...

    async def object_size(self, sha256: str) -> int | None:
        """None where there is no such object."""
        ...

    async def read_object(self, sha256: str, start: int, length: int) -> bytes: ...
    async def delete_object(self, sha256: str) -> None: ...
    async def mark(self, name: str = MARK) -> bytes | None:
        """A small file that the storage carries at its root, beside everything else; None where it is not there."""
        ...

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        """Whole or not at all, durable on return, and the same for every server that shares the storage."""
        ...

    def objects(self) -> AsyncIterator[str]:
        """The SHA-256 of everything stored, in no order. Walks all of it: for the sweep only."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970 that never jump: wall time read once, then carried by the monotonic clock."""
        ...


class Ids(Protocol):
    def new(self, prefix: str) -> str: ...
    def token(self, prefix: str) -> str: ...
    def derived_token(self, prefix: str, of: str) -> str:
        """A token that only this orchestrator can make, the same one each time, so that it need not be stored."""
        ...


class Vault(Protocol):
    """Seals values for the store, each for one name, with a key that is not in the store."""

    def seal(self, name: str, value: str) -> str: ...
    def unseal(self, name: str, sealed: str) -> str | None:
        """None where it was not sealed with this key and for this name."""
        ...


class Streams(Protocol):
    """Who listens. Every call is a hint: what is true is in the store."""

    def wake(self, worker_id: str) -> None:
        """Whoever holds this worker's stream looks again at what it should send."""
        ...

    def offer(self, worker_id: str, offers: Sequence[JobSubmit]) -> None:
        """Whoever holds this worker's stream sends these, or looks again."""
        ...

    def cut(self, worker_id: str, why: str) -> None: ...
    def publish(self, event: str, data: dict[str, Any]) -> None:
        """A thin event for every console and CLI that watches."""
        ...
