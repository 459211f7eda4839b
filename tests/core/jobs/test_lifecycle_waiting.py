"""What people and dependencies do to a job: cancel, approve, reject, and let it queue."""

import pytest

from simpletuner_fleet.core.errors import OfferWithdrawn, WrongJobState
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import NOTHING
from simpletuner_fleet.core.jobs.job import Attempt, Hold, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.requests import stopping
from tests.core.builders import NOW, POLICY, a_job, holding
from tests.core.jobs.lifecycle_kit import (
    ADMIN,
    DISPATCHED,
    ENDED,
    OFFERED,
    RUNNING,
    attempt_of,
    job_of,
    types,
)

# People.


@pytest.mark.parametrize(
    "job",
    [a_job(), a_job(state=JobState.BLOCKED, hold=Hold.APPROVAL), a_job(hold=Hold.BACKOFF, not_before=NOW)],
)
def test_a_job_without_an_attempt_is_cancelled_at_once(job: Job) -> None:
    decision = stopping.cancel(job, None, explicit_accept=True, actor=ADMIN, now=NOW)
    done = job_of(decision)
    assert (done.state, done.hold, done.not_before) == (JobState.CANCELLED, Hold.NONE, None)
    assert (done.finished_at, done.reason) == (NOW, "cancelled")
    assert decision.attempt is None
    assert types(decision) == ["job.cancel_requested", "job.cancelled"]
    assert decision.events[0].actor == ADMIN


def test_an_offer_not_taken_yet_is_withdrawn_by_a_cancel() -> None:
    decision = stopping.cancel(DISPATCHED, OFFERED, explicit_accept=True, actor=ADMIN, now=NOW)
    assert job_of(decision).state is JobState.CANCELLED
    assert attempt_of(decision).outcome is Outcome.CANCELLED
    with pytest.raises(OfferWithdrawn):
        lifecycle.accept(job_of(decision), attempt_of(decision), incarnation="", now=NOW)


@pytest.mark.parametrize(
    ("job", "attempt", "explicit_accept"),
    [(holding(), RUNNING, True), (holding(), RUNNING, False), (DISPATCHED, OFFERED, False)],
)
def test_a_trainer_that_may_run_is_asked_to_stop(job: Job, attempt: Attempt, explicit_accept: bool) -> None:
    decision = stopping.cancel(job, attempt, explicit_accept=explicit_accept, actor=ADMIN, now=NOW)
    asked = job_of(decision)
    assert (asked.state, asked.attempt_id) == (JobState.CANCELLING, "a_1")
    assert decision.attempt is None
    assert types(decision) == ["job.cancel_requested"]
    again = stopping.cancel(asked, attempt, explicit_accept=explicit_accept, actor=ADMIN, now=NOW)
    assert again is NOTHING


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
def test_what_is_over_can_be_neither_cancelled_nor_moved(state: JobState) -> None:
    with pytest.raises(WrongJobState, match=f"The job is already {state}"):
        stopping.cancel(holding(state), ENDED, explicit_accept=True, actor=ADMIN, now=NOW)
    with pytest.raises(WrongJobState):
        lifecycle.set_priority(holding(state), 1, POLICY, ADMIN)


def test_a_priority_moves_the_job_from_where_it_was_submitted() -> None:
    decision = lifecycle.set_priority(a_job(), 10, POLICY, ADMIN)
    job = job_of(decision)
    assert (job.priority, job.rank) == (10, NOW - 10 * POLICY.priority_point_s)
    assert decision.events[0].details == {"priority": 10, "was": 0}


AWAITING = a_job(state=JobState.BLOCKED, hold=Hold.APPROVAL)
DEPENDING = a_job(state=JobState.BLOCKED, hold=Hold.DEPENDENCY, depends_on=("j_0",))


def test_an_approved_job_queues_or_waits_for_others() -> None:
    free = lifecycle.approved(AWAITING, ADMIN, waits_for_others=False, now=NOW)
    assert (job_of(free).state, job_of(free).hold) == (JobState.QUEUED, Hold.NONE)
    bound = lifecycle.approved(AWAITING, ADMIN, waits_for_others=True, now=NOW)
    assert (job_of(bound).state, job_of(bound).hold) == (JobState.BLOCKED, Hold.DEPENDENCY)
    assert types(free) == types(bound) == ["job.approved"]


def test_a_rejected_job_is_over_and_says_why() -> None:
    job = job_of(lifecycle.rejected(AWAITING, "too dear", ADMIN, now=NOW))
    assert (job.state, job.reason, job.error) == (
        JobState.CANCELLED,
        "rejected",
        f"rejected by {ADMIN.name}: too dear",
    )
    assert (job.hold, job.finished_at) == (Hold.NONE, NOW)
    assert job_of(lifecycle.rejected(AWAITING, "", ADMIN, now=NOW)).error == f"rejected by {ADMIN.name}"


def test_a_job_cancelled_before_its_approval_says_that_nobody_approved_it() -> None:
    details = [
        stopping.cancel(job, None, explicit_accept=True, actor=ADMIN, now=NOW).events[-1].details
        for job in (AWAITING, a_job())
    ]
    assert details == [{"reason": "not_approved"}, {}]


@pytest.mark.parametrize("job", [DEPENDING, *(a_job(state=state) for state in JobState)])
def test_only_a_job_that_waits_for_approval_can_be_approved_or_rejected(job: Job) -> None:
    with pytest.raises(WrongJobState):
        lifecycle.approved(job, ADMIN, waits_for_others=False, now=NOW)
    with pytest.raises(WrongJobState):
        lifecycle.rejected(job, "", ADMIN, now=NOW)


def test_the_last_good_end_of_its_dependencies_lets_a_job_queue() -> None:
    good = a_job("j_0", state=JobState.COMPLETED)
    for pending in (a_job("j_9", state=JobState.RUNNING), None):
        assert lifecycle.dependency_ended(DEPENDING, good, [good, pending], now=NOW) is NOTHING
    decision = lifecycle.dependency_ended(DEPENDING, good, [good], now=NOW)
    assert (job_of(decision).state, job_of(decision).hold) == (JobState.QUEUED, Hold.NONE)
    assert types(decision) == ["job.unblocked"]


def test_an_approval_is_still_needed_when_the_dependencies_are_done() -> None:
    good = a_job("j_0", state=JobState.COMPLETED)
    assert lifecycle.dependency_ended(AWAITING, good, [], now=NOW) is NOTHING


@pytest.mark.parametrize("waiting", [DEPENDING, AWAITING])
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize("other", [JobState.RUNNING, JobState.COMPLETED, JobState.FAILED])
def test_a_bad_end_of_a_dependency_ends_the_wait(waiting: Job, state: JobState, other: JobState) -> None:
    bad = a_job("j_0", state=state)
    decision = lifecycle.dependency_ended(waiting, bad, [a_job("j_9", state=other)], now=NOW)
    job = job_of(decision)
    assert (job.state, job.reason, job.hold) == (JobState.FAILED, "dependency_failed", Hold.NONE)
    assert job.error == f"it depends on j_0, which ended as {state}"
    assert types(decision) == ["job.failed"]


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.BLOCKED}))
@pytest.mark.parametrize("ended", [JobState.COMPLETED, JobState.FAILED])
def test_a_job_that_waits_no_more_does_not_care_how_its_dependency_ends(
    state: JobState, ended: JobState
) -> None:
    assert lifecycle.dependency_ended(a_job(state=state), a_job("j_0", state=ended), [], now=NOW) is NOTHING


def test_a_good_end_releases_nobody_who_is_still_to_be_told_of_a_bad_one() -> None:
    good, bad = a_job("j_0", state=JobState.COMPLETED), a_job("j_9", state=JobState.FAILED)
    job = job_of(lifecycle.dependency_ended(DEPENDING, good, [good, bad], now=NOW))
    assert (job.state, job.error) == (JobState.FAILED, "it depends on j_9, which ended as failed")


def test_a_backoff_ends_once() -> None:
    waiting = a_job(hold=Hold.BACKOFF, not_before=NOW)
    over = job_of(lifecycle.hold_over(waiting, NOW))
    assert (over.hold, over.not_before, over.state) == (Hold.NONE, None, JobState.QUEUED)
    assert lifecycle.hold_over(over, NOW) is NOTHING
    assert lifecycle.hold_over(AWAITING, NOW) is NOTHING
