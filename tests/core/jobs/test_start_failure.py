from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, EndReason, Hold, JobState, Outcome
from simpletuner_fleet.core.jobs.start_failure import any_might_grant, not_granted, not_started
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.core.workers.worker import Connection
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt

HOLDING = a_job(state=JobState.RUNNING, attempt_id="a_1", worker_id="w_1", epoch=1, attempts=1)
ATTEMPT = an_attempt()


def earlier(count: int) -> list[Attempt]:
    return [
        an_attempt(
            f"a_{number}",
            state=AttemptState.ENDED,
            outcome=Outcome.RELEASED,
            reason=EndReason.START_FAILED,
        )
        for number in range(10, 10 + count)
    ]


def test_what_its_worker_could_not_start_charges_nothing_and_waits_a_little() -> None:
    decision = not_started(HOLDING, ATTEMPT, "disk full", Blame.WORKER, [], POLICY, now=NOW)
    job, attempt = decision.job, decision.attempt
    assert job is not None
    assert attempt is not None
    assert (job.state, job.failures, job.losses, job.error) == (JobState.QUEUED, 0, 0, "disk full")
    assert (job.hold, job.not_before) == (Hold.BACKOFF, NOW + POLICY.retry_backoff_s)
    assert (attempt.outcome, attempt.reason) == (Outcome.RELEASED, EndReason.START_FAILED)


def test_what_may_be_the_jobs_own_fault_is_tried_three_times() -> None:
    second = not_started(HOLDING, ATTEMPT, "no such file", Blame.UNCLEAR, earlier(1), POLICY, now=NOW)
    assert second.job is not None
    assert second.job.state is JobState.QUEUED
    third = not_started(HOLDING, ATTEMPT, "no such file", Blame.UNCLEAR, earlier(2), POLICY, now=NOW)
    assert third.job is not None
    assert third.job.state is JobState.FAILED
    assert third.job.reason == "start_failed"
    assert "3 times" in (third.job.error or "")
    assert "no such file" in (third.job.error or "")


def test_what_is_the_workers_fault_is_tried_longer_and_not_for_ever() -> None:
    ninth = not_started(HOLDING, ATTEMPT, "disk full", Blame.WORKER, earlier(8), POLICY, now=NOW)
    assert ninth.job is not None
    assert ninth.job.state is JobState.QUEUED
    tenth = not_started(HOLDING, ATTEMPT, "disk full", Blame.WORKER, earlier(9), POLICY, now=NOW)
    assert tenth.job is not None
    assert tenth.job.state is JobState.FAILED


def test_a_job_that_is_being_cancelled_is_over() -> None:
    cancelling = replace(HOLDING, state=JobState.CANCELLING)
    decision = not_started(cancelling, ATTEMPT, "disk full", Blame.WORKER, earlier(9), POLICY, now=NOW)
    assert decision.job is not None
    assert decision.job.state is JobState.CANCELLED


def test_what_one_worker_does_not_grant_goes_on_to_another_that_might_and_charges_neither() -> None:
    here, other = a_worker("w_1", incarnation="1"), a_worker("w_2", incarnation="7")
    decision = not_granted(HOLDING, ATTEMPT, "settings.x names /x", here, [here, other], now=NOW)
    job = decision.job
    assert job is not None
    assert (job.state, job.hold, job.failures) == (JobState.QUEUED, Hold.NONE, 0)
    assert job.refused_by == ("w_1 1",)
    assert not any_might_grant(job, [here])
    assert any_might_grant(job, [here, other])
    assert any_might_grant(job, [replace(here, incarnation="2")]), (
        "started anew, its owner may have granted it"
    )
    assert job.line != HOLDING.line, "those of its class do not wait behind it"


def test_what_no_worker_is_left_to_grant_fails_at_once_with_the_path() -> None:
    here = a_worker("w_1", incarnation="1")
    stranger = a_worker("w_2", connection=Connection.CONNECTING)
    other = a_worker("w_3", gpus=0)
    said = "settings.x names /x, which is not on this worker or not granted to jobs"
    decision = not_granted(HOLDING, ATTEMPT, said, here, [here, stranger, other], now=NOW)
    assert decision.job is not None
    assert decision.attempt is not None
    assert decision.job.state is JobState.FAILED
    assert decision.attempt.failure_class == "path_not_granted"


def test_a_job_that_is_being_cancelled_goes_nowhere_else() -> None:
    here, other = a_worker("w_1"), a_worker("w_2")
    cancelling = replace(HOLDING, state=JobState.CANCELLING)
    decision = not_granted(cancelling, ATTEMPT, "no", here, [other], now=NOW)
    assert decision.job is not None
    assert decision.job.state is JobState.CANCELLED
