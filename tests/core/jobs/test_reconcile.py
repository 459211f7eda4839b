from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, JobState, Outcome
from simpletuner_fleet.core.jobs.reconcile import MOST_STRAYS, Held, Reconciliation, may_readopt, reconcile
from tests.core.builders import a_job, an_attempt

OFFERED, RUNNING = an_attempt(state=AttemptState.OFFERED), an_attempt(state=AttemptState.RUNNING)


@pytest.mark.parametrize(
    ("attempt", "started", "same_home", "expected"),
    [
        (OFFERED, None, True, "offer"),
        (OFFERED, None, False, "offer"),
        (OFFERED, False, True, "keep"),
        (OFFERED, False, False, "keep"),
        (OFFERED, True, True, "accept"),
        (OFFERED, True, False, "accept"),
        (RUNNING, None, True, "lost"),
        (RUNNING, None, False, "doubtful"),
        (RUNNING, False, True, "keep"),
        (RUNNING, False, False, "keep"),
        (RUNNING, True, True, "keep"),
        (RUNNING, True, False, "keep"),
    ],
)
def test_what_we_hold_meets_what_the_worker_says(
    attempt: Attempt, started: bool | None, same_home: bool, expected: str
) -> None:
    held = [] if started is None else [Held(attempt.job_id, attempt.epoch, started)]
    result = reconcile([attempt], held, same_home, listening=False)
    assert getattr(result, expected) == (attempt,)
    assert sum(len(getattr(result, field)) for field in Reconciliation.__struct_fields__) == 1


@pytest.mark.parametrize("same_home", [True, False])
def test_an_attempt_of_another_epoch_is_stopped_and_ours_is_not_taken_for_it(same_home: bool) -> None:
    old = Held(RUNNING.job_id, RUNNING.epoch - 1, True)
    result = reconcile([RUNNING], [old], same_home, listening=False)
    assert result.stop == (old,)
    assert (result.lost if same_home else result.doubtful) == (RUNNING,)
    assert result.keep == ()


@pytest.mark.parametrize(("paused", "listening"), [(True, True), (True, False), (False, True)])
def test_after_a_restore_what_runs_without_a_lease_is_given_up_and_stopped(
    paused: bool, listening: bool
) -> None:
    held = Held(RUNNING.job_id, RUNNING.epoch, True, paused)
    result = reconcile([RUNNING], [held], True, listening=listening)
    if paused and listening:
        assert (result.in_doubt, result.stop, result.keep) == ((RUNNING,), (held,), ())
    else:
        assert (result.in_doubt, result.stop, result.keep) == ((), (), (RUNNING,))


def test_a_registration_that_names_a_flood_has_so_many_looked_at_and_keeps_its_own() -> None:
    own = RUNNING
    flood = [Held(f"j_flood_{epoch}", epoch, started=True) for epoch in range(5_000)]
    held = [*flood, Held(own.job_id, own.epoch, started=True)]
    outcome = reconcile([own], held, same_home=True, listening=False)
    assert outcome.keep == (own,)
    assert outcome.stop == tuple(flood[:MOST_STRAYS])


def test_a_worker_that_holds_nothing_and_owes_nothing_is_left_alone() -> None:
    assert reconcile([], [], True, listening=True) == Reconciliation()


states = st.sampled_from([AttemptState.OFFERED, AttemptState.RUNNING])


@settings(max_examples=100)
@given(
    st.dictionaries(st.integers(0, 5), states),
    st.dictionaries(st.integers(0, 5), st.booleans()),
    st.booleans(),
)
def test_nothing_is_forgotten_and_nothing_is_told_twice(
    ours: dict[int, AttemptState], theirs: dict[int, bool], same_home: bool
) -> None:
    live = [an_attempt(f"a_{n}", job_id=f"j_{n}", epoch=n, state=state) for n, state in ours.items()]
    held = [Held(f"j_{n}", n, started) for n, started in theirs.items()]
    result = reconcile(live, held, same_home, listening=False)
    placed = [*result.keep, *result.accept, *result.offer, *result.lost, *result.doubtful]
    assert sorted(attempt.id for attempt in placed) == sorted(attempt.id for attempt in live)
    assert {item.epoch for item in result.stop} == set(theirs) - set(ours)
    assert {attempt.epoch for attempt in (*result.keep, *result.accept)} == set(ours) & set(theirs)


def test_only_the_process_that_ran_it_may_go_on_and_only_while_nobody_else_has_it() -> None:
    allowed = [
        (worker_id, outcome, incarnation, state, epoch, gpus_free, in_doubt)
        for worker_id, outcome, incarnation, state, epoch, gpus_free, in_doubt in product(
            ["w_1", "w_2"],
            [*Outcome, None],
            ["i_w_1", "i_other"],
            JobState,
            [7, 8],
            [True, False],
            [True, False],
        )
        if may_readopt(
            a_job(state=state, epoch=epoch),
            an_attempt(state=AttemptState.ENDED, epoch=7, outcome=outcome),
            worker_id,
            incarnation,
            gpus_free=gpus_free,
            in_doubt=in_doubt,
        )
    ]
    assert allowed == [("w_1", Outcome.LOST, "i_w_1", JobState.QUEUED, 7, True, False)]
