"""Reserves workers for jobs that have waited long for more GPUs than are free; no row records that."""

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.placement.ordering import Place, place_of

Reserved = dict[str, tuple[str, Place]]
"""By worker, the job that it is reserved for, and that job's place."""


class Reservations:
    """Keeps the workers that are reserved for jobs that have waited long for more GPUs than are free.

    A job reserves one worker at a time. Whoever reserved a worker first keeps it for as long as the worker
    serves.
    """

    def __init__(self) -> None:
        self.by_worker: Reserved = {}
        """Mostly empty: whoever asks at every step looks here first."""

    def make(self, worker_id: str, job: Job) -> None:
        """Keeps jobs behind this one off the worker until this one is placed."""
        if worker_id not in self.by_worker and all(job.id != id for id, _ in self.by_worker.values()):
            self.by_worker[worker_id] = (job.id, place_of(job))

    def keep_off(self, worker_id: str, job: Job) -> bool:
        """Tells whether the job is kept off; one before the job that reserved goes first.

        It may be the first in the very queue that the other waits in.
        """
        kept = self.by_worker.get(worker_id)
        return kept is not None and kept[0] != job.id and kept[1] < place_of(job)

    def held(self) -> list[tuple[str, str]]:
        """Returns each worker that is reserved, with the id of the job it is reserved for."""
        return [(worker_id, job_id) for worker_id, (job_id, _) in self.by_worker.items()]

    def forget_worker(self, worker_id: str) -> None:
        self.by_worker.pop(worker_id, None)

    def forget_job(self, job_id: str) -> list[str]:
        """Forgets the job, and returns the workers that were reserved for it."""
        freed = [id for id, (holder, _) in self.by_worker.items() if holder == job_id]
        for worker_id in freed:
            del self.by_worker[worker_id]
        return freed

    def copied(self) -> Reserved:
        return self.by_worker.copy()

    def put_back(self, copied: Reserved) -> None:
        """Restores the reservations after a rollback, so that no worker stays released for nothing."""
        self.by_worker = copied
