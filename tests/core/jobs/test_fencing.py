"""May this worker's attempt still write? Every answer to it, in one place."""

from collections.abc import Callable

import pytest

from simpletuner_fleet.core.errors import StaleAttempt
from simpletuner_fleet.core.jobs import fencing
from simpletuner_fleet.core.jobs.fencing import Claim, Turn
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Outcome
from tests.core.builders import a_job, an_attempt

Fence = Callable[[Attempt | None], Attempt]
JOB = a_job(epoch=1)
TURN = Turn(JOB.id, 1)


def own(attempt: Attempt | None) -> Attempt:
    return fencing.own_attempt(attempt, "w_1")


def unlost(attempt: Attempt | None) -> Attempt:
    return fencing.unlost_attempt(attempt, Claim("w_1", TURN))


def newest(attempt: Attempt | None) -> Attempt:
    return fencing.newest_attempt(attempt, JOB, Claim("w_1", TURN))


def running(attempt: Attempt | None) -> Attempt:
    return fencing.running_attempt(attempt, "w_1")


def ended(outcome: Outcome) -> Attempt:
    return an_attempt(state=AttemptState.ENDED, outcome=outcome)


ALL = (own, unlost, newest, running)
TAKEN_AWAY = (Outcome.LOST, Outcome.RELEASED, Outcome.EXPIRED_OFFER)
ENDED_BY_ITSELF = (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED)


@pytest.mark.parametrize("fence", ALL)
def test_the_worker_that_runs_the_newest_attempt_passes(fence: Fence) -> None:
    assert fence(an_attempt()) == an_attempt()


@pytest.mark.parametrize("fence", ALL)
@pytest.mark.parametrize("attempt", [None, an_attempt(worker_id="w_2")])
def test_another_worker_s_attempt_is_as_good_as_none(fence: Fence, attempt: Attempt | None) -> None:
    with pytest.raises(StaleAttempt):
        fence(attempt)


@pytest.mark.parametrize("outcome", TAKEN_AWAY)
@pytest.mark.parametrize("fence", [unlost, newest, running])
def test_an_attempt_that_was_taken_away_writes_and_reads_nothing(fence: Fence, outcome: Outcome) -> None:
    with pytest.raises(StaleAttempt):
        fence(ended(outcome))


@pytest.mark.parametrize("outcome", ENDED_BY_ITSELF)
def test_the_last_writes_of_an_attempt_that_ended_by_itself_count(outcome: Outcome) -> None:
    assert unlost(ended(outcome)) == newest(ended(outcome)) == ended(outcome)
    with pytest.raises(StaleAttempt):
        running(ended(outcome))


def test_an_earlier_attempt_ends_its_own_log_and_writes_nothing_to_the_job() -> None:
    assert unlost(an_attempt(epoch=0)) == an_attempt(epoch=0)
    with pytest.raises(StaleAttempt):
        newest(an_attempt(epoch=0))


def test_an_attempt_of_no_job_is_nobody_s_newest() -> None:
    with pytest.raises(StaleAttempt):
        fencing.newest_attempt(an_attempt(), None, Claim("w_1", TURN))


def test_every_outcome_is_either_the_attempt_s_own_or_not() -> None:
    assert {*TAKEN_AWAY, *ENDED_BY_ITSELF} == set(Outcome)


def test_who_holds_an_attempt_s_token_speaks_of_this_attempt_alone() -> None:
    attempt = an_attempt()
    assert fencing.named_attempt(attempt, "j_1", 1) == attempt
    assert fencing.named_attempt(attempt, "j_1", None) == attempt
    for job_id, epoch in (("j_1", 2), ("j_2", 1), ("j_2", None)):
        with pytest.raises(StaleAttempt):
            fencing.named_attempt(attempt, job_id, epoch)


def test_a_turn_has_names_and_is_still_the_pair_it_was() -> None:
    turn = fencing.turn_of(an_attempt())
    assert (turn.job_id, turn.epoch) == turn == ("j_1", 1)
    assert {("j_1", 1): "found"}[turn] == "found"
