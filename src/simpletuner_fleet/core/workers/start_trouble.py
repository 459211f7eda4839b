"""Pauses workers that cannot even start what they are given: shortly, and after a few failures for longer.

A full disk, a missing program or a half upgraded package fails every job in no time: such a worker is the first to be
free again, and would fail the whole queue.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.policy import Policy

MAX_WHY_CHARS = 500


class Blame(StrEnum):
    """Says whose fault it was that an attempt never ran."""

    JOB = "job"
    """Its config cannot be carried out anywhere."""
    ELSEWHERE = "elsewhere"
    """Its owner does not grant what the job names: no fault of the worker, and another one may."""
    WORKER = "worker"
    """Its disk, its processes, its installation."""
    UNCLEAR = "unclear"
    """The program could not be executed: this machine lacks it, or the job names it wrongly."""


class StartTrouble(Struct, frozen=True, kw_only=True):
    """Records the jobs that a worker could not start since it last started one, and what follows for it."""

    jobs: tuple[str, ...] = ()
    why: str = ""
    """What the last one said."""
    blame: Blame | None = None
    """Whose fault the last one was; None where an older server noted it."""
    closed_until: float | None = None
    """It is offered nothing before; None: it is being tried again."""
    pauses: int = 0
    """How often it was set aside since it last started something."""

    @property
    def set_aside(self) -> bool:
        return self.pauses > 0 and self.closed_until is not None


NO_TROUBLE = StartTrouble()


def after_start_failure(
    trouble: StartTrouble | None, job_id: str, blame: Blame, why: str, policy: Policy, now: float
) -> StartTrouble:
    """Returns the worker's trouble after a failure; a job that may be at fault itself counts once."""
    known = trouble or NO_TROUBLE
    counts = blame is Blame.WORKER or job_id not in known.jobs
    jobs = (*known.jobs, job_id)[-policy.start_failures_allowed :] if counts else known.jobs
    if len(jobs) < policy.start_failures_allowed:
        closed_until = now + policy.retry_backoff_s
        return replace(known, jobs=jobs, why=why[:MAX_WHY_CHARS], blame=blame, closed_until=closed_until)
    pause_s = min(policy.set_aside_s * 2 ** min(known.pauses, 20), policy.set_aside_max_s)
    return StartTrouble(
        jobs=jobs,
        why=why[:MAX_WHY_CHARS],
        blame=blame,
        closed_until=now + pause_s,
        pauses=known.pauses + 1,
    )


def tried_again(trouble: StartTrouble) -> StartTrouble:
    """Ends the pause: the next job shows whether the worker is well; if not, it is set aside for longer."""
    return replace(trouble, closed_until=None)
