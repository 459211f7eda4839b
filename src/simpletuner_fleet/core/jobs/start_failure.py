"""Decides what follows an attempt that never ran: its worker is blamed, and the number of tries is limited.

The job is charged nothing.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs import retry
from simpletuner_fleet.core.jobs.decision import (
    Decision,
    cancelled_now,
    ended_as,
    follow,
    job_event,
    requeued,
)
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.jobs.fencing import must_be_current
from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Job, JobState, Outcome
from simpletuner_fleet.core.placement.explain import has_joined
from simpletuner_fleet.core.placement.matching import has_refused, refusal_of, why_never
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.core.workers.worker import Worker


def not_started(
    job: Job,
    attempt: Attempt,
    error: str | None,
    blame: Blame,
    earlier: Iterable[Attempt],
    policy: Policy,
    *,
    now: float,
) -> Decision:
    """Queues the job again, with a longer wait after each try, or gives it up after too many.

    `earlier` are the job's attempts so far. Other jobs go first meanwhile.
    """
    must_be_current(job, attempt)
    why = error or "the worker could not start it"
    tries = 1 + sum(never_ran(one) for one in earlier)
    allowed = policy.start_tries if blame is Blame.WORKER else policy.start_tries_unclear
    if tries >= allowed and job.state is not JobState.CANCELLING:
        return _given_up(job, attempt, why, tries, now=now)
    ended = ended_as(attempt, Outcome.RELEASED, now, error=why, reason=EndReason.START_FAILED)
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended, now=now)
    event = job_event(
        EventType.JOB_RELEASED,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        why=why,
        reason=EndReason.START_FAILED,
    )
    return requeued(job, ended, now + retry.backoff_s(tries + 1, policy), why, (event,))


def not_granted(
    job: Job, attempt: Attempt, error: str | None, worker: Worker, others: Iterable[Worker], *, now: float
) -> Decision:
    """Passes a job on to `others` while one of them might let it see what this worker does not."""
    must_be_current(job, attempt)
    why = error or "the worker does not grant what the job names"
    refused = replace(job, refused_by=(*job.refused_by, refusal_of(worker)))
    if job.state is JobState.CANCELLING:
        return cancelled_now(job, ended_as(attempt, Outcome.RELEASED, now, error=why), now=now)
    if not any_might_grant(refused, others):
        return _given_up(job, attempt, why, len(refused.refused_by), now=now)
    ended = ended_as(attempt, Outcome.RELEASED, now, error=why, reason=EndReason.START_FAILED)
    event = job_event(
        EventType.JOB_RELEASED,
        job,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        why=why,
        reason=EndReason.START_FAILED,
    )
    return requeued(refused, ended, None, why, (event,))


def any_might_grant(job: Job, workers: Iterable[Worker]) -> bool:
    refused_by, requires = frozenset(job.refused_by), job.requires.at_any_cost
    return any(
        has_joined(one) and not has_refused(one, refused_by) and why_never(one, requires) is None
        for one in workers
    )


def never_ran(attempt: Attempt) -> bool:
    return attempt.outcome is Outcome.RELEASED and attempt.reason == EndReason.START_FAILED


def _given_up(job: Job, attempt: Attempt, why: str, tries: int, *, now: float) -> Decision:
    failure = classify(None, None, None, why, started=False)
    ended = ended_as(
        attempt,
        Outcome.FAILED,
        now,
        error=why,
        reason=EndReason.START_FAILED,
        failure_class=failure.code,
        failure_evidence=failure.evidence,
    )
    sentence = f"it could not be started {tries} times, the last time on {attempt.worker_name}: {why}"
    charged = replace(job, failures=job.failures + 1)
    return follow(charged, ended, retry.GiveUp("start_failed", sentence), sentence, now=now)
