"""The job's machine, said a second time in the contract's words and compared edge by edge."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.jobs.decision import ended_as
from simpletuner_fleet.core.jobs.job import (
    HOLDS_ATTEMPT,
    JOB_TRANSITIONS,
    TERMINAL,
    AttemptInput,
    AttemptState,
    JobInput,
    JobState,
    Outcome,
    next_attempt_state,
    next_state,
)
from tests.core.builders import a_job, an_attempt

EDGES = {
    ("blocked", "unblock"): "queued",
    ("blocked", "cancel"): "cancelled",
    ("blocked", "give up"): "failed",
    ("queued", "offer"): "dispatched",
    ("queued", "readopt"): "running",
    ("queued", "cancel"): "cancelled",
    ("dispatched", "accept"): "running",
    ("dispatched", "requeue"): "queued",
    ("dispatched", "cancel"): "cancelled",
    ("dispatched", "request stop"): "cancelling",
    ("running", "complete"): "completed",
    ("running", "requeue"): "queued",
    ("running", "give up"): "failed",
    ("running", "request stop"): "cancelling",
    ("cancelling", "complete"): "completed",
    ("cancelling", "cancel"): "cancelled",
}
ATTEMPT_EDGES = {
    ("offered", "accept"): "running",
    ("offered", "end"): "ended",
    ("running", "end"): "ended",
    ("ended", "readopt"): "running",
}


@pytest.mark.parametrize(("state", "given"), list(product(JobState, JobInput)))
def test_every_state_takes_its_own_inputs_and_no_other(state: JobState, given: JobInput) -> None:
    expected = EDGES.get((state.value, given.value))
    if expected:
        assert next_state(state, given) is JobState(expected)
    else:
        with pytest.raises(IllegalTransition, match=f"A job that is {state} cannot take '{given}'"):
            next_state(state, given)


@pytest.mark.parametrize(("state", "given"), list(product(AttemptState, AttemptInput)))
def test_an_attempt_in_every_state_takes_its_own_inputs_and_no_other(
    state: AttemptState, given: AttemptInput
) -> None:
    expected = ATTEMPT_EDGES.get((state.value, given.value))
    if expected:
        assert next_attempt_state(state, given) is AttemptState(expected)
    else:
        with pytest.raises(IllegalTransition, match=f"An attempt that is {state} cannot take '{given}'"):
            next_attempt_state(state, given)


def test_an_attempt_ends_once() -> None:
    ended = ended_as(an_attempt(state=AttemptState.RUNNING), Outcome.FAILED, 5.0)
    with pytest.raises(IllegalTransition):
        ended_as(ended, Outcome.COMPLETED, 6.0)


def test_the_published_states_are_the_contracts() -> None:
    assert {state.value for state in JobState} == {
        *("blocked", "queued", "dispatched", "running", "cancelling"),
        *("completed", "failed", "cancelled"),
    }
    assert {outcome.value for outcome in Outcome} == {
        *("completed", "failed", "lost", "released", "cancelled", "expired_offer"),
    }


def test_terminal_states_absorb() -> None:
    assert {"completed", "failed", "cancelled"} == TERMINAL
    assert not [state for state, _ in JOB_TRANSITIONS if state in TERMINAL]
    assert all(a_job(state=state).terminal is (state in TERMINAL) for state in JobState)


def test_every_other_state_can_reach_each_way_of_being_over() -> None:
    def reachable(state: JobState) -> set[JobState]:
        reached = {state}
        while more := {to for (at, _), to in JOB_TRANSITIONS.items() if at in reached} - reached:
            reached |= more
        return reached

    for state in set(JobState) - TERMINAL - {JobState.CANCELLING}:
        assert reachable(state) >= TERMINAL
    assert reachable(JobState.CANCELLING) == {"cancelling", "completed", "cancelled"}


def test_a_stop_once_asked_for_is_never_followed_by_another_try() -> None:
    assert {given for at, given in JOB_TRANSITIONS if at is JobState.CANCELLING} == {"complete", "cancel"}


def test_only_states_between_offer_and_end_hold_an_attempt() -> None:
    assert {"dispatched", "running", "cancelling"} == HOLDS_ATTEMPT


@settings(max_examples=100)
@given(st.lists(st.sampled_from(JobInput), max_size=30))
def test_no_sequence_of_inputs_leaves_a_terminal_state(inputs: list[JobInput]) -> None:
    state, ended = JobState.QUEUED, False
    for one in inputs:
        try:
            state = next_state(state, one)
        except IllegalTransition:
            continue
        assert not ended
        ended = state in TERMINAL


def test_charges_count_losses_and_failures_together() -> None:
    assert a_job(losses=2, failures=1).charged == 3


@pytest.mark.parametrize(
    ("state", "live"),
    [(AttemptState.OFFERED, True), (AttemptState.RUNNING, True), (AttemptState.ENDED, False)],
)
def test_an_attempt_lives_until_it_has_ended(state: AttemptState, live: bool) -> None:
    assert an_attempt(state=state).live is live
