"""Finds which jobs hold a worker's GPUs, and until when."""

from simpletuner_fleet.core.placement.forecast import RunningJob, ends_at
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import View


def running_on(view: View, worker: Worker, now: float) -> list[RunningJob]:
    attempts = view.live_attempts_of_worker(worker.id)
    jobs = [(attempt, view.job(attempt.job_id)) for attempt in attempts]
    return [
        RunningJob(
            job_id=job.id if job else "",
            title=(job.name or job.config_name) if job else "",
            gpus=frozenset(attempt.gpus),
            ends_at=ends_at(job, attempt.started_at, now) if job else None,
        )
        for attempt, job in jobs
    ]
