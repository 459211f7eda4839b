"""Finds which jobs hold the workers' GPUs, and until when."""

from collections.abc import Iterable, Mapping, Sequence

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.placement.forecast import RunningJob, ends_at
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.ports import View


def running_on(view: View, worker: Worker, now: float) -> list[RunningJob]:
    """Returns what one worker runs. Whoever asks for many of them asks `running_by_worker`."""
    attempts = view.live_attempts_of_worker(worker.id)
    return [_running(attempt, readable_job(view, attempt.job_id), now) for attempt in attempts]


def running_by_worker(
    live: Iterable[Attempt], jobs: Mapping[str, Job], now: float
) -> dict[str, Sequence[RunningJob]]:
    """Returns what each worker runs, by its id; `jobs` are those that whoever asks may see."""
    running: dict[str, list[RunningJob]] = {}
    for attempt in live:
        running.setdefault(attempt.worker_id, []).append(_running(attempt, jobs.get(attempt.job_id), now))
    return dict(running)


def _running(attempt: Attempt, job: Job | None, now: float) -> RunningJob:
    return RunningJob(
        job_id=job.id if job else "",
        title=(job.name or job.config_name) if job else "",
        gpus=frozenset(attempt.gpus),
        ends_at=ends_at(job, attempt.started_at, now) if job else None,
    )
