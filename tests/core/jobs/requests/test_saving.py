"""A checkpoint is asked for while the training goes on: who can be asked, once, until a newer one is stored."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import CannotSaveNow, WrongJobState
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision
from simpletuner_fleet.core.jobs.job import (
    FINISHING,
    Attempt,
    AttemptState,
    EndReason,
    JobState,
    Outcome,
    Results,
    Saving,
    Stopping,
)
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.requests.saving import checkpoint_now
from simpletuner_fleet.core.workers.worker import Worker
from tests.core.builders import NOW, a_worker, an_attempt, holding

ADA = Actor("u_1", "ada")
TRAINS = an_attempt(accepted_at=NOW, started_at=NOW, checkpoint_step=40)
ABLE = replace(a_worker(), saves_on_request=("simpletuner",))
WISH = Saving(asked_at=NOW, had_step=40)
STOPPING = Stopping(reason=EndReason.DRAINED, asked_at=NOW, grace_s=30.0)


def ask(job: Any = None, attempt: Attempt | None = TRAINS, worker: Worker | None = ABLE) -> Decision:
    return checkpoint_now(job or holding(), attempt, worker, actor=ADA, now=NOW)


def asked(attempt: Attempt = TRAINS) -> Attempt:
    decision = ask(attempt=attempt)
    assert decision.attempt is not None
    return decision.attempt


def test_the_wish_is_kept_with_what_was_stored_then_and_the_job_runs_on() -> None:
    decision = ask()
    assert decision.job is None
    assert decision.attempt == replace(TRAINS, saving=WISH)
    (event,) = decision.events
    assert (event.type, event.actor) == ("job.checkpoint_requested", ADA)


def test_it_waits_until_a_newer_checkpoint_is_stored_or_the_attempt_ends() -> None:
    waiting = asked()
    assert waiting.waits_for_checkpoint
    assert not replace(waiting, checkpoint_step=41).waits_for_checkpoint
    assert not replace(waiting, state=AttemptState.ENDED, outcome=Outcome.LOST).waits_for_checkpoint
    assert asked(replace(TRAINS, checkpoint_step=None)).waits_for_checkpoint


def test_asking_again_meanwhile_changes_nothing_and_afterwards_asks_anew() -> None:
    waiting = asked()
    assert ask(attempt=waiting) is NOTHING
    assert asked(replace(waiting, checkpoint_step=41)).saving == Saving(asked_at=NOW, had_step=41)


@pytest.mark.parametrize(
    ("job", "attempt", "why"),
    [
        (holding(JobState.CANCELLING), TRAINS, "is cancelling"),
        (holding(), replace(TRAINS, started_at=None), "has not started"),
        (holding(), replace(TRAINS, stopping=STOPPING), "is being stopped"),
        (holding(results=Results.PENDING, progress=Progress(phase=FINISHING)), TRAINS, "has ended"),
        (holding(JobState.QUEUED), None, "is queued"),
    ],
)
def test_what_does_not_train_cannot_be_asked(job: Any, attempt: Attempt | None, why: str) -> None:
    with pytest.raises(WrongJobState, match=why):
        ask(job, attempt)


@pytest.mark.parametrize(
    ("can", "why"), [(None, "too old"), ((), "cannot be asked"), (("demo",), "cannot be")]
)
def test_a_worker_that_does_not_say_it_can_ask_this_trainer_is_not_asked(
    can: tuple[str, ...] | None, why: str
) -> None:
    with pytest.raises(CannotSaveNow, match=why):
        ask(worker=replace(ABLE, saves_on_request=can))
