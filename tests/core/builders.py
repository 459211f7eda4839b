"""Plain rows for tests: sensible by default, and every field can be said."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Requirements
from simpletuner_fleet.core.placement.ordering import class_id, rank
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.interruption import Interruption
from simpletuner_fleet.core.workers.worker import Connection, Gpu, Worker

POLICY = Policy()
NOW = 1_000_000.0
ENDS = Interruption(source="aws", noticed_at=NOW, deadline=NOW + 120.0)


def a_gpu(index: int = 0, *, owner: str = "w", vram_gb: float = 80.0, accelerator_type: str = "cuda") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{owner}-{index}",
        name="NVIDIA A100-SXM4-80GB",
        vram_gb=vram_gb,
        accelerator_type=accelerator_type,
    )


def a_worker(id: str = "w_1", *, gpus: int | tuple[Gpu, ...] = 1, **fields: Any) -> Worker:
    if isinstance(gpus, int):
        gpus = tuple(a_gpu(index, owner=id) for index in range(gpus))
    worker = Worker(
        id=id,
        name=id,
        token_hash="",
        token_created_at=NOW,
        created_at=NOW,
        connection=Connection.CONNECTED,
        trainers=("simpletuner",),
        gpus=gpus,
        incarnation=f"i_{id}",
    )
    return replace(worker, **fields)


def a_job(id: str = "j_1", *, requires: Requirements | None = None, **fields: Any) -> Job:
    requires = requires or Requirements()
    priority = fields.get("priority", 0)
    created_at = fields.get("created_at", NOW)
    job = Job(
        id=id,
        seq=1,
        config_name="c",
        config_version=1,
        requires=requires,
        class_id=class_id(requires),
        owner=requires.owner,
        state=JobState.QUEUED,
        rank=rank(created_at, priority, POLICY),
        priority=priority,
        max_retries=3,
        created_at=created_at,
    )
    return replace(job, **fields)


def an_attempt(id: str = "a_1", *, state: AttemptState = AttemptState.RUNNING, **fields: Any) -> Attempt:
    attempt = Attempt(
        id=id,
        job_id="j_1",
        number=1,
        epoch=1,
        worker_id="w_1",
        worker_name="w_1",
        state=state,
        offered_at=NOW,
        gpus=("GPU-w_1-0",),
        gpu_indices=(0,),
        incarnation="i_w_1",
    )
    return replace(attempt, **fields)


def holding(state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    """A job whose current attempt is `an_attempt()`."""
    held: dict[str, Any] = {
        "epoch": 1,
        "attempts": 1,
        "attempt_id": "a_1",
        "worker_id": "w_1",
        "gpus": ("GPU-w_1-0",),
    }
    return a_job(state=state, **{**held, **fields})
