"""Jobs and attempts as rows: columns, parameters, and back."""

from functools import lru_cache
from typing import Any

import msgspec

from simpletuner_fleet.core.job import (
    Attempt,
    AttemptState,
    Hold,
    Job,
    JobState,
    Outcome,
    Requirements,
    Stopping,
)
from simpletuner_fleet.core.progress import read_progress
from simpletuner_fleet.store.database import Row
from simpletuner_fleet.store.text import storable, storable_json, storable_or_none

JOB_FIXED_COLUMNS = (
    *("id", "seq", "config_name", "config_version", "requires", "class_id", "owner", "created_at"),
    *("depends_on", "retry_of"),
)
"""Set when the job is added; a save leaves them alone, and with them their indexes."""
JOB_CHANGING_COLUMNS = (
    *("state", "hold", "rank", "priority", "max_retries", "not_before", "retry_on_failure", "time_limit_s"),
    *("on_partition", "name", "epoch", "attempts", "losses", "failures", "lost_workers", "attempt_id"),
    *("worker_id", "gpus", "progress", "error", "reason", "started_at", "finished_at", "on_time_limit"),
)
JOB_COLUMNS = (*JOB_FIXED_COLUMNS, *JOB_CHANGING_COLUMNS, "version")

ATTEMPT_FIXED_COLUMNS = ("id", "job_id", "number", "epoch")
ATTEMPT_CHANGING_COLUMNS = (
    *("worker_id", "worker_name", "state", "offered_at", "gpus", "gpu_indices", "upload_token_hash"),
    *("accepted_at", "started_at", "ended_at", "outcome", "exit_code", "exit_signal", "error", "last_lines"),
    *("incarnation", "resumed_from_step", "resumed_manifest", "checkpoint_step", "failure_class"),
    *("failure_evidence", "stopping", "reason", "resume_below"),
)
ATTEMPT_COLUMNS = (*ATTEMPT_FIXED_COLUMNS, *ATTEMPT_CHANGING_COLUMNS)

_encode = msgspec.json.Encoder(order="deterministic").encode
_strings = msgspec.json.Decoder(tuple[str, ...]).decode
_integers = msgspec.json.Decoder(tuple[int, ...]).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_requirements = msgspec.json.Decoder(Requirements).decode
_stopping = msgspec.json.Decoder(Stopping).decode
_STATES = {state.value: state for state in JobState}
_HOLDS = {hold.value: hold for hold in Hold}
_ATTEMPT_STATES = {state.value: state for state in AttemptState}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
EMPTY_LIST = "[]"


def json_list(values: tuple[Any, ...]) -> str:
    return _encode(values).decode() if values else EMPTY_LIST


def strings(text: str) -> tuple[str, ...]:
    return () if text == EMPTY_LIST else _strings(text)


@lru_cache(maxsize=4096)
def requirements_text(requires: Requirements) -> str:
    return _encode(requires).decode()


@lru_cache(maxsize=4096)
def requirements_of(text: str) -> Requirements:
    return _requirements(text)


def job_changes(job: Job) -> dict[str, Any]:
    """The parameters of a save: id, version and what may change."""
    return {
        "id": job.id,
        "version": job.version,
        "state": job.state.value,
        "hold": job.hold.value,
        "rank": job.rank,
        "priority": job.priority,
        "max_retries": job.max_retries,
        "not_before": job.not_before,
        "retry_on_failure": 1 if job.retry_on_failure else 0,
        "time_limit_s": job.time_limit_s,
        "on_partition": job.on_partition,
        "name": storable_or_none(job.name),
        "epoch": job.epoch,
        "attempts": job.attempts,
        "losses": job.losses,
        "failures": job.failures,
        "lost_workers": json_list(job.lost_workers),
        "attempt_id": job.attempt_id,
        "worker_id": job.worker_id,
        "gpus": json_list(job.gpus),
        "progress": None if job.progress is None else _encode(storable_json(job.progress.fields())).decode(),
        "error": storable_or_none(job.error),
        "reason": storable_or_none(job.reason),
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "on_time_limit": job.on_time_limit,
    }


def job_params(job: Job) -> dict[str, Any]:
    return {
        **job_changes(job),
        "seq": job.seq,
        "config_name": storable(job.config_name),
        "config_version": job.config_version,
        "requires": requirements_text(job.requires),
        "class_id": job.class_id,
        "owner": job.owner,
        "created_at": job.created_at,
        "depends_on": json_list(job.depends_on),
        "retry_of": job.retry_of,
    }


def job_of(row: Row) -> Job:
    """From a row of JOB_COLUMNS."""
    return Job(
        id=row[0],
        seq=row[1],
        config_name=row[2],
        config_version=row[3],
        requires=requirements_of(row[4]),
        class_id=row[5],
        owner=row[6],
        created_at=row[7],
        depends_on=strings(row[8]),
        retry_of=row[9],
        state=_STATES[row[10]],
        hold=_HOLDS[row[11]],
        rank=row[12],
        priority=row[13],
        max_retries=row[14],
        not_before=row[15],
        retry_on_failure=row[16] == 1,
        time_limit_s=row[17],
        on_partition=row[18],
        name=row[19],
        epoch=row[20],
        attempts=row[21],
        losses=row[22],
        failures=row[23],
        lost_workers=strings(row[24]),
        attempt_id=row[25],
        worker_id=row[26],
        gpus=strings(row[27]),
        progress=None if row[28] is None else read_progress(_object(row[28])),
        error=row[29],
        reason=row[30],
        started_at=row[31],
        finished_at=row[32],
        on_time_limit=row[33],
        version=row[34],
    )


def attempt_params(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "job_id": attempt.job_id,
        "number": attempt.number,
        "epoch": attempt.epoch,
        "worker_id": attempt.worker_id,
        "worker_name": storable(attempt.worker_name),
        "state": attempt.state.value,
        "offered_at": attempt.offered_at,
        "gpus": json_list(attempt.gpus),
        "gpu_indices": json_list(attempt.gpu_indices),
        "upload_token_hash": attempt.upload_token_hash,
        "accepted_at": attempt.accepted_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
        "exit_code": attempt.exit_code,
        "exit_signal": attempt.exit_signal,
        "error": storable_or_none(attempt.error),
        "last_lines": storable_or_none(attempt.last_lines),
        "incarnation": attempt.incarnation,
        "resumed_from_step": attempt.resumed_from_step,
        "resumed_manifest": attempt.resumed_manifest,
        "checkpoint_step": attempt.checkpoint_step,
        "failure_class": storable_or_none(attempt.failure_class),
        "failure_evidence": storable_or_none(attempt.failure_evidence),
        "stopping": None if attempt.stopping is None else _encode(attempt.stopping).decode(),
        "reason": storable_or_none(attempt.reason),
        "resume_below": attempt.resume_below,
    }


def attempt_of(row: Row) -> Attempt:
    """From a row of ATTEMPT_COLUMNS."""
    return Attempt(
        id=row[0],
        job_id=row[1],
        number=row[2],
        epoch=row[3],
        worker_id=row[4],
        worker_name=row[5],
        state=_ATTEMPT_STATES[row[6]],
        offered_at=row[7],
        gpus=strings(row[8]),
        gpu_indices=() if row[9] == EMPTY_LIST else _integers(row[9]),
        upload_token_hash=row[10],
        accepted_at=row[11],
        started_at=row[12],
        ended_at=row[13],
        outcome=None if row[14] is None else _OUTCOMES[row[14]],
        exit_code=row[15],
        exit_signal=row[16],
        error=row[17],
        last_lines=row[18],
        incarnation=row[19],
        resumed_from_step=row[20],
        resumed_manifest=row[21],
        checkpoint_step=row[22],
        failure_class=row[23],
        failure_evidence=row[24],
        stopping=None if row[25] is None else _stopping(row[25]),
        reason=row[26],
        resume_below=row[27],
    )
