import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.placement.ordering import (
    behind,
    class_id,
    limit_reached,
    may_reserve,
    place_of,
    rank,
)
from simpletuner_fleet.core.policy import Limits
from tests.core.builders import NOW, POLICY, a_job


def test_among_equal_priorities_the_earlier_submission_is_first() -> None:
    assert rank(NOW, 0, POLICY) < rank(NOW + 1, 0, POLICY)


def test_a_higher_priority_overtakes_by_what_it_is_worth() -> None:
    urgent = rank(NOW, 1, POLICY)
    assert rank(NOW - POLICY.priority_point_s + 1, 0, POLICY) > urgent
    assert rank(NOW - POLICY.priority_point_s - 1, 0, POLICY) < urgent


def test_jobs_submitted_in_one_moment_keep_the_order_of_their_numbers() -> None:
    assert place_of(a_job(seq=1)) < place_of(a_job(seq=2))


@pytest.mark.parametrize(
    "other",
    [
        Requirements(target=Target.WORKER),
        Requirements(gpus=2),
        Requirements(min_vram_gb=24.0),
        Requirements(accelerator="cuda"),
        Requirements(trainer="command"),
        Requirements(labels=(("team", "nlp"),)),
        Requirements(owner="u_1"),
    ],
)
def test_every_requirement_makes_another_class(other: Requirements) -> None:
    assert class_id(other) != class_id(Requirements())
    assert class_id(other) == class_id(other)


@settings(max_examples=100)
@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.floats(0, 1e9))
def test_of_two_jobs_of_one_moment_the_higher_priority_is_first(a: int, b: int, at: float) -> None:
    assert (rank(at, a, POLICY) < rank(at, b, POLICY)) is (a > b)


@pytest.mark.parametrize(
    ("limits", "running", "of_owner", "expected"),
    [
        (Limits(), 10**6, 10**6, None),
        (Limits(global_running=2), 1, 1, None),
        (Limits(global_running=2), 2, 0, "QUOTA_GLOBAL"),
        (Limits(user_running=2), 5, 1, None),
        (Limits(user_running=2), 5, 2, "QUOTA_USER"),
        (Limits(global_running=0), 0, 0, "QUOTA_GLOBAL"),
        (Limits(global_running=3, user_running=1), 3, 1, "QUOTA_GLOBAL"),
    ],
)
def test_limits_name_themselves_when_reached(
    limits: Limits, running: int, of_owner: int, expected: str | None
) -> None:
    assert limit_reached(limits, running, of_owner) == expected


def test_a_job_may_reserve_only_after_it_has_waited() -> None:
    job = a_job()
    assert not may_reserve(job, POLICY, NOW + POLICY.reserve_after_s - 1)
    assert may_reserve(job, POLICY, NOW + POLICY.reserve_after_s)


def test_a_clock_that_was_set_back_lets_nobody_overtake() -> None:
    waiting = a_job(seq=1, created_at=NOW, rank=rank(NOW, 0, POLICY))
    early = a_job(seq=2, created_at=NOW - 3600, rank=rank(NOW - 3600, 0, POLICY))
    assert place_of(waiting) > place_of(early)
    assert place_of(waiting) < place_of(behind(early, NOW, POLICY))
    assert behind(waiting, NOW - 1, POLICY) is waiting
