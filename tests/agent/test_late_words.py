"""What was said of an earlier turn of a job and arrives late, or after a restart, harms no newer turn."""

import pytest

from simpletuner_fleet.agent.actions import Action
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    Orders,
    StopAttempt,
    ValidateNow,
)
from tests.agent.test_inbox import offer, running

OLD, NEW = Turn("j_1", 3), Turn("j_1", 5)


def in_phase(phase: Phase) -> Inbox:
    inbox = Inbox(persistent=True, max_jobs=4)
    inbox.offered(offer("j_1", NEW.epoch))
    if phase is not Phase.ACCEPTING:
        inbox.accepted(NEW)
    if phase in (Phase.RUNNING, Phase.FINISHED):
        inbox.started(NEW)
    if phase is Phase.FINISHED:
        inbox.ended(NEW, AttemptEnding(exit_code=0))
    return inbox


@pytest.mark.parametrize("phase", list(Phase))
def test_an_offer_of_an_earlier_turn_that_arrives_late_ends_no_newer_attempt_of_its_job(phase: Phase) -> None:
    inbox = in_phase(phase)
    assert inbox.offered(offer("j_1", OLD.epoch)) == []
    assert inbox.heard(Orders(jobs=[offer("j_1", OLD.epoch)])) == []
    assert [(turn, held.phase, held.stopping) for turn, held in inbox.held.items()] == [(NEW, phase, None)]


def test_an_offer_of_an_earlier_turn_is_not_taken_after_the_newer_one_is_over() -> None:
    inbox = in_phase(Phase.FINISHED)
    inbox.delivered(NEW)
    assert inbox.offered(offer("j_1", OLD.epoch)) == []
    assert inbox.offered(offer("j_2", OLD.epoch)) != [], "another job's epochs are its own"
    assert inbox.offered(offer("j_1", NEW.epoch + 1)) != []


@pytest.mark.parametrize("phase", list(Phase))
def test_whatever_else_is_said_late_of_an_earlier_turn_changes_nothing_of_the_newer_one(phase: Phase) -> None:
    inbox = in_phase(phase)
    for reason in (EndReason.CANCELLED, EndReason.STALE, EndReason.DRAINED):
        assert inbox.told_to_stop(StopAttempt(job_id="j_1", epoch=OLD.epoch, reason=reason)) == []
    assert inbox.told_to_save(CheckpointNow(job_id="j_1", epoch=OLD.epoch, asked_at=1.0)) == []
    assert inbox.told_to_validate(ValidateNow(job_id="j_1", epoch=OLD.epoch, asked_at=1.0)) == []
    late: list[list[Action]] = [
        inbox.accepted(OLD, cancelling=True),
        inbox.refused(OLD),
        inbox.started(OLD),
        inbox.ended(OLD, AttemptEnding(exit_code=1)),
        inbox.went_stale(OLD),
        inbox.out_of_time(OLD),
        inbox.delivered(OLD),
        inbox.asked_to_validate(OLD, 1.0, heard=True),
    ]
    assert not any(late)
    assert [(turn, held.phase, held.stopping) for turn, held in inbox.held.items()] == [(NEW, phase, None)]


def test_an_old_word_of_a_drain_or_of_a_shutdown_ends_nothing_that_is_held() -> None:
    inbox = Inbox(persistent=False)
    turn = running(inbox)
    assert inbox.heard(Orders(drain=True, shutdown=True)) == []
    assert inbox.heard(Orders()) == []
    assert inbox.held[turn].stopping is None
    assert not inbox.draining
