"""Asks a running training for a checkpoint while it continues."""

from msgspec.structs import replace

from simpletuner_fleet.core.errors import CannotSaveNow, FleetError, WrongJobState
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision, job_event
from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState, Saving, is_finishing
from simpletuner_fleet.core.workers.worker import Worker


def checkpoint_now(
    job: Job, attempt: Attempt | None, worker: Worker | None, *, actor: Actor, now: float
) -> Decision:
    """Keeps the request with the attempt: its worker is told of it until a newer checkpoint is stored.

    Asking again before that changes nothing.
    """
    if attempt is None or worker is None:
        raise _not_running(job)
    refusal = refusal_of(job, attempt, worker)
    if refusal is not None:
        raise refusal
    if attempt.waits_for_checkpoint:
        return NOTHING
    event = job_event(
        EventType.JOB_CHECKPOINT_REQUESTED,
        job,
        actor,
        worker_id=worker.id,
        worker_name=worker.name,
        attempt=attempt.number,
    )
    saving = Saving(asked_at=now, had_step=attempt.checkpoint_step)
    return Decision(attempt=replace(attempt, saving=saving), events=(event,))


def refusal_of(job: Job, attempt: Attempt, worker: Worker) -> FleetError | None:
    """Returns why the trainer cannot be asked for a checkpoint; None where it can."""
    if job.state is not JobState.RUNNING:
        return _not_running(job)
    waits = no_trainer_to_ask(job, attempt)
    if waits is not None:
        return waits
    if worker.saves_on_request is None:
        return CannotSaveNow(
            f"The worker {worker.name} is too old to ask its trainers for a checkpoint: upgrade it."
        )
    if job.requires.trainer not in worker.saves_on_request:
        return CannotSaveNow(
            f"The trainer {job.requires.trainer} on the worker {worker.name} cannot be asked for a checkpoint."
        )
    return None


def no_trainer_to_ask(job: Job, attempt: Attempt) -> FleetError | None:
    """Returns why a running job has no trainer that could be asked now; None where it has one."""
    if attempt.started_at is None:
        return WrongJobState("The job's trainer has not started yet.", state=job.state)
    if is_finishing(job):
        return WrongJobState("The job's trainer has ended; its results are being stored.", state=job.state)
    if attempt.stopping is not None:
        return WrongJobState("The job's trainer is being stopped.", state=job.state)
    return None


def _not_running(job: Job) -> FleetError:
    return WrongJobState(
        f"The job is {job.state}: only a running one can be asked for a checkpoint.", state=job.state
    )
