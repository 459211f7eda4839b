"""Reads the memory store."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.reports import UsedAttempt, UsedTime, used_attempt
from simpletuner_fleet.core.people.accounts import Session, User
from simpletuner_fleet.core.people.approvals import Approval, ApprovalState, waits_for_approval
from simpletuner_fleet.core.people.visibility import VisibilityScope, may_see
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.core.publishing import Publication, PublicationState
from simpletuner_fleet.core.training.checkpoint import newest_checkpoint
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.ports import (
    ApiToken,
    AuditFilter,
    ConfigVersion,
    Ending,
    IdempotentAnswer,
    JobFilter,
    JobNote,
    SetAsideRow,
    StoredManifest,
)
from simpletuner_fleet.store.memory.datasets import MemoryDatasetsView
from simpletuner_fleet.store.memory.deleted_jobs import MemoryDeletedJobsView
from simpletuner_fleet.store.memory.endpoints import MemoryEndpointsView
from simpletuner_fleet.store.memory.finding import MemoryFindingView
from simpletuner_fleet.store.memory.machines import MemoryMachinesView
from simpletuner_fleet.store.memory.scim import MemoryScimView
from simpletuner_fleet.store.memory.tables import Tables
from simpletuner_fleet.store.rows.live_rows import by_epoch
from simpletuner_fleet.store.rows.text import name_key

AFTER_EVERY_ID = "\U0010ffff"
BEFORE_EVERY_ID = ""


class MemoryView(
    MemoryDatasetsView,
    MemoryDeletedJobsView,
    MemoryEndpointsView,
    MemoryFindingView,
    MemoryMachinesView,
    MemoryScimView,
):
    """Implements ports.View over dictionaries and sorted lists."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def job(self, job_id: str) -> Job | None:
        return self._tables.jobs.get(job_id)

    def job_bundle(self, job_id: str) -> bytes | None:
        return self._tables.bundles.get(job_id)

    def jobs_page(self, where: JobFilter, before_seq: int | None, limit: int) -> list[Job]:
        return list(islice((job for job in self._newest_first(before_seq) if self._fits(job, where)), limit))

    def _newest_first(self, before_seq: int | None) -> Iterator[Job]:
        tables = self._tables
        end = len(tables.seqs) if before_seq is None else bisect_left(tables.seqs, before_seq)
        for index in range(end - 1, -1, -1):
            yield tables.jobs[tables.job_ids_by_seq[tables.seqs[index]]]

    def queue_page(
        self, after: tuple[float, int] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Job]:
        queue = self._tables.queue
        start = 0 if after is None else bisect_right(queue, (*after, AFTER_EVERY_ID))
        jobs = (self._tables.jobs[job_id] for _, _, job_id in islice(queue, start, None))
        return list(islice((job for job in jobs if _seen(job, seen_by)), limit))

    def queued_ahead(self, rank: float, seq: int, since: tuple[float, int] | None = None) -> int:
        queue = self._tables.queue
        before = bisect_left(queue, (*since, BEFORE_EVERY_ID)) if since else 0
        return bisect_left(queue, (rank, seq, BEFORE_EVERY_ID)) - before

    def job_counts(self, seen_by: VisibilityScope | None = None, owner: str | None = None) -> dict[str, int]:
        if owner is not None or (seen_by is not None and not seen_by.above):
            jobs = (one for one in self._tables.jobs.values() if owner is None or one.owner == owner)
            return dict(Counter(str(job.state) for job in jobs if seen_by is None or _seen(job, seen_by)))
        return {str(state): count for state, count in self._tables.state_counts.items() if count}

    def due_backoffs(self, now: float, limit: int) -> list[Job]:
        due: list[Job] = []
        for not_before, _, job_id in self._tables.backoffs:
            if not_before > now or len(due) == limit:
                break
            due.append(self._tables.jobs[job_id])
        return due

    def next_backoff_at(self) -> float | None:
        backoffs = self._tables.backoffs
        return backoffs[0][0] if backoffs else None

    def job_titles(self, job_ids: Collection[str], seen_by: VisibilityScope | None = None) -> dict[str, str]:
        jobs = filter(None, map(self._tables.jobs.get, job_ids))
        return {job.id: job.name or job.config_name for job in jobs if _seen(job, seen_by)}

    def dependents_of(self, job_id: str, after_seq: int, limit: int) -> list[Job]:
        return self._tables.dependents_of(job_id, after_seq, limit)

    def attempt(self, attempt_id: str) -> Attempt | None:
        return self._tables.attempts.get(attempt_id)

    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None:
        return self._tables.attempts.get(self._tables.attempt_ids.get(Turn(job_id, epoch), ""))

    def attempt_by_upload_token(self, token_hash: str) -> Attempt | None:
        attempts = self._attempts(self._tables.attempts_by_upload_token.get(token_hash, ()))
        return max(attempts, key=by_epoch, default=None)

    def attempts_of_job(self, job_id: str) -> list[Attempt]:
        return sorted(self._attempts(self._tables.attempts_by_job.get(job_id, ())), key=by_epoch)

    def attempts_of_worker(self, worker_id: str, limit: int) -> list[Attempt]:
        ids = self._tables.attempts_by_worker.get(worker_id, ())
        return sorted(self._attempts(ids), key=by_epoch, reverse=True)[:limit]

    def attempts_since(self, at: float, limit: int) -> list[Attempt]:
        attempts = self._tables.attempts.values()
        ended = [(one.ended_at, one) for one in attempts if one.ended_at is not None and one.ended_at >= at]
        ended.sort(key=lambda row: row[0], reverse=True)
        recent = [*(one for one in attempts if one.live), *(one for _, one in ended[:limit])]
        return sorted(recent, key=by_epoch, reverse=True)

    def charges_since(self, at: float) -> list[Charge]:
        ended = [
            Charge(
                job.owner,
                job.team,
                len(one.gpus),
                one.accepted_at,
                one.ended_at,
                one.hourly_micros,
                one.rates,
            )
            for one in self._tables.attempts.values()
            if one.accepted_at is not None
            and one.ended_at is not None
            and one.ended_at >= at
            and (job := self._tables.jobs.get(one.job_id))
        ]
        ended += [
            Charge(one.owner, one.team, one.gpus, one.begun_at, one.ended_at, one.hourly_micros, one.rates)
            for one in self._tables.spent.values()
            if one.ended_at is not None and one.ended_at >= at
        ]
        return sorted(ended, key=lambda charge: charge.ended_at)

    def attempts_used(self, since: float, until: float) -> Iterator[UsedAttempt]:
        def by_end(id: str, ended_at: float | None) -> tuple[bool, float, str]:
            return ended_at is None, ended_at or 0.0, id

        spent = sorted(self._tables.spent.items(), key=lambda pair: by_end(pair[0], pair[1].ended_at))
        for _, one in spent:
            if one.begun_at < until and one.ended_at is not None and one.ended_at > since:
                yield one
        for attempt in sorted(self._tables.attempts.values(), key=lambda one: by_end(one.id, one.ended_at)):
            begun_at, ended_at = attempt.accepted_at, attempt.ended_at
            lies_between = attempt.live or (ended_at is not None and ended_at > since)
            job = self._tables.jobs.get(attempt.job_id)
            if job is not None and begun_at is not None and begun_at < until and lies_between:
                yield used_attempt(job, attempt, begun_at)

    def time_used(self, since: float, now: float) -> list[UsedTime]:
        return [
            UsedTime(
                owner=one.owner,
                team=one.team,
                visibility=one.visibility,
                gpu_seconds=max(0.0, (one.ended_at or now) - max(one.begun_at, since)) * one.gpus,
            )
            for one in self.attempts_used(since, float("inf"))
        ]

    def any_priced_attempt(self) -> bool:
        priced = [(one.hourly_micros, one.rates) for one in self._tables.attempts.values()]
        priced += [(one.hourly_micros, one.rates) for one in self._tables.spent.values()]
        return any(price is not None or rates for price, rates in priced)

    def live_attempts_of_worker(self, worker_id: str) -> list[Attempt]:
        return self._tables.live_of_worker(worker_id)

    def live_attempts(self) -> list[Attempt]:
        live = (attempt for held in self._tables.live_by_worker.values() for attempt in held.values())
        return sorted(live, key=by_epoch)

    def _attempts(self, ids: Iterable[str]) -> Iterator[Attempt]:
        return (self._tables.attempts[attempt_id] for attempt_id in ids)

    def worker(self, worker_id: str) -> Worker | None:
        return self._tables.workers.get(worker_id)

    def worker_by_token_hash(self, token_hash: str) -> Worker | None:
        return self._tables.workers.get(self._tables.worker_ids_by_hash.get(token_hash, ""))

    def worker_by_name(self, name: str) -> Worker | None:
        return self._tables.workers.get(self._tables.worker_ids_by_name.get(name_key(name), ""))

    def workers(self) -> list[Worker]:
        return sorted(self._tables.workers.values(), key=lambda worker: (worker.created_at, worker.id))

    def offline_workers_before(self, at: float) -> list[Worker]:
        gone = [
            (worker.offline_since, worker.id, worker)
            for worker in self._tables.workers.values()
            if worker.connection is Connection.OFFLINE and worker.offline_since is not None
        ]
        return [worker for since, _, worker in sorted(gone, key=lambda row: row[:2]) if since < at]

    def config(self, name: str, version: int | None = None) -> ConfigVersion | None:
        versions = self._tables.configs.get(name)
        if not versions:
            return None
        return versions.get(max(versions) if version is None else version)

    def configs(self) -> list[ConfigVersion]:
        return [versions[max(versions)] for _, versions in sorted(self._tables.configs.items()) if versions]

    def config_versions(self, name: str) -> list[ConfigVersion]:
        return [config for _, config in sorted(self._tables.configs.get(name, {}).items())]

    def api_token(self, token_id: str) -> ApiToken | None:
        return self._tables.tokens.get(token_id)

    def api_token_by_hash(self, token_hash: str) -> ApiToken | None:
        return self._tables.tokens.get(self._tables.token_ids_by_hash.get(token_hash, ""))

    def api_tokens(self) -> list[ApiToken]:
        return sorted(self._tables.tokens.values(), key=lambda token: (token.created_at, token.id))

    def api_tokens_of(self, owner: str, name: str | None = None) -> list[ApiToken]:
        return [one for one in self.api_tokens() if one.owner == owner and name in (None, one.name)]

    def user(self, user_id: str) -> User | None:
        return self._tables.users.get(user_id)

    def user_by_name(self, name: str) -> User | None:
        return self._tables.users.get(self._tables.user_ids_by_name.get(name_key(name), ""))

    def user_by_subject(self, issuer: str, subject: str) -> User | None:
        mine = (user for user in self._tables.users.values() if issuer and user.issuer == issuer)
        return next((user for user in mine if user.subject == subject), None)

    def users(self) -> list[User]:
        return sorted(self._tables.users.values(), key=lambda user: (user.created_at, user.id))

    def users_page(self, after: tuple[float, str] | None, limit: int) -> list[User]:
        return [one for one in self.users() if after is None or (one.created_at, one.id) > after][:limit]

    def session(self, token_hash: str) -> Session | None:
        return self._tables.sessions.get(token_hash)

    def sessions_of_user(self, user_id: str) -> list[Session]:
        mine = [session for session in self._tables.sessions.values() if session.user_id == user_id]
        return sorted(mine, key=lambda session: (session.created_at, session.token_hash))

    def sessions_of_issuer(self, issuer: str) -> list[Session]:
        begun = [one for one in self._tables.sessions.values() if one.issuer == issuer]
        return sorted(begun, key=lambda session: (session.created_at, session.token_hash))

    def sessions_by_sid(self, issuer: str, sid: str) -> list[Session]:
        begun = [
            one for one in self._tables.sessions.values() if sid and (one.issuer, one.sid) == (issuer, sid)
        ]
        return sorted(begun, key=lambda session: (session.created_at, session.token_hash))

    def idempotent_answer(self, key: str, owner: str) -> IdempotentAnswer | None:
        return self._tables.answers.get((key, owner))

    def rows_set_aside(self) -> list[SetAsideRow]:
        return []

    def setting(self, key: str) -> str | None:
        return self._tables.settings.get(key)

    def settings_with_prefix(self, prefix: str) -> dict[str, str]:
        return {key: value for key, value in sorted(self._tables.settings.items()) if key.startswith(prefix)}

    def audit_page(
        self, where: AuditFilter, limit: int, offset: int, newest_first: bool = True
    ) -> list[AuditEntry]:
        entries = reversed(self._tables.audit) if newest_first else iter(self._tables.audit)
        return list(islice((entry for entry in entries if where.fits(entry)), offset, offset + limit))

    def audit_count(self, where: AuditFilter) -> int:
        return sum(where.fits(entry) for entry in self._tables.audit)

    def audit_stats(self) -> dict[str, int]:
        return {kind: count for kind, count in self._tables.audit_counts.items() if kind and count}

    def audit_range(self, after_seq: int, limit: int) -> list[AuditEntry]:
        return self._tables.audit[after_seq : after_seq + limit]

    def audit_hashes(self, after_seq: int, limit: int) -> list[tuple[int, str]]:
        return [(entry.seq, entry.hash) for entry in self.audit_range(after_seq, limit)]

    def audit_head(self) -> AuditEntry | None:
        return self._tables.audit[-1] if self._tables.audit else None

    def job_events(self, job_id: str, limit: int) -> list[AuditEntry]:
        """Returns the newest `limit` events of the job, oldest first."""
        return self._tables.audit_by_job.get(job_id, [])[-limit:] if limit else []

    def manifest(self, manifest_id: str) -> StoredManifest | None:
        return self._tables.manifests.get(manifest_id)

    def manifests_of_job(self, job_id: str) -> list[StoredManifest]:
        manifests = (self._tables.manifests[id] for id in self._tables.manifests_by_job.get(job_id, ()))
        return sorted(manifests, key=lambda manifest: (manifest.created_at, manifest.id))

    def newest_checkpoint(self, job_id: str) -> StoredManifest | None:
        return newest_checkpoint(self.manifests_of_job(job_id))

    def objects_of_job(self, job_id: str, shas: Collection[str] | None = None) -> dict[str, int]:
        held = self._tables.objects.get(job_id, {})
        return {sha256: held[sha256][0] for sha256 in (held if shas is None else held.keys() & shas)}

    def stored_bytes_of_job(self, job_id: str) -> int:
        return sum(self.objects_of_job(job_id).values())

    def stored_bytes_of(self, owner: str) -> int:
        return self._stored_bytes(lambda job: job.owner == owner)

    def stored_bytes_of_team(self, team: str) -> int:
        return self._stored_bytes(lambda job: job.team == team)

    def stored_bytes_by_owner(self) -> dict[str, int]:
        jobs = (self._tables.jobs.get(job_id) for job_id in self._tables.objects)
        owners = {job.owner for job in jobs if job}
        return {owner: used for owner in owners if (used := self.stored_bytes_of(owner))}

    def _stored_bytes(self, counts: Callable[[Job], bool]) -> int:
        jobs = (self._tables.jobs.get(job_id) for job_id in self._tables.objects)
        owned = (job.id for job in jobs if job and counts(job))
        return sum(size for job_id in owned for size in self.objects_of_job(job_id).values())

    def stored_bytes_of_jobs(self) -> int:
        content: dict[str, int] = {}
        for job_id in self._tables.objects:
            content |= self.objects_of_job(job_id)
        return sum(content.values())

    def stored_is_miscounted(self) -> bool:
        return False

    def unused_objects(self, before: float, limit: int) -> list[tuple[str, str]]:
        unused = [
            (since, job_id, sha256)
            for job_id, held in self._tables.objects.items()
            for sha256, (_, since) in held.items()
            if since is not None and since < before
        ]
        return [(job_id, sha256) for _, job_id, sha256 in sorted(unused)[:limit]]

    def endings(self, after: Ending, before: float, limit: int) -> list[Ending]:
        ended = [
            Ending(at=job.finished_at, job_id=job.id)
            for job in self._tables.jobs.values()
            if job.finished_at is not None and job.finished_at < before
        ]
        return sorted(ending for ending in ended if ending > after)[:limit]

    def object_has_owner(self, sha256: str) -> bool:
        return bool(self._tables.owners.get(sha256)) or sha256 in self._tables.dataset_objects

    def approval(self, job_id: str) -> Approval | None:
        return self._tables.approvals.get(job_id)

    def pending_approvals(
        self, after: tuple[float, str] | None, limit: int, seen_by: VisibilityScope | None = None
    ) -> list[Approval]:
        waiting = [
            ((one.asked_at, one.job_id), one)
            for one in self._undecided()
            if (job := self.job(one.job_id)) and waits_for_approval(job) and _seen(job, seen_by)
        ]
        in_order = sorted(waiting, key=lambda row: row[0])
        return [one for place, one in in_order if after is None or place > after][:limit]

    def _undecided(self) -> list[Approval]:
        return [one for one in self._tables.approvals.values() if one.state is ApprovalState.PENDING]

    def due_approvals(self, now: float, limit: int) -> list[Approval]:
        due = [(one.expires_at, one.job_id, one) for one in self._undecided() if one.expires_at is not None]
        return [one for ends, _, one in sorted(due, key=lambda row: row[:2]) if ends <= now][:limit]

    def publication(self, job_id: str) -> Publication | None:
        return self._tables.publications.get(job_id)

    def due_publications(self, now: float, limit: int) -> list[Publication]:
        due = [
            one
            for one in self._tables.publications.values()
            if one.state is PublicationState.DUE and one.not_before <= now
        ]
        return sorted(due, key=lambda one: (one.not_before, one.job_id))[:limit]

    def notes_of_job(self, job_id: str) -> list[JobNote]:
        return list(self._tables.notes.get(job_id, {}).values())


def _seen(job: Job, scope: VisibilityScope | None) -> bool:
    return scope is None or may_see(scope, job.belongs)
