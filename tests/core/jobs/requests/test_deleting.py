"""Which jobs may be deleted, and what is kept of them."""

from typing import Any

import pytest

from simpletuner_fleet.core.errors import FleetError, JobStillNeeded, WrongJobState
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.jobs.job import TERMINAL, JobState
from simpletuner_fleet.core.jobs.requests.deleting import (
    AttemptFiles,
    JobTies,
    check_deletable,
    deleted,
    deletion_event,
)
from simpletuner_fleet.core.publishing import Publication, PublicationState, Publish
from simpletuner_fleet.core.training.checkpoint import StoredManifest
from tests.core.builders import NOW, a_job
from tests.core.jobs.lifecycle_kit import offered

ENDED = a_job(state=JobState.COMPLETED, finished_at=NOW)


def manifest(pinned_by: str = "") -> StoredManifest:
    return StoredManifest(
        id="m_1",
        job_id=ENDED.id,
        attempt_id="a_1",
        attempt_number=1,
        epoch=1,
        kind="checkpoint",
        name="checkpoint-10",
        step=10,
        files=(),
        total_bytes=0,
        created_at=NOW,
        worker_name="gpu-1",
        pinned_by=pinned_by,
    )


def publication(state: PublicationState) -> Publication:
    return Publication(
        job_id=ENDED.id, publish=Publish(to="folder://x"), state=state, created_at=NOW, not_before=NOW
    )


@pytest.mark.parametrize("state", list(JobState))
def test_only_a_job_that_has_ended(state: JobState) -> None:
    job = a_job(state=state)
    if state in TERMINAL:
        check_deletable(job, JobTies())
        return
    with pytest.raises(WrongJobState) as refused:
        check_deletable(job, JobTies())
    assert refused.value.next == f"Cancel it first: simpletuner jobs cancel {job.id}"


@pytest.mark.parametrize(
    ("ties", "why"),
    [
        ({"manifests": [manifest("u_ann")]}, "pinned"),
        ({"publication": publication(PublicationState.DUE)}, "publishing"),
        ({"dependents": [a_job("j_9", state=JobState.BLOCKED)]}, "depended_on"),
        ({"goes_on_in": ["j_9"]}, "resumed_from"),
    ],
)
def test_not_one_that_somebody_needs(ties: dict[str, Any], why: str) -> None:
    with pytest.raises(JobStillNeeded) as refused:
        check_deletable(ENDED, JobTies(**ties))
    error: FleetError = refused.value
    assert error.params["why"] == why
    assert "nothing was deleted" in error.detail
    assert error.next


def test_what_nobody_needs_any_more_hinders_nobody() -> None:
    done = JobTies(manifests=[manifest()], publication=publication(PublicationState.PUBLISHED))
    check_deletable(ENDED, done)
    check_deletable(ENDED, JobTies(publication=publication(PublicationState.FAILED)))


def test_what_is_counted_and_what_is_to_go_is_kept() -> None:
    job, attempt = offered(a_job(), "w_1")
    kept = deleted(job, [attempt], NOW + 5)
    assert (kept.owner, kept.created_at, kept.first_offered_at) == (
        job.owner,
        job.created_at,
        attempt.offered_at,
    )
    assert kept.attempts == (AttemptFiles(attempt.id, max(1, len(attempt.gpus))),)
    assert kept.files_left
    event = deletion_event(ENDED, Actor("u_ann", "ann"), attempts=1, freed_bytes=7)
    assert (event.type, event.target_id, event.details["bytes"]) == (EventType.JOB_DELETED, ENDED.id, 7)
