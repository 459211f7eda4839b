"""What the agent makes of everything it hears."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.actions import (
    Action,
    AskForCheckpoint,
    AskForValidation,
    Forget,
    Leave,
    SendAccept,
    SendReport,
    StartTrainer,
    StopTrainer,
)
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.inbox import REMEMBERED_REQUESTS, Inbox, Phase
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.workers.interruption import hand_back_within
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    JobSubmit,
    Orders,
    ReportStatus,
    StopAttempt,
    ValidateNow,
)


def offer(job_id: str = "j_1", epoch: int = 1) -> JobSubmit:
    return JobSubmit(
        job_id=job_id,
        attempt=1,
        attempt_id=f"a_{job_id}_{epoch}",
        epoch=epoch,
        config_name="c",
        config={},
        trainer="command",
        upload_endpoint="",
    )


TURN = Turn("j_1", 1)
DONE = AttemptEnding(exit_code=0)


def running(inbox: Inbox, job_id: str = "j_1", epoch: int = 1) -> Turn:
    inbox.offered(offer(job_id, epoch))
    inbox.accepted(Turn(job_id, epoch))
    inbox.started(Turn(job_id, epoch))
    return Turn(job_id, epoch)


def reported(actions: list[object]) -> ReportStatus:
    (report,) = [action for action in actions if isinstance(action, SendReport)]
    return report.report.status


def test_a_job_walks_from_offer_to_delivery() -> None:
    inbox = Inbox(persistent=True)
    assert inbox.offered(offer()) == [SendAccept(TURN, 1, 1)]
    assert inbox.accepted(TURN) == [StartTrainer(offer())]
    assert reported(list(inbox.started(TURN))) is ReportStatus.RUNNING
    (final,) = inbox.ended(TURN, DONE)
    assert isinstance(final, SendReport)
    assert final.final
    assert final.report.status is ReportStatus.COMPLETED
    assert final.report.epoch == 1
    assert inbox.held_attempts(())[0].state == "finished"
    assert inbox.delivered(TURN) == [Forget(TURN)]
    assert inbox.held == {}


def test_nothing_starts_before_the_acceptance_is_answered() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    assert inbox.held[TURN].phase is Phase.ACCEPTING
    assert inbox.started(TURN) == []
    assert inbox.ended(TURN, DONE) == []


def test_an_offer_heard_twice_is_taken_once() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    assert inbox.offered(offer()) == []
    inbox.accepted(TURN)
    assert inbox.accepted(TURN) == []
    inbox.started(TURN)
    inbox.ended(TURN, DONE)
    inbox.delivered(TURN)
    assert inbox.offered(offer()) == []


def test_an_offer_taken_back_is_forgotten() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    assert inbox.refused(TURN) == [Forget(TURN)]
    assert inbox.accepted(TURN) == []


def test_a_full_worker_takes_nothing_more() -> None:
    inbox = Inbox(persistent=True, max_jobs=1)
    running(inbox)
    assert inbox.offered(offer("j_2", 2)) == []
    assert Inbox(persistent=True, max_jobs=2).offered(offer("j_2", 2)) != []


def test_a_gpu_is_given_to_nobody_while_something_lives_on_it() -> None:
    inbox = Inbox(persistent=True, max_jobs=4)
    first, second, third = (replace(offer(f"j_{n}", n), gpus=[f"GPU-{n % 2}"]) for n in (1, 2, 3))
    inbox.offered(first)
    inbox.accepted(TURN)
    inbox.started(TURN)
    assert inbox.gpus_not_left() == set()
    inbox.went_stale(TURN)
    assert inbox.gpus_not_left() == {"GPU-1"}
    assert inbox.offered(third) == []
    assert inbox.offered(second) != []
    inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED))
    assert inbox.gpus_not_left() == set()
    assert inbox.offered(third) != []


def test_a_newer_attempt_at_a_job_we_still_run_stops_the_old_one_first() -> None:
    inbox = Inbox(persistent=True, max_jobs=4)
    running(inbox)
    assert inbox.offered(offer("j_1", 2)) == [StopTrainer(TURN, 0.0, EndReason.STALE)]
    assert inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=9)) == [Forget(TURN)]
    assert inbox.offered(offer("j_1", 2)) != []


def test_the_next_job_is_taken_while_the_report_of_the_last_one_is_under_way() -> None:
    inbox = Inbox(persistent=True, max_jobs=1)
    running(inbox)
    inbox.ended(TURN, DONE)
    assert inbox.offered(offer("j_2", 2)) == [SendAccept(Turn("j_2", 2), 1, 2)]
    assert [attempt.state for attempt in inbox.held_attempts(())] == ["finished", "accepting"]
    assert inbox.delivered(TURN) == [Forget(TURN)]
    assert inbox.accepted(Turn("j_2", 2)) == [StartTrainer(offer("j_2", 2))]


def test_a_trainer_that_is_being_stopped_keeps_its_place_until_it_is_gone() -> None:
    inbox = Inbox(persistent=True, max_jobs=1)
    running(inbox)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert inbox.offered(offer("j_2", 2)) == []
    inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))
    assert inbox.offered(offer("j_2", 2)) == [SendAccept(Turn("j_2", 2), 1, 2)]


def test_ended_attempts_make_no_more_room_than_there_is() -> None:
    inbox = Inbox(persistent=True, max_jobs=1)
    running(inbox)
    inbox.ended(TURN, DONE)
    running(inbox, "j_2", 2)
    assert inbox.offered(offer("j_3", 3)) == []


def test_a_newer_attempt_at_a_job_whose_end_is_being_reported_is_taken() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    inbox.ended(TURN, AttemptEnding(exit_code=1))
    assert inbox.offered(offer("j_1", 2)) == [SendAccept(Turn("j_1", 2), 1, 2)]
    assert inbox.refused(Turn("j_1", 2)) == [Forget(Turn("j_1", 2))]
    assert inbox.delivered(TURN) == [Forget(TURN)]


def test_an_ephemeral_worker_takes_no_other_job_while_its_end_is_being_reported() -> None:
    inbox = Inbox(persistent=False)
    running(inbox)
    inbox.ended(TURN, DONE)
    assert inbox.offered(offer("j_2", 2)) == []
    assert inbox.delivered(TURN) == [Forget(TURN), Leave("its job is done")]


def test_a_cancel_stops_that_very_attempt_and_no_other() -> None:
    inbox = Inbox(persistent=True)
    running(inbox, "j_1", 7)
    assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=6)) == []
    assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=7, grace_s=5)) == [
        StopTrainer(Turn("j_1", 7), 5.0, EndReason.CANCELLED)
    ]
    assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=7)) == []
    assert (
        reported(list(inbox.ended(Turn("j_1", 7), AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))))
        is ReportStatus.CANCELLED
    )


def test_a_cancel_heard_while_accepting_starts_nothing() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert reported(list(inbox.accepted(TURN))) is ReportStatus.CANCELLED


def test_a_cancel_told_with_the_acceptance_starts_nothing() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    assert reported(list(inbox.accepted(TURN, cancelling=True))) is ReportStatus.CANCELLED


def test_a_cancel_heard_while_starting_stops_it_as_soon_as_it_runs() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    inbox.accepted(TURN)
    assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1)) == []
    assert inbox.started(TURN) == [StopTrainer(TURN, 0.0, EndReason.CANCELLED)]


def test_a_stale_attempt_is_stopped_and_not_reported() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1, reason=EndReason.STALE)) == [
        StopTrainer(TURN, 0.0, EndReason.STALE)
    ]
    assert inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=9)) == [Forget(TURN)]


def test_a_stale_attempt_that_was_being_cancelled_is_still_not_reported() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert inbox.went_stale(TURN) == [StopTrainer(TURN, 0.0, EndReason.STALE)]
    assert inbox.ended(TURN, DONE) == [Forget(TURN)]


def test_a_trainer_that_completes_while_being_cancelled_has_completed() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert reported(list(inbox.ended(TURN, DONE))) is ReportStatus.COMPLETED


def test_termination_gives_everything_back_and_then_leaves() -> None:
    inbox = Inbox(persistent=True, max_jobs=2, release_grace_s=3.0)
    running(inbox, "j_1", 1)
    inbox.offered(offer("j_2", 2))
    actions = inbox.terminated("spot notice")
    assert StopTrainer(TURN, 3.0, EndReason.PREEMPTED) in actions
    assert reported(list(actions)) is ReportStatus.RELEASED
    assert inbox.delivered(Turn("j_2", 2)) == [Forget(Turn("j_2", 2))]
    assert (
        reported(list(inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))))
        is ReportStatus.RELEASED
    )
    assert inbox.delivered(TURN) == [Forget(TURN), Leave("spot notice")]


def test_termination_with_nothing_held_leaves_at_once() -> None:
    assert Inbox(persistent=True).terminated("bye") == [Leave("bye")]


def test_an_offer_that_comes_while_leaving_is_given_back_at_once() -> None:
    inbox = Inbox(persistent=True)
    inbox.terminated("bye")
    assert reported(list(inbox.offered(offer()))) is ReportStatus.RELEASED
    assert inbox.offered(offer()) == []


def test_heartbeats_say_whether_a_worker_idles_works_or_leaves() -> None:
    inbox = Inbox(persistent=True)
    assert inbox.status == "idle"
    running(inbox)
    assert inbox.status == "busy"
    inbox.terminated("spot notice")
    assert inbox.status == "leaving"


def test_an_ephemeral_worker_leaves_when_its_job_is_delivered() -> None:
    inbox = Inbox(persistent=False)
    running(inbox)
    inbox.ended(TURN, AttemptEnding(exit_code=1))
    assert inbox.delivered(TURN) == [Forget(TURN), Leave("its job is done")]


def test_an_ephemeral_worker_whose_offer_was_taken_back_stays() -> None:
    inbox = Inbox(persistent=False)
    inbox.offered(offer())
    assert inbox.refused(TURN) == [Forget(TURN)]


def test_a_persistent_worker_stays_after_its_job_and_while_draining() -> None:
    inbox = Inbox(persistent=True)
    inbox.heard(Orders(drain=True))
    running(inbox)
    inbox.ended(TURN, DONE)
    assert inbox.delivered(TURN) == [Forget(TURN)]
    assert inbox.draining


def test_a_shutdown_order_waits_for_what_is_held() -> None:
    inbox = Inbox(persistent=False)
    running(inbox)
    assert inbox.heard(Orders(shutdown=True)) == []
    assert Inbox(persistent=False).heard(Orders(shutdown=True, drain=True)) == [
        Leave("the orchestrator asked for it")
    ]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (AttemptEnding(exit_code=0), ReportStatus.COMPLETED),
        (AttemptEnding(exit_code=3), ReportStatus.FAILED),
        (AttemptEnding(exit_signal=11), ReportStatus.FAILED),
        (AttemptEnding(reason=EndReason.TIME_LIMIT, exit_signal=15), ReportStatus.FAILED),
        (AttemptEnding(reason=EndReason.START_FAILED, error="no such file"), ReportStatus.FAILED),
        (AttemptEnding(reason=EndReason.SHIM_LOST), ReportStatus.FAILED),
        (AttemptEnding(reason=EndReason.FENCED, exit_signal=9), ReportStatus.RELEASED),
    ],
)
def test_every_ending_has_its_report(ending: AttemptEnding, status: ReportStatus) -> None:
    assert final_report(None, ending).status is status


def test_message_numbers_rise() -> None:
    inbox = Inbox(persistent=True)
    assert inbox.next_seq() < inbox.next_seq()


def test_heartbeats_tell_the_step_and_the_newest_checkpoint_that_is_safe() -> None:
    inbox = Inbox(persistent=True)
    turn = running(inbox)
    inbox.progressed(turn, 130)
    inbox.stored(turn, 100)
    inbox.stored(Turn("j_other", 1), 7)
    (held,) = inbox.held_attempts(())
    assert (held.step, held.checkpoint_step) == (130, 100)


def test_what_is_being_prepared_is_wanted_until_a_stop() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    inbox.accepted(TURN)
    assert inbox.wants(TURN)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert not inbox.wants(TURN)
    assert not inbox.wants(Turn("j_2", 1))


def test_an_attempt_without_its_checkpoint_is_given_back() -> None:
    report = final_report(None, AttemptEnding(reason=EndReason.RESUME_FAILED, error="gone"))
    assert (report.status, report.error) == (ReportStatus.RELEASED, "gone")


def test_a_stop_that_waits_for_a_checkpoint_can_be_hurried_and_never_slowed() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    patient = StopAttempt(job_id="j_1", epoch=1, grace_s=30.0, save_s=300.0)
    assert inbox.told_to_stop(patient) == [StopTrainer(TURN, 30.0, EndReason.CANCELLED, 300.0)]
    assert inbox.told_to_stop(patient) == []
    at_once = StopAttempt(job_id="j_1", epoch=1, grace_s=5.0)
    assert inbox.told_to_stop(at_once) == [StopTrainer(TURN, 5.0, EndReason.CANCELLED)]
    assert inbox.told_to_stop(at_once) == []
    assert inbox.told_to_stop(patient) == []


def test_a_machine_that_must_go_waits_for_no_checkpoint_of_a_drain() -> None:
    inbox = Inbox(persistent=True, release_grace_s=3.0)
    running(inbox)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1, reason=EndReason.DRAINED, save_s=300.0))
    assert inbox.terminated("spot notice") == [StopTrainer(TURN, 3.0, EndReason.PREEMPTED)]
    (final,) = inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))
    assert isinstance(final, SendReport)
    assert (final.report.status, final.report.reason) == (ReportStatus.RELEASED, "drained")


def test_a_machine_that_is_taken_away_saves_first_and_gives_everything_back() -> None:
    inbox = Inbox(persistent=True, max_jobs=2)
    running(inbox, "j_1", 1)
    inbox.offered(offer("j_2", 2))
    plan = hand_back_within(120.0)
    actions = inbox.machine_ends("taken away", plan)
    assert StopTrainer(TURN, plan.grace_s, EndReason.INTERRUPTED, plan.save_s) in actions
    assert reported(list(actions)) is ReportStatus.RELEASED
    assert reported(list(inbox.offered(offer("j_3", 3)))) is ReportStatus.RELEASED, "it takes none"
    assert inbox.out_of_patience() == [StopTrainer(TURN, 0.0, EndReason.INTERRUPTED)]
    assert inbox.out_of_patience() == []
    (final,) = inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))
    assert isinstance(final, SendReport)
    assert (final.report.status, final.report.reason) == (ReportStatus.RELEASED, "interrupted")


def test_a_machine_that_is_taken_away_hurries_the_checkpoint_of_a_drain_only_near_its_end() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1, reason=EndReason.DRAINED, save_s=300.0))
    assert inbox.machine_ends("taken away", hand_back_within(120.0)) == []
    assert inbox.out_of_patience() == [StopTrainer(TURN, 0.0, EndReason.INTERRUPTED)]


def test_a_machine_without_work_that_is_taken_away_leaves_at_once() -> None:
    assert Inbox(persistent=True).machine_ends("taken away", hand_back_within(30.0)) == [Leave("taken away")]


def test_a_job_out_of_time_that_is_to_go_on_later_saves_first_and_is_given_back() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    (stop,) = inbox.out_of_time(TURN)
    assert isinstance(stop, StopTrainer)
    assert (stop.why, stop.save_s) == (EndReason.TIME_LIMIT, offer().checkpoint_wait_s)
    (final,) = inbox.ended(TURN, AttemptEnding(reason=EndReason.STOPPED, exit_signal=15))
    assert isinstance(final, SendReport)
    assert (final.report.status, final.report.reason) == (ReportStatus.RELEASED, "time_limit")
    assert inbox.out_of_time(Turn("j_9", 9)) == []


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("resume_failed", "resume_failed"), ("fenced", "cut_off"), ("agent_lost", "cut_off")],
)
def test_whatever_is_given_back_says_why_in_a_word(ending: str, reason: str) -> None:
    report = final_report(None, AttemptEnding(reason=EndReason(ending)))
    assert (report.status, report.reason) == (ReportStatus.RELEASED, reason)


def test_a_guardian_that_ended_a_job_at_its_limit_gives_back_what_is_to_go_on_later() -> None:
    report = final_report(None, AttemptEnding(reason=EndReason.TIME_LIMIT, exit_signal=9), "requeue")
    assert (report.status, report.reason) == (ReportStatus.RELEASED, "time_limit")


def save(epoch: int = 1, asked_at: float = 5.0) -> CheckpointNow:
    return CheckpointNow(job_id="j_1", epoch=epoch, asked_at=asked_at)


def test_a_checkpoint_is_asked_for_once_however_often_the_request_is_heard() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    assert inbox.heard(Orders(save=[save()])) == [AskForCheckpoint(TURN, 5.0)]
    assert inbox.told_to_save(save()) == []
    assert inbox.told_to_save(save(asked_at=6.0)) == [AskForCheckpoint(TURN, 6.0)]
    assert inbox.told_to_save(save()) == [], "late, and of the one before"
    inbox.could_not_ask(TURN, 6.0)
    assert inbox.told_to_save(save(asked_at=6.0)) == [AskForCheckpoint(TURN, 6.0)]


def test_only_the_attempt_that_is_meant_is_asked_and_only_while_it_trains() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    inbox.accepted(TURN)
    assert inbox.told_to_save(save()) == [], "nothing runs yet; the request comes again"
    inbox.started(TURN)
    assert inbox.told_to_save(save(epoch=2)) == []
    assert inbox.told_to_save(save()) == [AskForCheckpoint(TURN, 5.0)]
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert inbox.told_to_save(save(asked_at=6.0)) == []


def validation(epoch: int = 1, asked_at: float = 5.0) -> ValidateNow:
    return ValidateNow(job_id="j_1", epoch=epoch, asked_at=asked_at)


def told_at(actions: list[Action]) -> list[float | None]:
    reports = [one.report for one in actions if isinstance(one, SendReport)]
    return [report.validation_asked_at for report in reports]


def test_a_trainer_is_asked_to_validate_once_and_that_is_said_until_it_is_heard() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    assert inbox.heard(Orders(validate=[validation()])) == [AskForValidation(TURN, 5.0)]
    assert inbox.told_to_validate(validation()) == [], "it is on its way"
    assert told_at(inbox.asked_to_validate(TURN, 5.0, heard=True)) == [5.0]
    assert told_at(inbox.told_to_validate(validation())) == [5.0], (
        "nobody has heard of it: said again, not asked again"
    )
    assert inbox.told_to_validate(validation(asked_at=6.0)) == [AskForValidation(TURN, 6.0)]
    assert told_at(inbox.told_to_validate(validation())) == [5.0], "late, after a newer one: not asked again"
    assert inbox.asked_to_validate(TURN, 5.0, heard=True) == [], "late, and of the one before"
    assert inbox.asked_to_validate(TURN, 6.0, heard=False) == []
    assert inbox.told_to_validate(validation(asked_at=6.0)) == [AskForValidation(TURN, 6.0)], "asked anew"


def test_of_very_many_requests_the_last_are_remembered() -> None:
    inbox = Inbox(persistent=True)
    running(inbox)
    for at in range(1000):
        assert inbox.told_to_validate(validation(asked_at=at)) == [AskForValidation(TURN, at)]
        inbox.asked_to_validate(TURN, at, heard=True)
    assert len(inbox.held[TURN].validations_asked) == REMEMBERED_REQUESTS
    assert told_at(inbox.told_to_validate(validation(asked_at=990))) == [990]


def test_a_validation_of_what_is_not_trained_is_not_asked_for() -> None:
    inbox = Inbox(persistent=True)
    inbox.offered(offer())
    inbox.accepted(TURN)
    assert inbox.told_to_validate(validation()) == [], "nothing runs yet; the request comes again"
    inbox.started(TURN)
    assert inbox.told_to_validate(validation(epoch=2)) == []
    inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=1))
    assert inbox.told_to_validate(validation()) == []
