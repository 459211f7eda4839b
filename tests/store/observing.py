"""An observer that remembers what it was told."""

import threading
from typing import TypeVar

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.workers.worker import Worker

Row = TypeVar("Row", Job, Attempt, Worker)


def unmarked(worker: Worker) -> Worker:
    """Observers are not told of these."""
    return replace(worker, message_seq=0, last_heartbeat=None)


class Recorder:
    """Holds the live rows as far as it was told of them, and where it was told that memory is lost."""

    def __init__(self) -> None:
        self.reset_in: list[threading.Thread] = []
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, Attempt] = {}
        self.workers: dict[str, Worker] = {}
        self.owners: dict[str, str] = {}

    def rows_reset(self) -> None:
        self.reset_in.append(threading.current_thread())
        for rows in (self.jobs, self.attempts, self.workers, self.owners):
            rows.clear()

    def worker_changed(self, before: Worker | None, after: Worker | None) -> None:
        self._follow(self.workers, before, after)

    def job_changed(self, before: Job | None, after: Job | None) -> None:
        self._follow(self.jobs, before, None if after is None or after.terminal else after)

    def attempt_changed(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        self._follow(self.attempts, before, None if after is None or not after.live else after)
        if after is not None:
            self.owners[after.id] = job.owner if job else ""

    def rows(self) -> list[object]:
        return [self.jobs, self.attempts, {id: unmarked(worker) for id, worker in self.workers.items()}]

    def _follow(self, rows: dict[str, Row], before: Row | None, after: Row | None) -> None:
        if after is not None:
            rows[after.id] = after
        elif before is not None:
            rows.pop(before.id, None)
