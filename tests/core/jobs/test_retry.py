import pytest

from simpletuner_fleet.core.jobs import retry
from simpletuner_fleet.core.jobs.retry import GiveUp, Requeue
from simpletuner_fleet.core.policy import Policy
from tests.core.builders import NOW, POLICY, a_job


def test_the_first_retry_is_at_once_and_the_next_ones_wait_longer() -> None:
    assert [retry.backoff_s(charged, POLICY) for charged in range(10)] == [
        *(0, 0, 5, 10, 20, 40, 80, 160, 300, 300),
    ]


def test_the_wait_never_exceeds_its_ceiling_however_often_a_job_is_charged() -> None:
    waits = [retry.backoff_s(charged, POLICY) for charged in (10, 100, 10_000, 10**9)]
    assert waits == [POLICY.retry_backoff_max_s] * 4


@pytest.mark.parametrize("max_retries", [0, 1, 3, 100])
def test_a_job_is_charged_at_most_once_more_than_it_has_retries(max_retries: int) -> None:
    allowed = retry.after_charge(a_job(losses=max_retries, max_retries=max_retries), POLICY, NOW)
    spent = retry.after_charge(a_job(losses=max_retries + 1, max_retries=max_retries), POLICY, NOW)
    assert isinstance(allowed, Requeue)
    assert isinstance(spent, GiveUp)
    assert spent.reason == "retries_exhausted"


def test_losses_and_failures_share_one_budget_and_are_told_apart() -> None:
    verdict = retry.after_charge(a_job(losses=3, failures=1), POLICY, NOW)
    assert verdict == GiveUp(
        "retries_exhausted",
        "no retries left: worker lost 3 times, trainer failed once, 3 retries allowed",
    )
    other_way = retry.after_charge(a_job(losses=1, failures=3), POLICY, NOW)
    assert isinstance(other_way, GiveUp)
    assert "worker lost once, trainer failed 3 times" in other_way.why


def test_a_job_that_cost_two_different_workers_their_life_is_poison() -> None:
    verdict = retry.after_charge(a_job(losses=2, lost_workers=("w_1", "w_2")), POLICY, NOW)
    assert isinstance(verdict, GiveUp)
    assert verdict.reason == "poison"
    assert "2 different workers" in verdict.why


def test_losing_the_same_worker_twice_is_not_poison() -> None:
    verdict = retry.after_charge(a_job(losses=2, lost_workers=("w_1", "w_1")), POLICY, NOW)
    assert verdict == Requeue(NOW + 5)


def test_no_wait_is_no_hold() -> None:
    assert retry.after_charge(a_job(losses=1, lost_workers=("w_1",)), POLICY, NOW) == Requeue(None)
    eager = Policy(retry_backoff_s=0)
    assert retry.after_charge(a_job(losses=3), eager, NOW) == Requeue(None)


def test_a_failed_trainer_is_not_tried_again_unless_asked_for() -> None:
    assert retry.after_failure(a_job(failures=1), POLICY, NOW, "exit 1") == GiveUp("trainer_failed", "exit 1")
    asked = a_job(failures=1, retry_on_failure=True)
    assert retry.after_failure(asked, POLICY, NOW, "exit 1") == Requeue(None)
