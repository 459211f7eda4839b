"""Asks a running training to validate between its own intervals while it continues."""

from msgspec.structs import replace

from simpletuner_fleet.core.errors import CannotValidateNow, FleetError, WrongJobState
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision, job_event
from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState, Validating
from simpletuner_fleet.core.jobs.requests.saving import no_trainer_to_ask
from simpletuner_fleet.core.workers.worker import Worker


def validate_now(
    job: Job, attempt: Attempt | None, worker: Worker | None, *, actor: Actor, now: float
) -> Decision:
    """Keeps the request with the attempt: its worker is told of it until it says that its trainer was asked.

    Asking again before that changes nothing.
    """
    if attempt is None or worker is None:
        raise _not_running(job)
    refusal = refusal_of(job, attempt, worker)
    if refusal is not None:
        raise refusal
    if attempt.waits_for_validation:
        return NOTHING
    event = job_event(
        EventType.JOB_VALIDATION_REQUESTED,
        job,
        actor,
        worker_id=worker.id,
        worker_name=worker.name,
        attempt=attempt.number,
    )
    return Decision(attempt=replace(attempt, validating=Validating(asked_at=now)), events=(event,))


def trainer_was_asked(attempt: Attempt, asked_at: float, *, now: float) -> Decision:
    """Notes that the worker has asked its trainer.

    A report about another request than the last one, or a repeated one, changes nothing.
    """
    validating = attempt.validating
    if validating is None or not attempt.waits_for_validation or validating.asked_at != asked_at:
        return NOTHING
    return Decision(attempt=replace(attempt, validating=replace(validating, told_at=now)))


def can_be_asked(job: Job, worker: Worker) -> bool:
    """Tells whether the worker's agent knows the request now: it is never sent to one that does not."""
    return job.requires.trainer in (worker.validates_on_request or ())


def refusal_of(job: Job, attempt: Attempt, worker: Worker) -> FleetError | None:
    """Returns why the trainer cannot be asked to validate; None where it can."""
    if job.state is not JobState.RUNNING:
        return _not_running(job)
    waits = no_trainer_to_ask(job, attempt)
    if waits is not None:
        return waits
    if worker.validates_on_request is None:
        return CannotValidateNow(
            f"The worker {worker.name} is too old to ask its trainers to validate: upgrade it."
        )
    if not can_be_asked(job, worker):
        return CannotValidateNow(
            f"The trainer {job.requires.trainer} on the worker {worker.name} cannot be asked to validate."
        )
    return None


def _not_running(job: Job) -> FleetError:
    return WrongJobState(
        f"The job is {job.state}: only a running one can be asked to validate.", state=job.state
    )
