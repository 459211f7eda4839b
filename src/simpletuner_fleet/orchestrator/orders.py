"""What a worker should be doing, read from the store: the same for its stream, its registration and its heartbeats."""

from collections.abc import Sequence
from typing import Any

import msgspec

from simpletuner_fleet.core import tokens
from simpletuner_fleet.core.bundle import Bundle
from simpletuner_fleet.core.job import Attempt, AttemptState, Job, JobState
from simpletuner_fleet.core.worker import AdminState, Worker, WorkerType
from simpletuner_fleet.orchestrator.dispatch import upload_token_text
from simpletuner_fleet.ports import Ids, View
from simpletuner_fleet.protocol.messages import JobSubmit, Orders, StopAttempt
from simpletuner_fleet.protocol.uploads import Resume


def orders_for(
    view: View, worker: Worker, live: Sequence[Attempt], ids: Ids, base_url: str, grace_s: float
) -> Orders:
    """`live` are the worker's attempts that have not ended."""
    jobs: list[JobSubmit] = []
    stop: list[StopAttempt] = []
    for attempt in live:
        job = view.job(attempt.job_id)
        if job is None:
            continue
        if job.state is JobState.CANCELLING:
            stop.append(stop_order(attempt, "cancelled", grace_s))
        elif attempt.state is AttemptState.OFFERED:
            jobs.append(_submit_message(view, job, attempt, ids, base_url))
    draining = worker.admin is AdminState.DRAINING
    return Orders(
        jobs=jobs,
        stop=stop,
        drain=draining,
        shutdown=draining and not live and worker.worker_type is WorkerType.EPHEMERAL,
    )


def stop_order(attempt: Attempt, reason: str, grace_s: float) -> StopAttempt:
    return StopAttempt(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        attempt=attempt.number,
        reason="stale" if reason == "stale" else "cancelled",
        grace_s=grace_s,
    )


def _submit_message(view: View, job: Job, attempt: Attempt, ids: Ids, base_url: str) -> JobSubmit:
    bundle = msgspec.json.decode(view.job_bundle(job.id) or b"{}", type=Bundle)
    return JobSubmit(
        job_id=job.id,
        attempt=attempt.number,
        attempt_id=attempt.id,
        epoch=attempt.epoch,
        config_name=job.config_name,
        config=bundle.settings,
        trainer=bundle.trainer,
        upload_endpoint=f"{base_url}/api/workers/job/{job.id}",
        upload_token=ids.derived_token(tokens.UPLOAD, upload_token_text(attempt.id, attempt.epoch)),
        dataloader=bundle.dataloader,
        files=bundle.files,
        env=bundle.env,
        gpus=list(attempt.gpus),
        gpu_indices=list(attempt.gpu_indices),
        time_limit_s=job.time_limit_s,
        on_partition=job.on_partition,
        num_processes=max(1, len(attempt.gpus)),
        resume=_resume(view, attempt),
    )


def _resume(view: View, attempt: Attempt) -> dict[str, Any] | None:
    """As chosen when the attempt was offered; retention keeps it as long as the attempt lives."""
    stored = view.manifest(attempt.resumed_manifest) if attempt.resumed_manifest else None
    if stored is None:
        return None
    resume = Resume(
        manifest_id=stored.id,
        step=stored.step or 0,
        name=stored.name,
        attempt=stored.attempt_number,
        worker_name=stored.worker_name,
        files=stored.files,
    )
    told: dict[str, Any] = msgspec.to_builtins(resume)
    return told
