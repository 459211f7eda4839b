"""Jobs and attempts at points of their life, for the tests of what can happen to them."""

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Outcome
from tests.core.builders import NOW, a_worker, an_attempt, holding

OFFERED = an_attempt(state=AttemptState.OFFERED)
RUNNING = an_attempt(accepted_at=NOW)
ENDED = an_attempt(state=AttemptState.ENDED, outcome=Outcome.LOST, ended_at=NOW)
DISPATCHED = holding(JobState.DISPATCHED)
ADMIN = Actor("u_1", "ada", "10.0.0.1")


def types(decision: Decision) -> list[str]:
    return [event.type.value for event in decision.events]


def job_of(decision: Decision) -> Job:
    assert decision.job is not None
    return decision.job


def attempt_of(decision: Decision) -> Attempt:
    assert decision.attempt is not None
    return decision.attempt


def offered(job: Job, worker_id: str = "w_1", epoch: int | None = None) -> tuple[Job, Attempt]:
    worker = a_worker(worker_id)
    decision = lifecycle.offer(
        job,
        worker,
        worker.gpus,
        attempt_id=f"a_{job.attempts + 1}",
        epoch=epoch if epoch is not None else job.epoch + 1,
        upload_token_hash="h",
        now=NOW,
    )
    return job_of(decision), attempt_of(decision)


def taken(job: Job, worker_id: str = "w_1") -> tuple[Job, Attempt]:
    job, attempt = offered(job, worker_id)
    decision = lifecycle.accept(job, attempt, incarnation=attempt.incarnation, now=NOW)
    return job_of(decision), attempt_of(decision)
