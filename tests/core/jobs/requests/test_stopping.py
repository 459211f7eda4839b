"""Asked to stop: with a checkpoint first, in a hurry after all, at the end of a drain, out of time."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision
from simpletuner_fleet.core.jobs.job import AttemptState, EndReason, JobState, Outcome, Stopping
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.reconcile import incarnation_of, is_older
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.placement.ordering import rank
from simpletuner_fleet.core.training.checkpoint import StoredManifest, beyond_reach, to_drop
from simpletuner_fleet.core.workers.worker import AdminState, DrainPlan
from tests.core.builders import NOW, POLICY, a_worker, an_attempt, holding

ADMIN = Actor("u_1", "ada")
RUNNING = an_attempt(accepted_at=NOW, checkpoint_step=40)
PATIENT = Stopping(reason=EndReason.CANCELLED, asked_at=NOW, grace_s=30.0, save_s=300.0)
AT_ONCE = Stopping(reason=EndReason.CANCELLED, asked_at=NOW, grace_s=5.0)
DRAINED = Stopping(reason=EndReason.DRAINED, asked_at=NOW, grace_s=30.0, save_s=300.0)


def cancel(job: Any, attempt: Any, stop_request: Stopping) -> Decision:
    return stopping.cancel(
        job, attempt, explicit_accept=True, actor=ADMIN, now=NOW, stop_request=stop_request
    )


def test_a_cancel_says_how_the_trainer_is_to_be_stopped_and_what_was_safe_then() -> None:
    decision = cancel(holding(), RUNNING, PATIENT)
    assert decision.job is not None
    assert decision.attempt is not None
    assert decision.job.state is JobState.CANCELLING
    assert decision.attempt.stopping == replace(PATIENT, had_step=40)
    assert decision.events[0].details == {"checkpoint_first": True}


def test_a_second_cancel_without_a_word_of_a_checkpoint_hurries() -> None:
    waiting = replace(RUNNING, stopping=PATIENT)
    decision = cancel(holding(JobState.CANCELLING), waiting, AT_ONCE)
    assert decision.attempt is not None
    assert decision.attempt.stopping == replace(PATIENT, save_s=None, grace_s=5.0)
    assert [event.type for event in decision.events] == ["job.cancel_requested"]


@pytest.mark.parametrize(
    ("known", "stop_request"), [(PATIENT, PATIENT), (AT_ONCE, PATIENT), (AT_ONCE, AT_ONCE)]
)
def test_a_cancel_that_is_no_hurry_changes_nothing(known: Stopping, stop_request: Stopping) -> None:
    assert cancel(holding(JobState.CANCELLING), replace(RUNNING, stopping=known), stop_request) is NOTHING


def test_an_attempt_is_asked_once_to_leave_a_drained_worker() -> None:
    decision = stopping.drain_over(holding(), RUNNING, DRAINED)
    assert decision.job is None
    assert decision.attempt is not None
    assert decision.attempt.stopping == replace(DRAINED, had_step=40)
    assert stopping.drain_over(holding(), decision.attempt, DRAINED) is NOTHING


def test_an_agent_that_calls_it_a_cancellation_gives_a_drained_job_back_all_the_same() -> None:
    leaving = replace(RUNNING, stopping=DRAINED)
    decision = stopping.stopped(holding(), leaving, End(exit_signal=15), POLICY, now=NOW)
    assert decision.job is not None
    assert decision.attempt is not None
    assert (decision.job.state, decision.job.charged) == (JobState.QUEUED, 0)
    assert (decision.attempt.outcome, decision.attempt.reason) == (Outcome.RELEASED, EndReason.DRAINED)


def test_a_drain_is_due_at_its_deadline_and_not_once_it_was_undone() -> None:
    plan = DrainPlan(timeout_s=60.0, deadline=NOW)
    draining = a_worker(admin=AdminState.DRAINING, drain_plan=plan)
    assert draining.drain_is_due(NOW)
    assert not draining.drain_is_due(NOW - 1)
    assert not a_worker(admin=AdminState.DRAINING).drain_is_due(NOW)
    assert not a_worker(drain_plan=plan).drain_is_due(NOW)


def out_of_time(resumed: int | None, saved: int | None, **job: Any) -> Decision:
    attempt = replace(RUNNING, resumed_from_step=resumed, checkpoint_step=saved)
    asked = {"time_limit_s": 60.0, "on_time_limit": "requeue", **job}
    return stopping.released(
        holding(**asked), attempt, "the time limit was reached", POLICY, now=NOW + 60, reason="time_limit"
    )


@pytest.mark.parametrize(("resumed", "saved"), [(None, 0), (None, 7), (0, 1), (7, 8)])
def test_a_time_limit_that_left_a_newer_checkpoint_costs_nothing_and_goes_to_the_end_of_the_line(
    resumed: int | None, saved: int
) -> None:
    decision = out_of_time(resumed, saved)
    assert decision.job is not None
    assert decision.attempt is not None
    assert (decision.job.state, decision.job.charged) == (JobState.QUEUED, 0)
    assert decision.job.rank == rank(NOW + 60, decision.job.priority, POLICY)
    assert (decision.attempt.outcome, decision.attempt.reason) == (Outcome.RELEASED, "time_limit")


@pytest.mark.parametrize(("resumed", "saved"), [(None, None), (7, 7), (7, None)])
def test_a_time_limit_used_up_without_a_step_forward_is_charged_until_no_retries_are_left(
    resumed: int | None, saved: int | None
) -> None:
    decision = out_of_time(resumed, saved)
    assert decision.job is not None
    assert decision.attempt is not None
    assert (decision.job.state, decision.job.failures) == (JobState.QUEUED, 1)
    assert (decision.attempt.outcome, decision.attempt.failure_class) == (Outcome.FAILED, "time_limit")
    last = out_of_time(resumed, saved, failures=3)
    assert last.job is not None
    assert (last.job.state, last.job.reason) == (JobState.FAILED, "retries_exhausted")


def test_a_job_that_did_not_ask_to_go_on_fails_at_its_time_limit_whatever_its_worker_says() -> None:
    decision = out_of_time(None, 7, on_time_limit="fail")
    assert decision.job is not None
    assert (decision.job.state, decision.job.reason) == (JobState.FAILED, "trainer_failed")


def test_a_cancelled_job_that_runs_out_of_time_is_cancelled() -> None:
    attempt = replace(RUNNING, stopping=PATIENT)
    decision = stopping.released(
        holding(JobState.CANCELLING), attempt, "", POLICY, now=NOW, reason="time_limit"
    )
    assert decision.job is not None
    assert (decision.job.state, decision.job.charged) == (JobState.CANCELLED, 0)


def a_checkpoint(step: int) -> StoredManifest:
    return StoredManifest(
        id=f"m_{step}",
        job_id="j_1",
        attempt_id="a_1",
        attempt_number=1,
        epoch=1,
        kind="checkpoint",
        name=f"checkpoint-{step}",
        files=(),
        total_bytes=0,
        created_at=NOW + step,
        worker_name="w",
        step=step,
    )


def test_a_checkpoint_is_beyond_reach_after_so_many_tries_in_vain() -> None:
    assert beyond_reach(["m_1", "m_2", "m_1"], 2) == {"m_1"}
    assert beyond_reach([], 2) == frozenset()


def test_checkpoints_nobody_can_fetch_do_not_push_out_the_ones_made_instead() -> None:
    known = [a_checkpoint(step) for step in (80, 90, 100, 10)]
    assert [one.step for one in to_drop(known, 1)] == [80, 90, 10]
    useless = {"m_80", "m_90", "m_100"}
    assert [one.step for one in to_drop(known, 1, useless=useless)] == [80, 90, 100]


def test_processes_in_one_folder_are_counted_and_uncounted_ones_are_never_called_old() -> None:
    first, second, unknown = incarnation_of(1, "zz"), incarnation_of(2, "aa"), incarnation_of(0, "mm")
    assert is_older(first, second)
    assert not is_older(second, first)
    assert not is_older(first, first)
    assert not is_older(unknown, second)
    assert not is_older(first, unknown)
    assert not is_older("", second)


@pytest.mark.parametrize("reason", ["", *EndReason, "pwned"])
@pytest.mark.parametrize("on_time_limit", ["fail", "requeue"])
def test_an_offer_given_back_before_its_acceptance_is_withdrawn_whatever_the_reason(
    reason: str, on_time_limit: Any
) -> None:
    offered = an_attempt(state=AttemptState.OFFERED, stopping=DRAINED)
    job = holding(JobState.DISPATCHED, time_limit_s=60.0, on_time_limit=on_time_limit)
    decision = stopping.released(job, offered, "no", POLICY, now=NOW, reason=reason)
    assert decision.job is not None
    assert decision.attempt is not None
    assert (decision.job.state, decision.job.charged, decision.job.rank) == (JobState.QUEUED, 0, job.rank)
    assert (decision.attempt.outcome, decision.attempt.reason) == (Outcome.RELEASED, None)
    cancelling = holding(JobState.CANCELLING, on_time_limit=on_time_limit)
    ended = stopping.released(cancelling, offered, "no", POLICY, now=NOW, reason=reason).job
    assert ended is not None
    assert ended.state is JobState.CANCELLED
