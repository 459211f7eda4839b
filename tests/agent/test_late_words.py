"""What was said of an earlier turn of a job and arrives late, or after a restart, harms no newer turn."""

from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest

from simpletuner_fleet.agent import program
from simpletuner_fleet.agent.actions import Action, Forget, SendAccept, SendReport, StartTrainer
from simpletuner_fleet.agent.agent import FOLDER_LOST
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.inbox import Inbox, Phase
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Results
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    Orders,
    ReportStatus,
    StatusReport,
    StopAttempt,
    ValidateNow,
)
from tests.agent.answering import answering
from tests.agent.attempts.test_attempts_left import ENDED_WELL, agent_of, left, worker
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


async def test_what_an_earlier_process_has_reported_is_not_begun_again(tmp_path: Path) -> None:
    """Its report arrives after the acceptance: for everybody else the job is given back then, and begins elsewhere."""
    given_back = StatusReport(status=ReportStatus.RELEASED, epoch=NEW.epoch)
    with StateDir.open(tmp_path) as state:
        Spool(state.spool_dir).append("j_1", given_back)
        async with worker(state) as (attempts, _runner):
            agent = agent_of(state, attempts)
            await program._take_up(agent)
    assert agent.inbox.offered(offer("j_1", NEW.epoch)) == []
    assert agent.inbox.held == {}
    later = NEW.epoch + 1
    assert agent.inbox.offered(offer("j_1", later)) == [SendAccept(Turn("j_1", later), 1, 1)]
    assert agent.inbox.accepted(Turn("j_1", later)) == [StartTrainer(offer("j_1", later))]
    assert agent.inbox.delivered(NEW) == []
    assert agent.inbox.offered(offer("j_1", NEW.epoch)) == []


async def test_a_job_whose_folder_is_lost_is_not_said_to_have_left_nothing(tmp_path: Path) -> None:
    """A power cut kept its report and not its order: nobody knows what was sent of its results."""
    heard: list[StatusReport] = []
    completed = StatusReport(status=ReportStatus.COMPLETED, epoch=NEW.epoch, exit_code=0)
    with StateDir.open(tmp_path) as state:
        Spool(state.spool_dir).append("j_1", completed)
        left(state, exit=ENDED_WELL).order_file.write_bytes(b"")
        async with (
            answering(
                lambda: (HTTPStatus.OK, {"accepted": True, "job_status": "completed"}),
                lambda body: heard.append(msgspec.json.decode(body, type=StatusReport)),
            ) as client,
            worker(state, client=client) as (attempts, _runner),
        ):
            agent = agent_of(state, attempts, client)
            await program._take_up(agent)
            assert await agent.delivery.deliver_once()
    assert [(report.status, report.results) for report in heard] == [
        (ReportStatus.COMPLETED, Results.MISSING)
    ]
    assert heard[0].error == FOLDER_LOST


def test_the_report_of_what_is_held_again_is_delivered_as_ever() -> None:
    inbox = Inbox(persistent=True)
    inbox.adopted(offer("j_1", NEW.epoch), Phase.FINISHED)
    inbox.reported_before(NEW)
    assert inbox.delivered(NEW) == [Forget(NEW)]


def test_a_worker_that_leaves_gives_back_no_turn_that_was_reported_before() -> None:
    inbox = Inbox(persistent=True)
    inbox.reported_before(NEW)
    inbox.terminated("bye")
    assert inbox.offered(offer("j_1", NEW.epoch)) == []
    (given_back,) = inbox.offered(offer("j_2", 6))
    assert isinstance(given_back, SendReport)
