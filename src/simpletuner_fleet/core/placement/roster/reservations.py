"""Reserves workers for jobs that have waited long for more GPUs than are free; no row records that."""

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.placement.ordering import Place, place_of


class Reservations:
    """Keeps the workers that are reserved for jobs that have waited long for more GPUs than are free.

    A job reserves one worker at a time. Whoever reserved a worker first keeps it for as long as the worker
    serves.
    """

    def __init__(self) -> None:
        self._by_worker: dict[str, tuple[str, Place]] = {}

    def make(self, worker_id: str, job: Job) -> None:
        """Keeps jobs behind this one off the worker until this one is placed."""
        if worker_id not in self._by_worker and all(job.id != id for id, _ in self._by_worker.values()):
            self._by_worker[worker_id] = (job.id, place_of(job))

    def keep_off(self, worker_id: str, job: Job) -> bool:
        """Tells whether the job is kept off; one before the job that reserved goes first.

        It may be the first in the very queue that the other waits in.
        """
        kept = self._by_worker.get(worker_id)
        return kept is not None and kept[0] != job.id and kept[1] < place_of(job)

    def forget_worker(self, worker_id: str) -> None:
        self._by_worker.pop(worker_id, None)

    def forget_job(self, job_id: str) -> list[str]:
        """Forgets the job, and returns the workers that were reserved for it."""
        freed = [id for id, (holder, _) in self._by_worker.items() if holder == job_id]
        for worker_id in freed:
            del self._by_worker[worker_id]
        return freed

    def copied(self) -> dict[str, tuple[str, Place]]:
        return self._by_worker.copy()

    def put_back(self, copied: dict[str, tuple[str, Place]]) -> None:
        """Restores the reservations after a rollback, so that no worker stays released for nothing."""
        self._by_worker = copied
