"""Orders waiting jobs by their effective priority, then by submission.

A job's rank is the moment it was submitted, moved back by what its priority is worth. Ranks never change while time
passes, so an index keeps the order, and a low priority is late but never starved.
"""

import hashlib

import msgspec
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Job, Requirements
from simpletuner_fleet.core.money.ceilings import room_of
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.policy import Limits, Policy

Place = tuple[float, int]


def rank(created_at: float, priority: int, policy: Policy) -> float:
    return created_at - priority * policy.priority_point_s


def behind(job: Job, moment: float, policy: Policy) -> Job:
    """Returns the job as submitted no earlier than `moment`: a clock that was set back lets nobody overtake who waits."""
    if job.created_at >= moment:
        return job
    return replace(job, rank=rank(moment, job.priority, policy))


def place_of(job: Job) -> Place:
    return (job.rank, job.seq)


def class_id(requires: Requirements) -> str:
    """Returns the id of the class: the matcher treats its jobs alike, so picking one never scans the backlog."""
    return hashlib.sha256(msgspec.json.encode(requires)).hexdigest()[:16]


def with_room(job: Job) -> Job:
    """Returns the job with its requirements, and so its class, updated to what is left of its ceiling."""
    room = room_of(job.max_cost_micros, job.spent_micros)
    if room == job.requires.room_micros:
        return job
    requires = replace(job.requires, room_micros=room)
    return replace(job, requires=requires, class_id=class_id(requires))


def limit_reached(
    limits: Limits, running: int, running_of_owner: int, running_of_team: int | None = None
) -> Code | None:
    """Returns the code of the limit that keeps one more attempt from starting."""
    if limits.global_running is not None and running >= limits.global_running:
        return Code.QUOTA_GLOBAL
    if limits.user_running is not None and running_of_owner >= limits.user_running:
        return Code.QUOTA_USER
    if limits.team_running is None or running_of_team is None:
        return None
    return Code.QUOTA_TEAM if running_of_team >= limits.team_running else None


def may_reserve(job: Job, policy: Policy, now: float) -> bool:
    """Tells whether a job that waits for more GPUs than are free may keep smaller jobs off a worker."""
    return now - job.created_at >= policy.reserve_after_s
