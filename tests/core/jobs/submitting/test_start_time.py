"""Of a start time and the wait after a failure the later counts, whatever comes first and whatever is changed."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import NOTHING, ended_as
from simpletuner_fleet.core.jobs.job import EndReason, Hold, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.start_time import held, read_start, started_from
from simpletuner_fleet.core.policy import Policy
from tests.core.builders import NOW, a_job
from tests.core.jobs.lifecycle_kit import offered

POLICY = Policy()


def shown(job: Job) -> tuple[Hold, float | None]:
    return job.hold, job.not_before


@pytest.mark.parametrize(
    ("start_at", "retry_at", "expected"),
    [
        (None, None, (Hold.NONE, None)),
        (NOW - 1, None, (Hold.NONE, None)),
        (NOW, None, (Hold.NONE, None)),
        (NOW + 5, None, (Hold.START_TIME, NOW + 5)),
        (None, NOW + 5, (Hold.BACKOFF, NOW + 5)),
        (NOW + 9, NOW + 5, (Hold.START_TIME, NOW + 9)),
        (NOW + 5, NOW + 9, (Hold.BACKOFF, NOW + 9)),
        (NOW - 5, NOW + 9, (Hold.BACKOFF, NOW + 9)),
    ],
)
def test_the_later_of_the_two_counts(
    start_at: float | None, retry_at: float | None, expected: tuple[Hold, float | None]
) -> None:
    assert shown(held(a_job(start_at=start_at), NOW, retry_at)) == expected


def test_a_hold_is_over_at_its_time_and_not_where_it_was_put_off() -> None:
    job = held(a_job(start_at=NOW + 10), NOW)
    assert lifecycle.hold_over(job, NOW + 9) is NOTHING
    over = lifecycle.hold_over(job, NOW + 10).job
    assert over is not None
    assert shown(over) == (Hold.NONE, None)


def test_a_change_of_the_start_time_leaves_the_wait_after_a_failure() -> None:
    running, attempt = offered(a_job(failures=3), "w_1")
    ended = ended_as(attempt, Outcome.FAILED, NOW)
    waiting = held(replace(running, state=JobState.QUEUED, start_at=NOW + 600), NOW, NOW + 10)
    assert shown(waiting) == (Hold.START_TIME, NOW + 600)
    assert shown(started_from(waiting, None, ended, POLICY, NOW + 1)) == (Hold.BACKOFF, NOW + 10)
    assert shown(started_from(waiting, NOW + 5, ended, POLICY, NOW + 1)) == (Hold.BACKOFF, NOW + 10)
    assert shown(started_from(waiting, NOW + 60, ended, POLICY, NOW + 1)) == (Hold.START_TIME, NOW + 60)
    assert shown(started_from(waiting, None, ended, POLICY, NOW + 11)) == (Hold.NONE, None)


def test_a_change_of_the_start_time_leaves_the_wait_of_a_job_that_was_charged_nothing() -> None:
    """As after a start that failed by no fault of the job: how long it waits does not follow from its charges."""
    running, attempt = offered(a_job(), "w_1")
    ended = ended_as(attempt, Outcome.RELEASED, NOW, reason=EndReason.START_FAILED)
    waiting = held(replace(running, state=JobState.QUEUED), NOW, NOW + 20)
    assert shown(started_from(waiting, None, ended, POLICY, NOW + 1)) == (Hold.BACKOFF, NOW + 20)


def test_a_blocked_job_keeps_what_blocks_it() -> None:
    blocked = a_job(state=JobState.BLOCKED, hold=Hold.APPROVAL)
    changed = started_from(blocked, NOW + 60, None, POLICY, NOW)
    assert (shown(changed), changed.start_at) == ((Hold.APPROVAL, None), NOW + 60)


def test_a_moment_is_read_with_its_zone() -> None:
    today = datetime(2026, 11, 17, tzinfo=UTC).timestamp()
    assert (
        read_start("2026-11-18T22:00:00+01:00", today) == datetime(2026, 11, 18, 21, tzinfo=UTC).timestamp()
    )
    assert read_start(None, NOW) is None


@pytest.mark.parametrize("text", ["", "22:00", "2026-11-18T22:00", "2026-11-18", "9999-12-31T23:59:59-14:00"])
def test_what_names_no_moment_of_the_next_year_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_start(text, datetime(2026, 11, 17, tzinfo=UTC).timestamp())
