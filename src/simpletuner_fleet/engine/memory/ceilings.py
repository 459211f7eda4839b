"""Tracks which trainings must end, and when, before their jobs pass their cost ceiling.

Only those with a ceiling are tracked.
"""

from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, has_left_its_gpus
from simpletuner_fleet.core.money.ceilings import must_stop_at, reached_at
from simpletuner_fleet.core.policy import Policy


class WatchedAttempt(Struct, frozen=True):
    attempt: Attempt
    begun_at: float
    reached_at: float | None
    """When its job will have cost all that it may; None: never, or it is not to be stopped."""


class CeilingWatch:
    """Watches the running attempts of jobs that have a cost ceiling.

    It follows the rows: an attempt is watched from its acceptance until it ends.
    """

    def __init__(self) -> None:
        self.watched: dict[str, WatchedAttempt] = {}
        """By job; only a change of one of these jobs concerns it."""

    def see_attempt(self, after: Attempt | None, job: Job) -> None:
        """Follows an attempt of a job that has a ceiling: no other is watched."""
        if after is None or after.state is not AttemptState.RUNNING:
            self.watched.pop(job.id, None)
        else:
            self.watched[job.id] = _watched(after, job)

    def see_job(self, after: Job | None) -> None:
        known = self.watched.get(after.id) if after is not None else None
        if known is not None and after is not None:
            self.watched[after.id] = _watched(known.attempt, after)

    def due(self, policy: Policy, now: float) -> list[Turn]:
        watched = list(self.watched.values())  # a step may run in the writer's thread just now
        return [
            Turn(one.attempt.job_id, one.attempt.epoch)
            for one in watched
            if one.reached_at is not None and now >= must_stop_at(one.reached_at, one.begun_at, policy)
        ]


def _watched(attempt: Attempt, job: Job) -> WatchedAttempt:
    begun = attempt.offered_at if attempt.accepted_at is None else attempt.accepted_at
    goes_on = attempt.stopping is None and job.state is not JobState.CANCELLING and not has_left_its_gpus(job)
    stops = job.on_max_cost == "stop" and goes_on
    return WatchedAttempt(attempt, begun, reached_at(job, attempt) if stops else None)
