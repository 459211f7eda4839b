"""Decides whether a job is tried again after a lost worker or a failed trainer."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.policy import Policy


class Requeue(Struct, frozen=True):
    not_before: float | None


class GiveUp(Struct, frozen=True):
    reason: str
    why: str


Verdict = Requeue | GiveUp


def backoff_s(charged: int, policy: Policy) -> float:
    """Returns no wait for the first retry, then one that doubles up to a ceiling."""
    if charged <= 1:
        return 0.0
    return float(min(policy.retry_backoff_s * 2 ** min(charged - 2, 20), policy.retry_backoff_max_s))


def after_charge(job: Job, policy: Policy, now: float) -> Verdict:
    """Decides what follows for a job that has already been charged for what happened."""
    if len(set(job.lost_workers)) >= policy.poison_worker_count:
        return GiveUp(
            "poison", f"{len(set(job.lost_workers))} different workers were lost while they ran this job"
        )
    if job.charged > job.max_retries:
        return GiveUp(
            "retries_exhausted", f"no retries left: {_count(job)}, {job.max_retries} retries allowed"
        )
    wait_s = backoff_s(job.charged, policy)
    return Requeue(now + wait_s if wait_s else None)


def after_failure(job: Job, policy: Policy, now: float, error: str, *, restart: bool = False) -> Verdict:
    """Decides what follows; `restart` says that the job has asked to be tried again after a failure of this kind."""
    if not job.retry_on_failure and not restart:
        return GiveUp("trainer_failed", error)
    return after_charge(job, policy, now)


def _count(job: Job) -> str:
    parts = []
    if job.losses:
        parts.append(f"worker lost {job.losses} times" if job.losses > 1 else "worker lost once")
    if job.failures:
        parts.append(f"trainer failed {job.failures} times" if job.failures > 1 else "trainer failed once")
    return ", ".join(parts)
