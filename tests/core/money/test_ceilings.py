"""What a job may cost: what is left, what that pays for, and when a training has to end."""

from msgspec.structs import replace

from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import NOTHING
from simpletuner_fleet.core.jobs.job import (
    FINISHING,
    AttemptState,
    EndReason,
    Job,
    JobState,
    Outcome,
    Requirements,
    Results,
    Stopping,
)
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.money.ceilings import (
    LEAST_RUN_S,
    must_stop_at,
    pays_for,
    reached_at,
    room_of,
    stop_times,
)
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList, PriceRule
from simpletuner_fleet.core.placement.matching import Refusal, why_never
from simpletuner_fleet.core.placement.ordering import with_room
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt, holding

HOUR_S = 3600.0
RUNNING = an_attempt(accepted_at=NOW, started_at=NOW, hourly_micros=1_000_000)
MARGIN_S = POLICY.checkpoint_wait_s + POLICY.cancel_grace_s + 2 * POLICY.sweep_interval_s
COST_STOP = Stopping(reason=EndReason.COST_LIMIT, asked_at=NOW, grace_s=30.0)


def capped(micros: int = 5_000_000, **fields: object) -> Job:
    return with_room(replace(holding(), max_cost_micros=micros, **fields))


def test_what_is_left_is_never_below_nothing() -> None:
    assert [room_of(None, 7), room_of(10, 7), room_of(10, 12)] == [None, 3, 0]


def test_an_attempt_begins_where_what_is_left_pays_for_a_while() -> None:
    hourly = 3_000_000
    enough = round(hourly * LEAST_RUN_S / HOUR_S)
    assert pays_for(enough, hourly)
    assert not pays_for(enough - 1, hourly)
    assert pays_for(0, 0), "what is free can always be paid"


def test_workers_are_ruled_out_by_what_is_left_and_unknown_is_not_free() -> None:
    asked = Requirements(gpus=2, room_micros=100_000)
    dear, unknown = a_worker(gpus=2, price_micros=1_500_100), a_worker(gpus=2)
    assert why_never(dear, asked) is Refusal.COST_LIMIT
    assert why_never(replace(dear, price_micros=1_500_000), asked) is None
    assert why_never(unknown, asked) is Refusal.PRICE_UNKNOWN
    desk = PriceList(rules=(PriceRule(id="p_1", price_micros=0),))
    assert why_never(unknown, asked, None, desk) is None, "somebody has said that it costs nothing"
    assert why_never(unknown, asked.at_any_cost) is None
    assert why_never(a_worker(gpus=0), Requirements(gpus=0, room_micros=0), None, NO_PRICES) is None


def test_the_ceiling_is_reached_at_the_price_of_each_moment() -> None:
    job = capped(spent_micros=1_000_000)
    assert reached_at(job, RUNNING) == NOW + 4 * HOUR_S
    dearer = replace(RUNNING, rates=((NOW + HOUR_S, 6_000_000),))
    assert reached_at(job, dearer) == NOW + 1.5 * HOUR_S
    passed = replace(job, spent_micros=9_000_000)
    assert reached_at(passed, RUNNING) == NOW
    assert reached_at(job, replace(RUNNING, hourly_micros=0)) is None
    assert reached_at(job, replace(RUNNING, gpus=())) is None
    assert reached_at(holding(), RUNNING) is None


def test_a_stop_is_told_in_time_for_a_checkpoint_and_takes_at_most_half_of_what_is_paid() -> None:
    assert must_stop_at(NOW + HOUR_S, NOW, POLICY) == NOW + HOUR_S - MARGIN_S
    assert must_stop_at(NOW + 200.0, NOW, POLICY) == NOW + 100.0
    whole = stop_times(NOW + MARGIN_S, POLICY, NOW)
    assert (whole.grace_s, whole.save_s) == (POLICY.cancel_grace_s, POLICY.checkpoint_wait_s)
    assert stop_times(NOW + 100.0, POLICY, NOW).save_s == 100.0 - POLICY.cancel_grace_s
    assert stop_times(NOW + 10.0, POLICY, NOW).save_s is None


def test_a_training_near_its_ceiling_is_asked_to_save_and_stop_once() -> None:
    job, due = capped(1_000_000), NOW + HOUR_S - MARGIN_S
    assert stopping.ceiling_near(job, RUNNING, POLICY, due - 1.0) is NOTHING
    near = stopping.ceiling_near(job, RUNNING, POLICY, due)
    assert near.attempt is not None
    assert near.attempt.stopping is not None
    assert (near.attempt.stopping.reason, near.attempt.stopping.save_s) == (EndReason.COST_LIMIT, 300.0)
    assert [(one.type, one.details["reason"]) for one in near.events] == [
        (EventType.JOB_STOP_REQUESTED, EndReason.COST_LIMIT)
    ]
    assert stopping.ceiling_near(job, near.attempt, POLICY, due + 9.0) is NOTHING
    for other in (
        replace(job, on_max_cost="finish"),
        replace(job, state=JobState.CANCELLING),
        replace(job, results=Results.PENDING, progress=Progress(phase=FINISHING)),
        replace(job, max_cost_micros=None),
    ):
        assert stopping.ceiling_near(other, RUNNING, POLICY, due) is NOTHING


def test_what_was_stopped_for_its_cost_is_over_and_says_so() -> None:
    job, at = capped(1_000_000), NOW + HOUR_S / 2
    asked = replace(RUNNING, stopping=COST_STOP, checkpoint_step=7)
    given_back = stopping.released(job, asked, "the worker was drained", POLICY, now=at, reason="drained")
    assert given_back.job is not None
    assert given_back.attempt is not None
    assert (given_back.job.state, given_back.job.reason) == (JobState.FAILED, "cost_limit")
    assert given_back.job.error == "the cost limit of 1 would have been passed; 0.5 was spent"
    assert (given_back.attempt.outcome, given_back.attempt.failure_class) == (Outcome.FAILED, "cost_limit")
    assert given_back.attempt.error == stopping.COSTS_TOO_MUCH
    assert (given_back.attempt.checkpoint_step, given_back.job.spent_micros) == (7, 500_000)
    assert given_back.job.failures == 1
    gone = lifecycle.lost(job, asked, "gone", POLICY, now=at)
    assert gone.job is not None
    assert gone.attempt is not None
    assert (gone.job.state, gone.job.reason, gone.attempt.outcome) == (
        JobState.FAILED,
        "cost_limit",
        Outcome.LOST,
    )
    done = lifecycle.completed(job, asked, End(exit_code=0), now=at)
    assert done.job is not None
    assert (done.job.state, done.job.spent_micros) == (JobState.COMPLETED, 500_000), "it was faster"
    cancelled = stopping.released(replace(job, state=JobState.CANCELLING), asked, "", POLICY, now=at)
    assert cancelled.job is not None
    assert (cancelled.job.state, cancelled.job.reason) == (JobState.CANCELLED, "cancelled")


def test_what_goes_on_waits_with_what_is_left_and_gets_it_back_if_it_never_stopped() -> None:
    job, at = capped(1_000_000), NOW + HOUR_S / 4
    lost = lifecycle.lost(job, RUNNING, "gone", POLICY, now=at)
    assert lost.job is not None
    assert lost.attempt is not None
    assert (lost.job.state, lost.job.spent_micros, lost.job.requires.room_micros) == (
        JobState.QUEUED,
        250_000,
        750_000,
    )
    assert lost.job.class_id != job.class_id
    back = lifecycle.readopted(lost.job, lost.attempt, now=at + 9.0)
    assert back.job is not None
    assert (back.job.spent_micros, back.job.requires, back.job.class_id) == (0, job.requires, job.class_id)


def test_an_offer_that_nobody_took_costs_nothing() -> None:
    offered = an_attempt(state=AttemptState.OFFERED, hourly_micros=1_000_000)
    gone = lifecycle.lost(
        capped(1_000_000, state=JobState.DISPATCHED), offered, "gone", POLICY, now=NOW + HOUR_S
    )
    assert gone.job is not None
    assert (gone.job.spent_micros, gone.job.requires.room_micros) == (0, 1_000_000)


def test_without_a_ceiling_nothing_of_what_is_asked_changes() -> None:
    job = holding()
    lost = lifecycle.lost(job, RUNNING, "gone", POLICY, now=NOW + HOUR_S)
    assert lost.job is not None
    assert (lost.job.spent_micros, lost.job.requires, lost.job.class_id) == (
        1_000_000,
        job.requires,
        job.class_id,
    )
    assert with_room(a_job()) == a_job()
