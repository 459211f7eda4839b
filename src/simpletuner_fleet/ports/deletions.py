"""Declares how a step reads and deletes the records of jobs, and what is kept of deleted ones."""

from typing import Protocol

from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob


class DeletedJobsRead(Protocol):
    def deleted_job(self, job_id: str) -> DeletedJob | None: ...
    def deleted_jobs_with_files(self, limit: int) -> list[DeletedJob]:
        """Returns those whose log and numbers are still stored, the longest deleted first."""
        ...

    def deleted_jobs_since(self, at: float) -> list[DeletedJob]:
        """Returns them in the order in which they were deleted."""
        ...


class DeletedJobsWrite(Protocol):
    def going_on_from(self, job_id: str) -> list[str]:
        """Returns the ids of jobs that have not ended and were submitted to go on from a checkpoint of this one."""
        ...

    def delete_job(self, deleted: DeletedJob) -> None:
        """Deletes an ended job with all rows of its own; what its attempts have used goes on to be counted.

        Raises ConcurrentChange where there is no such job or it has not ended. No observer is told: what is over
        concerns nobody who places jobs.
        """
        ...

    def files_are_gone(self, job_id: str) -> None:
        """Notes that nothing of the deleted job is left to be removed."""
        ...
