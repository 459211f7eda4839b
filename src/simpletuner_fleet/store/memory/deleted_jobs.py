"""Keeps jobs whose record was deleted in the memory store."""

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.money.reports import used_attempt
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store.memory.tables import Tables


class MemoryDeletedJobsView:
    _tables: Tables

    def deleted_job(self, job_id: str) -> DeletedJob | None:
        return self._tables.deleted_jobs.get(job_id)

    def deleted_jobs_with_files(self, limit: int) -> list[DeletedJob]:
        left = (one for one in self._tables.deleted_jobs.values() if one.files_left)
        return sorted(left, key=lambda one: (one.deleted_at, one.id))[:limit]

    def deleted_jobs_since(self, at: float) -> list[DeletedJob]:
        since = (one for one in self._tables.deleted_jobs.values() if one.deleted_at > at)
        return sorted(since, key=lambda one: (one.deleted_at, one.id))


class MemoryDeletedJobsTx(MemoryDeletedJobsView):
    def going_on_from(self, job_id: str) -> list[str]:
        return sorted(self._tables.going_on.get(job_id, ()))

    def delete_job(self, deleted: DeletedJob) -> None:
        tables, job_id = self._tables, deleted.id
        job = tables.jobs.get(job_id)
        if job is None or not job.terminal:
            raise ConcurrentChange(f"there is no job {job_id} that has ended")
        for attempt_id in tuple(tables.attempts_by_job[job_id]):
            attempt = tables.attempts[attempt_id]
            if attempt.accepted_at is not None and attempt.ended_at is not None:
                used = used_attempt(job, attempt, attempt.accepted_at)
                tables.set_spent(attempt_id, used)
            tables.set_ended_attempt(attempt_id, None)
        for manifest_id in tuple(tables.manifests_by_job[job_id]):
            tables.set_manifest(manifest_id, None)
        for sha256 in tuple(tables.objects[job_id]):
            tables.set_object((job_id, sha256), None)
        for note_id in tuple(tables.notes[job_id]):
            tables.set_note((job_id, note_id), None)
        for dataset_id, _ in job.requires.datasets:
            left = tables.dataset_jobs.get(dataset_id, frozenset()) - {job_id}
            tables.set_dataset_jobs(dataset_id, left)
        tables.set_approval(job_id, None)
        tables.set_publication(job_id, None)
        tables.set_bundle(job_id, None)
        tables.set_ended_job(job_id, None)
        tables.set_deleted_job(job_id, deleted)

    def files_are_gone(self, job_id: str) -> None:
        deleted = self._tables.deleted_jobs.get(job_id)
        if deleted is not None:
            self._tables.set_deleted_job(job_id, replace(deleted, files_left=False, attempts=()))
