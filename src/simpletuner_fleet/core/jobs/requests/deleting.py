"""Deletes the record of an ended job: it decides when that is allowed, and what is kept of it.

It keeps what somebody counts or must still do: when the job was submitted and first offered, for the hourly quotas, and
which attempts have files. What its attempts have used is kept beside it, for reports, quotas and budgets.
"""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.errors import JobStillNeeded, WrongJobState
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs.decision import job_event
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.people.visibility import Belonging, Visibility
from simpletuner_fleet.core.publishing import Publication, PublicationState
from simpletuner_fleet.core.training.checkpoint import StoredManifest


class AttemptFiles(Struct, frozen=True):
    """Identifies an attempt whose log and metrics are to be deleted.

    It has the attempt's id, and how many processes may have a log of their own.
    """

    id: str
    ranks: int


class DeletedJob(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    team: str
    visibility: Visibility
    created_at: float
    first_offered_at: float | None
    deleted_at: float
    attempts: tuple[AttemptFiles, ...] = ()
    files_left: bool = True
    """Its log and numbers are still stored; they go with a later round of the sweep."""

    @property
    def belongs(self) -> Belonging:
        return Belonging(self.owner, self.team, self.visibility)


class JobTies(Struct, frozen=True, kw_only=True):
    """Holds what may keep a job from being deleted: its stored files, its publication and other jobs."""

    manifests: Sequence[StoredManifest] = ()
    publication: Publication | None = None
    dependents: Sequence[Job] = ()
    """Those that wait for others as well as for this one."""
    goes_on_in: Sequence[str] = ()
    """The ids of jobs that began with a checkpoint of this one and have not ended."""


def check_deletable(job: Job, ties: JobTies) -> None:
    """Raises why the job's record cannot be deleted now."""
    if not job.terminal:
        raise WrongJobState(
            f"The job is {job.state}; only an ended job can be deleted.",
            state=job.state,
            next_step=f"Cancel it first: simpletuner jobs cancel {job.id}",
        )
    pinned = next((one for one in ties.manifests if one.pinned_by), None)
    if pinned is not None:
        step = f" {pinned.step}" if pinned.step is not None else ""
        raise JobStillNeeded(
            f"Job {job.id} has a pinned checkpoint or artifact, '{pinned.name}'; nothing was deleted.",
            next_step=f"Unpin it first: simpletuner jobs pin {job.id}{step} --remove",
            why="pinned",
        )
    if ties.publication is not None and ties.publication.state is PublicationState.DUE:
        raise JobStillNeeded(
            f"What job {job.id} made is being published; nothing was deleted.",
            next_step="Try again when it is published.",
            why="publishing",
        )
    for other in (one.id for one in ties.dependents):
        raise JobStillNeeded(
            f"Job {other} waits for job {job.id} and has not ended; nothing was deleted.",
            next_step=f"Try again when {other} has ended, or cancel it.",
            why="depended_on",
            job_id=other,
        )
    for other in ties.goes_on_in:
        raise JobStillNeeded(
            f"Job {other} goes on from a checkpoint of job {job.id} and has not ended; nothing was deleted.",
            next_step=f"Try again when {other} has ended, or cancel it.",
            why="resumed_from",
            job_id=other,
        )


def deleted(job: Job, attempts: Sequence[Attempt], now: float) -> DeletedJob:
    return DeletedJob(
        id=job.id,
        owner=job.owner,
        team=job.team,
        visibility=job.visibility,
        created_at=job.created_at,
        first_offered_at=min((one.offered_at for one in attempts if one.number == 1), default=None),
        deleted_at=now,
        attempts=tuple(AttemptFiles(one.id, max(1, len(one.gpus))) for one in attempts),
    )


def deletion_event(job: Job, actor: Actor, *, attempts: int, freed_bytes: int) -> Event:
    """Returns the event by which the audit log still shows that the job existed, its owner and how it ended."""
    return job_event(
        EventType.JOB_DELETED,
        job,
        actor,
        name=job.name,
        config_name=job.config_name,
        owner=job.owner,
        state=job.state,
        attempts=attempts,
        bytes=freed_bytes,
    )
