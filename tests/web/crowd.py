"""Many workers and jobs at once, written straight into the store: for lists that must stay quick."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import (
    Attempt,
    AttemptState,
    Job,
    JobState,
    Outcome,
    Requirements,
    Target,
)
from simpletuner_fleet.core.jobs.progress import read_progress
from simpletuner_fleet.core.placement.ordering import class_id, rank
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Connection, Gpu, Worker, WorkerType
from simpletuner_fleet.ports import Tx

KINDS = (("NVIDIA L4", 24.0), ("NVIDIA A10G", 24.0), ("NVIDIA V100", 32.0), ("NVIDIA T4", 16.0))
ENDINGS = (JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
OUTCOMES = {
    JobState.COMPLETED: Outcome.COMPLETED,
    JobState.FAILED: Outcome.FAILED,
    JobState.CANCELLED: Outcome.CANCELLED,
}
BUNDLE = b'{"trainer":"simpletuner","settings":{"model_family":"sdxl","max_train_steps":1000}}'
WAITING_SHARE = 5
"""One job in so many waits: for machines that are all busy or gone."""


def add(tx: Tx, workers: int, jobs: int, now: float) -> None:
    """Half of the workers are busy; the others are offline, so that nothing starts behind a test's back."""
    rows = [worker(number, now) for number in range(workers)]
    for row in rows:
        tx.add_worker(row)
    busy = iter([row for row in rows if row.connection is Connection.CONNECTED])
    for number in range(jobs):
        job = waiting_job(number, tx.next_seq(), now)
        if number % WAITING_SHARE == 0:
            tx.add_job(job, BUNDLE)
            continue
        host = next(busy, None)
        _add_with_attempt(tx, job, host or (rows[number % len(rows)] if rows else None), now, live=bool(host))


def worker(number: int, now: float) -> Worker:
    name, vram_gb = KINDS[number % len(KINDS)]
    online = number % 2 == 0
    return Worker(
        id=f"w_crowd{number:05}",
        name=f"crowd-{number:03}",
        token_hash=f"crowd-{number}",
        token_created_at=now,
        created_at=now + number,
        reported_type=WorkerType.PERSISTENT,
        connection=Connection.CONNECTED if online else Connection.OFFLINE,
        labels={"gpu_type": name.split()[1].lower(), "rack": f"r{number // 10}"},
        gpus=(Gpu(index=0, uuid=f"GPU-crowd-{number}", name=name, vram_gb=vram_gb),),
        trainers=("simpletuner",),
        agent_version="0.9.0",
        registered_at=now + number,
        last_heartbeat=now + number,
        offline_since=None if online else now + number,
    )


def waiting_job(number: int, seq: int, now: float) -> Job:
    requires = Requirements(target=Target.WORKER, labels=(("rack", f"r{number % 20}"),), owner="t_admin")
    created_at = now + number
    return Job(
        id=f"j_crowd{number:05}",
        seq=seq,
        config_name="sdxl-cats",
        config_version=1,
        requires=requires,
        class_id=class_id(requires),
        owner="t_admin",
        state=JobState.QUEUED,
        rank=rank(created_at, 0, Policy()),
        priority=0,
        max_retries=3,
        created_at=created_at,
        name=f"crowd {number}",
    )


def _add_with_attempt(tx: Tx, job: Job, host: Worker | None, now: float, live: bool) -> None:
    state = JobState.RUNNING if live else ENDINGS[job.seq % len(ENDINGS)]
    epoch = tx.next_epoch()
    attempt_id = f"a{job.id[1:]}"
    fields: dict[str, Any] = {
        "state": state,
        "attempts": 1,
        "epoch": epoch,
        "started_at": job.created_at + 5,
        "progress": read_progress({"step": job.seq % 1000, "total": 1000, "loss": 0.2, "rate": 1.5}),
        "finished_at": None if live else job.created_at + 900,
        "worker_id": host.id if host else None,
    }
    if live:
        fields["attempt_id"] = attempt_id
    if state is JobState.FAILED:
        fields["error"] = "the trainer ended with exit code 1"
    tx.add_job(replace(job, **fields), BUNDLE)
    if host is None:
        return
    tx.add_attempt(
        Attempt(
            id=attempt_id,
            job_id=job.id,
            number=1,
            epoch=epoch,
            worker_id=host.id,
            worker_name=host.name,
            state=AttemptState.RUNNING if live else AttemptState.ENDED,
            offered_at=job.created_at + 1,
            accepted_at=job.created_at + 2,
            started_at=job.created_at + 5,
            ended_at=None if live else job.created_at + 900,
            outcome=None if live else OUTCOMES[state],
            gpus=(host.gpus[0].uuid,),
            gpu_indices=(0,),
        )
    )
