"""A validation is asked for while the training goes on: who can be asked, once, until its trainer was told."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import CannotValidateNow, WrongJobState
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, EndReason, JobState, Outcome, Stopping
from simpletuner_fleet.core.jobs.requests.validating import can_be_asked, trainer_was_asked, validate_now
from simpletuner_fleet.core.workers.worker import Worker
from tests.core.builders import NOW, a_worker, an_attempt, holding

ADA = Actor("u_1", "ada")
TRAINS = an_attempt(accepted_at=NOW, started_at=NOW)
ABLE = replace(a_worker(), validates_on_request=("simpletuner",))
STOPPING = Stopping(reason=EndReason.DRAINED, asked_at=NOW, grace_s=30.0)


def ask(job: Any = None, attempt: Attempt | None = TRAINS, worker: Worker | None = ABLE) -> Decision:
    return validate_now(job or holding(), attempt, worker, actor=ADA, now=NOW)


def asked() -> Attempt:
    decision = ask()
    assert decision.attempt is not None
    return decision.attempt


def test_the_wish_is_kept_until_the_trainer_was_told_and_asking_again_before_changes_nothing() -> None:
    decision = ask()
    assert [event.type for event in decision.events] == ["job.validation_requested"]
    attempt = asked()
    assert attempt.waits_for_validation
    assert ask(attempt=attempt) == NOTHING
    heard = trainer_was_asked(attempt, NOW, now=NOW + 3).attempt
    assert heard is not None
    assert not heard.waits_for_validation
    assert trainer_was_asked(heard, NOW, now=NOW + 9) == NOTHING, "said twice"
    again = validate_now(holding(), heard, ABLE, actor=ADA, now=NOW + 60)
    assert again.attempt is not None
    assert again.attempt.waits_for_validation, "a new wish"


def test_what_is_said_of_another_request_tells_nothing_of_this_one() -> None:
    assert trainer_was_asked(asked(), NOW - 100, now=NOW) == NOTHING
    assert trainer_was_asked(TRAINS, NOW, now=NOW) == NOTHING
    over = replace(asked(), state=AttemptState.ENDED, outcome=Outcome.COMPLETED)
    assert not over.waits_for_validation
    assert trainer_was_asked(over, NOW, now=NOW) == NOTHING


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (replace(TRAINS, started_at=None), "not started"),
        (replace(TRAINS, stopping=STOPPING), "being stopped"),
    ],
)
def test_only_a_trainer_that_trains_is_asked(attempt: Attempt, says: str) -> None:
    with pytest.raises(WrongJobState, match=says):
        ask(attempt=attempt)


def test_a_job_that_does_not_run_is_not_asked() -> None:
    with pytest.raises(WrongJobState, match="queued"):
        ask(job=replace(holding(), state=JobState.QUEUED), attempt=None, worker=None)
    with pytest.raises(WrongJobState, match="cancelling"):
        ask(job=replace(holding(), state=JobState.CANCELLING))


def test_who_cannot_be_asked_is_told_so_and_never_sent_the_request() -> None:
    old, unable = replace(ABLE, validates_on_request=None), replace(ABLE, validates_on_request=())
    with pytest.raises(CannotValidateNow, match="too old"):
        ask(worker=old)
    with pytest.raises(CannotValidateNow, match="cannot be asked to validate"):
        ask(worker=unable)
    assert [can_be_asked(holding(), one) for one in (ABLE, old, unable)] == [True, False, False]
