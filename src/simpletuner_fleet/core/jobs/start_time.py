"""Decides until when a queued job is held: until its start time or the end of its backoff, the later one.

Both are moments of the server's clock. A clock that is set forward lets a job start as soon as it shows the time; one that
is set back lets it wait until it shows the time again. What has started is not stopped for that.
"""

from datetime import UTC, datetime

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Attempt, Hold, Job, JobState
from simpletuner_fleet.core.jobs.retry import backoff_s
from simpletuner_fleet.core.policy import Policy

PATH = "$.not_before"
MOST_DAYS_AHEAD = 366
DAY_S = 86_400.0


def held(job: Job, now: float, retry_at: float | None = None) -> Job:
    """Returns the queued job held until the later of the two moments, or not at all where both are over."""
    start_at = job.start_at if job.start_at is not None and job.start_at > now else None
    hold, until = (Hold.NONE if retry_at is None else Hold.BACKOFF), retry_at
    if start_at is not None and (retry_at is None or start_at >= retry_at):
        hold, until = Hold.START_TIME, start_at
    return job if job.hold is hold and job.not_before == until else replace(job, hold=hold, not_before=until)


def read_start(text: str | None, now: float) -> float | None:
    """Returns the moment that a request names; one that is over counts as none."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Invalid(
            "not_before must be a time with its zone, as in 2026-11-18T22:00:00Z or 2026-11-18T22:00:00+01:00.",
            path=PATH,
        )
    try:
        at = moment.astimezone(UTC).timestamp()
    except OverflowError:
        at = float("inf")
    if at > now + MOST_DAYS_AHEAD * DAY_S:
        raise Invalid(f"not_before can be at most {MOST_DAYS_AHEAD} days ahead.", path=PATH)
    return at


def started_from(job: Job, start_at: float | None, last: Attempt | None, policy: Policy, now: float) -> Job:
    """Returns a waiting job with another start time; what is left of a wait after a failure stays.

    `last` is its last attempt, whose end that wait is counted from.
    """
    changed = replace(job, start_at=start_at)
    if job.state is not JobState.QUEUED:
        return changed
    retry_at = _retry_at(job, last, policy)
    return held(changed, now, retry_at if retry_at is not None and retry_at > now else None)


def _retry_at(job: Job, last: Attempt | None, policy: Policy) -> float | None:
    """Returns when the wait of a held job after a failure ends; behind a later start time it is counted anew."""
    if job.hold is Hold.BACKOFF:
        return job.not_before
    if last is None or last.ended_at is None or job.not_before is None:
        return None
    return min(job.not_before, last.ended_at + backoff_s(job.charged, policy))


def shown(at: float) -> str:
    """Returns the moment as it is written in sentences."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
