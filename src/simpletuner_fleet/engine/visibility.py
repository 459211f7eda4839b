"""Shows one caller what they may see of the store; every read of a person or a program goes through here.

The rule is `core.people.visibility.may_see`; here it is applied between whoever reads and the rows. What may not be
seen is not there: no list counts it, and a search for it finds nothing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.jobs.finding import JobOrder, JobPlace
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.money.reports import UsedAttempt, UsedTime, seen_owner, seen_use
from simpletuner_fleet.core.people.approvals import Approval
from simpletuner_fleet.core.people.visibility import FULL_VISIBILITY, VisibilityScope, knows_of, may_see
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.publishing import Publication
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.ports import ConfigVersion, JobFilter, JobNote, StoredManifest, View, WaitingGroup

T = TypeVar("T")
UNSCOPED = frozenset(
    {
        *("deleted_jobs_with_files", "deleted_jobs_since", "dependents_of"),
        *("queued_ahead", "due_backoffs", "next_backoff_at", "charges_since", "any_priced_attempt"),
        *("worker", "worker_by_token_hash", "worker_by_name", "workers", "offline_workers_before"),
        *("api_token", "api_token_by_hash", "api_tokens", "api_tokens_of"),
        *("session", "sessions_of_user", "sessions_by_sid", "sessions_of_issuer"),
        *("user", "user_by_name", "user_by_subject", "users", "users_page", "setting"),
        "settings_with_prefix",
        *("audit_page", "audit_count", "audit_stats", "audit_range", "audit_hashes", "audit_head"),
        *(
            "stored_bytes_of",
            "stored_bytes_of_team",
            "stored_bytes_by_owner",
            "stored_is_miscounted",
            "unused_objects",
            "object_has_owner",
            "endings",
        ),
        # An endpoint is shown to its owner alone (orchestrator/notices), and so is a saved view (orchestrator/steering).
        *("scim_entry", "scim_entry_by_name", "scim_entries_by_external_id", "scim_page", "scim_count"),
        *("scim_members", "scim_groups_of"),
        *("endpoint", "endpoints", "deliveries", "saved_views", "stored_bytes_of_jobs"),
        *("due_approvals", "due_publications", "unready_datasets", "dataset_objects", "dataset_bytes"),
        *("machine_by_join_hash", "machines_that_count", "unreadable_machines"),
        *("unused_dataset_objects", "rows_set_aside", "attempt_by_upload_token", "idempotent_answer"),
    }
)
"""What of a view is as it is for every caller: it belongs to nobody, is asked for by routes with a permission of their
own, or only by the server itself. What is named neither here nor below cannot be asked for at all."""


class ScopedView:
    """Leaves out what the caller may not see; all else is as in the view behind it."""

    def __init__(self, whole: View, scope: VisibilityScope) -> None:
        self.whole = whole
        self.scope = scope

    def __getattr__(self, name: str) -> Any:
        if name not in UNSCOPED:
            raise AttributeError(f"nobody has said who may see what {name} finds (engine/visibility.py)")
        return getattr(self.whole, name)

    def job(self, job_id: str) -> Job | None:
        job = self.whole.job(job_id)
        return job if job and may_see(self.scope, job.belongs) else None

    def deleted_job(self, job_id: str) -> DeletedJob | None:
        deleted = self.whole.deleted_job(job_id)
        return deleted if deleted and may_see(self.scope, deleted.belongs) else None

    def job_bundle(self, job_id: str) -> bytes | None:
        return self.whole.job_bundle(job_id) if self.job(job_id) else None

    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        return self.whole.jobs_page(replace(where, seen_by=self.scope), before_seq, limit)

    def jobs_sorted(self, where: JobFilter, order: JobOrder, after: JobPlace | None, limit: int) -> list[Job]:
        return self.whole.jobs_sorted(replace(where, seen_by=self.scope), order, after, limit)

    def jobs_matching(self, where: JobFilter, most_ended: int | None = None) -> dict[str, int]:
        return self.whole.jobs_matching(replace(where, seen_by=self.scope), most_ended)

    def waiting_groups(self, where: JobFilter, limit: int) -> list[WaitingGroup]:
        return self.whole.waiting_groups(replace(where, seen_by=self.scope), limit)

    def queue_page(self, after: tuple[float, int] | None, limit: int) -> list[Job]:
        return self.whole.queue_page(after, limit, self.scope)

    def job_counts(self, *, owner: str | None = None) -> dict[str, int]:
        return self.whole.job_counts(self.scope, owner)

    def job_titles(self, job_ids: Collection[str]) -> dict[str, str]:
        return self.whole.job_titles(job_ids, self.scope)

    def job_naming(self, dataset_id: str) -> str | None:
        named_by = self.whole.job_naming(dataset_id)
        return named_by if named_by and self.job(named_by) else None

    def attempt(self, attempt_id: str) -> Attempt | None:
        attempt = self.whole.attempt(attempt_id)
        return attempt if attempt and self.job(attempt.job_id) else None

    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None:
        return self.whole.attempt_by_epoch(job_id, epoch) if self.job(job_id) else None

    def live_attempts(self) -> list[Attempt]:
        return self._without_names(self.whole.live_attempts())

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]:
        return self._without_names(self.whole.live_attempts_of_worker(worker_id))

    def _without_names(self, attempts: list[Attempt]) -> list[Attempt]:
        """Returns the attempts without ids where the caller may not see the job: that a GPU is held is no secret."""
        return [one if self._sees_job(one.job_id) else replace(one, id="", job_id="") for one in attempts]

    def _sees_job(self, job_id: str) -> bool:
        """Tells whether the caller may see a job among others; of one that cannot be read nobody knows whose it is."""
        job = readable_job(self.whole, job_id)
        return job is not None and may_see(self.scope, job.belongs)

    def attempts_of_job(self, job_id: str) -> list[Attempt]:
        return self.whole.attempts_of_job(job_id) if self.job(job_id) else []

    def attempts_of_worker(self, worker_id: str, limit: int) -> list[Attempt]:
        return [one for one in self.whole.attempts_of_worker(worker_id, limit) if self._sees_job(one.job_id)]

    def attempts_since(self, at: float, limit: int) -> list[Attempt]:
        attempts = self.whole.attempts_since(at, limit)
        seen = self.job_titles([one.job_id for one in attempts])
        return [one for one in attempts if one.job_id in seen]

    def attempts_used(self, since: float, until: float) -> Iterator[UsedAttempt]:
        used = self.whole.attempts_used(since, until)
        return (seen for one in used if (seen := seen_use(self.scope, one)))

    def time_used(self, since: float, now: float) -> list[UsedTime]:
        used = ((one, seen_owner(self.scope, one)) for one in self.whole.time_used(since, now))
        return [replace(one, owner=owner) for one, owner in used if owner is not None]

    def job_events(self, job_id: str, limit: int) -> list[AuditEntry]:
        return self.whole.job_events(job_id, limit) if self.job(job_id) else []

    def notes_of_job(self, job_id: str) -> list[JobNote]:
        return self.whole.notes_of_job(job_id) if self.job(job_id) else []

    def objects_of_job(self, job_id: str, shas: Collection[str] | None = None) -> dict[str, int]:
        return self.whole.objects_of_job(job_id, shas) if self.job(job_id) else {}

    def stored_bytes_of_job(self, job_id: str) -> int:
        return self.whole.stored_bytes_of_job(job_id) if self.job(job_id) else 0

    def approval(self, job_id: str) -> Approval | None:
        return self.whole.approval(job_id) if self.job(job_id) else None

    def pending_approvals(self, after: tuple[float, str] | None, limit: int) -> list[Approval]:
        return self.whole.pending_approvals(after, limit, self.scope)

    def manifest(self, manifest_id: str) -> StoredManifest | None:
        manifest = self.whole.manifest(manifest_id)
        return manifest if manifest and self.job(manifest.job_id) else None

    def manifests_of_job(self, job_id: str) -> list[StoredManifest]:
        return self.whole.manifests_of_job(job_id) if self.job(job_id) else []

    def newest_checkpoint(self, job_id: str) -> StoredManifest | None:
        return self.whole.newest_checkpoint(job_id) if self.job(job_id) else None

    def publication(self, job_id: str) -> Publication | None:
        return self.whole.publication(job_id) if self.job(job_id) else None

    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        config = self.whole.config(name, version)
        return config if config and may_see(self.scope, config.belongs) else None

    def configs(self) -> list[ConfigVersion]:
        return [one for one in self.whole.configs() if may_see(self.scope, one.belongs)]

    def config_versions(self, name: str) -> list[ConfigVersion]:
        return [one for one in self.whole.config_versions(name) if may_see(self.scope, one.belongs)]

    def pool(self, name: str) -> MachinePool | None:
        pool = self.whole.pool(name)
        return pool if pool and knows_of(self.scope, pool.audience) else None

    def pools(self) -> list[MachinePool]:
        return [one for one in self.whole.pools() if knows_of(self.scope, one.audience)]

    def machine(self, machine_id: str) -> Machine | None:
        machine = self.whole.machine(machine_id)
        return machine if machine and self.pool(machine.pool) else None

    def machines_since(self, gone_after: float) -> list[Machine]:
        known = {pool.name for pool in self.pools()}
        return [one for one in self.whole.machines_since(gone_after) if one.pool in known]

    def dataset(self, dataset_id: str) -> Dataset | None:
        dataset = self.whole.dataset(dataset_id)
        return dataset if dataset and may_see(self.scope, dataset.belongs) else None

    def datasets(self) -> list[Dataset]:
        return [one for one in self.whole.datasets() if may_see(self.scope, one.belongs)]

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        return self.whole.dataset_file_size([one for one in dataset_ids if self.dataset(one)], sha256)


def restricted(view: View, scope: VisibilityScope) -> View:
    return view if scope.above else cast(View, ScopedView(view, scope))


def unrestricted(view: View) -> View:
    """Returns the view behind a caller's, which must never be used to show whose something is.

    It is for counting who holds which GPU, and for what may exist only once.
    """
    return view.whole if isinstance(view, ScopedView) else view


def scope_of(view: View) -> VisibilityScope:
    return view.scope if isinstance(view, ScopedView) else FULL_VISIBILITY


class CallersFleet(Fleet):
    """Is the fleet for one caller: it shows all, but their long looks come one after another."""

    __slots__ = ("_caller",)

    def __init__(self, fleet: Fleet, caller: str) -> None:
        self.__dict__ = fleet.__dict__
        self._caller = caller

    async def scan(self, look: Callable[[View], T]) -> T:
        """Does as the fleet's, when the caller's turn has come. Raises TooManyRequests where that takes too long."""
        async with self.scan_gate.inside(self._caller):
            return await super().scan(look)


class ScopedFleet(Fleet):
    """Shows the fleet as one caller sees it; all but its reads is shared with the fleet itself."""

    __slots__ = ("_scope_of",)

    def __init__(self, fleet: Fleet, visibility_scope_of: Callable[[], VisibilityScope]) -> None:
        self.__dict__ = fleet.__dict__
        self._scope_of = visibility_scope_of

    @property
    def sees_everything(self) -> bool:
        return self._scope_of().above

    async def read(self, look: Callable[[View], T]) -> T:
        scope = self._scope_of()
        return await super().read(lambda view: look(restricted(view, scope)))

    async def scan(self, look: Callable[[View], T]) -> T:
        """Does the same for a caller who sees a part; whoever acts for a person is one caller with them."""
        scope = self._scope_of()
        async with self.scan_gate.inside(max(scope.ids, default="")):
            return await super().scan(lambda view: look(restricted(view, scope)))

    async def read_now(self, look: Callable[[View], T]) -> T:
        scope = self._scope_of()
        return await super().read_now(lambda view: look(restricted(view, scope)))
