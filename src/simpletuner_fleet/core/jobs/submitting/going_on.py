"""Lets a new job continue from what another one has stored.

The checkpoint becomes the new job's own when it is submitted: what the other job keeps or deletes later does not
concern it any more.
"""

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Forbidden, Invalid
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.jobs.submitting.submit_request import Submitter
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import StoredManifest, beyond_reach, newest_checkpoint

READ_JOBS = "jobs.read"
PATH = "$.resume_from"
NOT_OF_AN_ATTEMPT = 0
"""Number and epoch of a checkpoint that no attempt of the job has made."""
_PLACE = re.compile(r"(?P<job>[A-Za-z0-9_-]{1,64})(?::(?P<step>\d{1,15}))?", re.ASCII)


class ResumePlace(Struct, frozen=True):
    job_id: str
    step: int | None
    """None is the newest."""


class ResumeSource(Struct, frozen=True):
    """Holds the job that a new job asks to continue from, and what is stored of it."""

    job: Job | None
    manifests: Sequence[StoredManifest] = ()


def read_place(text: str) -> ResumePlace:
    match = _PLACE.fullmatch(text)
    if not match:
        raise Invalid(
            "resume_from must be a job id, or JOB:STEP for one of its checkpoints.",
            path=PATH,
            next_step="List its checkpoints with 'simpletuner jobs artifacts JOB'.",
        )
    return ResumePlace(match["job"], int(match["step"]) if match["step"] else None)


def chosen_checkpoint(
    place: ResumePlace, source: ResumeSource, by: Submitter, trainer: str
) -> StoredManifest:
    """Returns the checkpoint that is meant, or raises why it cannot be continued from."""
    if not by.may_read_jobs:
        raise Forbidden(READ_JOBS)
    if source.job is None:
        raise Invalid(f"There is no job {place.job_id} to resume from.", path=PATH)
    if source.job.requires.trainer != trainer:
        raise Invalid(
            f"Job {place.job_id} was trained with '{source.job.requires.trainer}', but this one uses "
            f"'{trainer}'.",
            path=PATH,
        )
    checkpoints = [one for one in source.manifests if one.kind == "checkpoint"]
    chosen = newest_checkpoint(one for one in checkpoints if place.step in (None, one.step))
    if chosen is None:
        steps = ", ".join(str(step) for step in sorted({one.step or 0 for one in checkpoints}))
        raise Invalid(
            f"Job {place.job_id} has no checkpoint of step {place.step}; those there are have step {steps}."
            if steps
            else f"No checkpoint of job {place.job_id} is stored.",
            path=PATH,
            next_step="Submit the job without resume_from to start from the beginning.",
        )
    return chosen


def described(checkpoint: StoredManifest) -> str:
    """Returns the checkpoint as the new job records it."""
    return f"{checkpoint.job_id}:{checkpoint.step}"


def adopted(checkpoint: StoredManifest, manifest_id: str, job_id: str, now: float) -> StoredManifest:
    """Returns the same checkpoint as one of the new job's."""
    return replace(
        checkpoint,
        id=manifest_id,
        job_id=job_id,
        attempt_number=NOT_OF_AN_ATTEMPT,
        epoch=NOT_OF_AN_ATTEMPT,
        created_at=now,
        pinned_by="",
    )


def is_out_of_reach(
    job: Job, attempts: Sequence[Attempt], checkpoints: Sequence[StoredManifest], policy: Policy
) -> bool:
    """Tells whether a job that was to continue from a checkpoint has none left that it could.

    It must not begin at the start instead: nobody asked for that. `attempts` are those that could not fetch theirs.
    """
    failed = (attempt.resumed_manifest for attempt in attempts if attempt.resumed_manifest)
    useless = beyond_reach(failed, policy.resume_tries)
    return job.resume_from is not None and all(
        one.id in useless for one in checkpoints if one.kind == "checkpoint"
    )
