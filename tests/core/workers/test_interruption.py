"""A machine that is about to be taken away: when it is there, what its time is for, and what its jobs are charged."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import EndReason, Hold, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.lifecycle import INTERRUPTIONS_UNCHARGED
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.workers.heartbeat import HeartbeatDecision, HeartbeatFacts, decide_heartbeat
from simpletuner_fleet.core.workers.interruption import (
    LEAST_TO_SAVE_S,
    LONGEST_NOTICE_S,
    hand_back_within,
    noticed,
)
from simpletuner_fleet.core.workers.worker import (
    AdminState,
    Connection,
    Worker,
    WorkerStatus,
    published_status,
)
from tests.core.builders import ENDS, NOW, POLICY, a_worker, an_attempt, holding

RUNNING = an_attempt(accepted_at=NOW)


@pytest.mark.parametrize("left_s", [LEAST_TO_SAVE_S, 25.0, 120.0, LONGEST_NOTICE_S, 1e9])
def test_a_checkpoint_comes_first_then_the_end_then_the_upload_and_all_before_the_machine_goes(
    left_s: float,
) -> None:
    plan = hand_back_within(left_s)
    assert plan.save_s is not None
    assert 0 < plan.save_s < plan.save_s + plan.grace_s < plan.upload_s < plan.leave_s
    assert plan.leave_s == min(left_s, LONGEST_NOTICE_S)


@pytest.mark.parametrize("left_s", [-5.0, 0.0, 5.0])
def test_without_time_nothing_is_saved_and_everything_goes_back_at_once(left_s: float) -> None:
    plan = hand_back_within(left_s)
    assert (plan.save_s, plan.grace_s, plan.upload_s) == (None, 0.0, 0.0)
    assert plan.leave_s == max(0.0, left_s)


def test_a_deadline_comes_nearer_and_is_never_put_off() -> None:
    first = noticed(None, "aws", 120.0, NOW)
    assert (first.source, first.deadline) == ("aws", NOW + 120.0)
    assert noticed(first, "aws", 115.0, NOW + 5.0) is first
    assert noticed(first, "aws", 500.0, NOW + 5.0) is first
    assert noticed(first, "slurm", 20.0, NOW + 5.0) == replace(first, deadline=NOW + 25.0)
    assert noticed(None, "aws", 1e12, NOW).deadline == NOW + LONGEST_NOTICE_S
    assert noticed(None, "aws", -1e12, NOW).deadline == NOW


def beats(worker: Worker, **facts: Any) -> HeartbeatDecision:
    return decide_heartbeat(
        worker,
        (),
        HeartbeatFacts(**facts),
        POLICY,
        expected=True,
        reachable=True,
        listening=False,
        now=NOW,
    )


def test_a_heartbeat_tells_of_the_end_once_and_repeats_change_nothing() -> None:
    decision = beats(a_worker(), ends="aws", ends_in_s=120.0, leaving=True)
    assert decision.interrupted
    assert decision.worker == a_worker(interruption=ENDS)
    assert decision.reachable is False
    again = beats(a_worker(interruption=ENDS), ends="aws", ends_in_s=120.0)
    assert (again.worker, again.interrupted) == (None, False)


def test_it_is_published_as_draining_while_it_is_there() -> None:
    assert published_status(AdminState.ACTIVE, Connection.CONNECTED, True, True) is WorkerStatus.DRAINING
    assert a_worker(interruption=ENDS).status(False) is WorkerStatus.DRAINING
    away = a_worker(interruption=ENDS, connection=Connection.OFFLINE)
    assert away.status(False) is WorkerStatus.OFFLINE


def job_of(decision: Decision) -> Job:
    assert decision.job is not None
    return decision.job


def test_a_job_that_is_given_back_because_its_machine_ends_keeps_its_place_and_pays_nothing() -> None:
    before = holding()
    decision = stopping.released(
        before, RUNNING, "taken away", POLICY, now=NOW + 50.0, reason=EndReason.INTERRUPTED
    )
    after = job_of(decision)
    assert (after.state, after.hold, after.rank) == (JobState.QUEUED, Hold.NONE, before.rank)
    assert (after.interruptions, after.losses, after.failures) == (1, 0, 0)
    assert decision.attempt is not None
    assert (decision.attempt.outcome, decision.attempt.reason) == (Outcome.RELEASED, "interrupted")
    drained = stopping.released(before, RUNNING, "", POLICY, now=NOW, reason=EndReason.DRAINED)
    assert job_of(drained).interruptions == 0


def lost(job: Job, **fields: Any) -> Decision:
    attempt = replace(RUNNING, **fields)
    return lifecycle.lost(job, attempt, "no heartbeat for 120 s", POLICY, now=NOW, taken_away=True)


def test_a_machine_that_goes_without_a_word_is_no_fault_of_its_job() -> None:
    decision = lost(replace(holding(), max_retries=0))
    after = job_of(decision)
    assert (after.state, after.losses, after.lost_workers, after.interruptions) == (JobState.QUEUED, 0, (), 1)
    assert decision.attempt is not None
    assert (decision.attempt.outcome, decision.attempt.reason) == (Outcome.LOST, "interrupted")
    back = lifecycle.readopted(after, decision.attempt, now=NOW)
    assert (job_of(back).losses, job_of(back).interruptions, job_of(back).lost_workers) == (0, 0, ())
    assert back.attempt is not None
    assert back.attempt.reason is None


def test_a_job_that_takes_its_machines_down_without_coming_forward_pays_in_the_end() -> None:
    often = replace(holding(), interruptions=INTERRUPTIONS_UNCHARGED)
    assert job_of(lost(often)).losses == 1
    forward = lost(often, resumed_from_step=100, checkpoint_step=200)
    assert (job_of(forward).losses, job_of(forward).interruptions) == (0, INTERRUPTIONS_UNCHARGED + 1)
