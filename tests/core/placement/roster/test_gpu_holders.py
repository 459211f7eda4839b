"""One GPU is one GPU, whichever workers report it."""

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import AttemptState
from simpletuner_fleet.core.placement.matching import Occupancy
from simpletuner_fleet.core.placement.roster.roster import Roster
from tests.core.builders import a_job, a_worker, an_attempt

SMALL = a_job("j_small", seq=2)


def _twins(gpus: int = 1) -> Roster:
    """Two workers of one machine, which report the same GPUs."""
    fleet = Roster()
    shared = a_worker("w_1", gpus=gpus).gpus
    for name in ("w_1", "w_2"):
        fleet.put_worker(replace(a_worker(name, gpus=gpus), gpus=shared))
    return fleet


def test_a_gpu_held_through_one_worker_is_not_given_away_through_another() -> None:
    fleet = _twins()
    fleet.see_job(None, SMALL)
    fleet.see_attempt(None, an_attempt("a_1", gpus=("GPU-w_1-0",)), "u_1")
    assert fleet.pick_worker(SMALL) is None
    assert fleet.try_worker(SMALL, "w_2") is None
    assert fleet.occupancy("w_2") == Occupancy(
        0,
        frozenset({"GPU-w_1-0"}),
        elsewhere=frozenset({"GPU-w_1-0"}),
        through=frozenset({"w_1"}),
    )
    assert fleet.holders_of_gpu("w_2", "GPU-w_1-0") == {"a_1": "w_1"}
    assert fleet.neighbours("w_1") == ["w_2"]


def test_a_gpu_that_is_freed_is_free_through_every_worker() -> None:
    fleet = _twins()
    attempt = an_attempt("a_1", gpus=("GPU-w_1-0",))
    fleet.see_attempt(None, attempt, "u_1")
    fleet.see_attempt(attempt, replace(attempt, state=AttemptState.ENDED), "u_1")
    fleet.see_job(None, SMALL)
    assert fleet.try_worker(SMALL, "w_2") is not None
    assert fleet.occupancy("w_2") == Occupancy()


def test_a_gpu_that_two_attempts_hold_stays_held_until_the_last_has_ended() -> None:
    fleet = _twins()
    first, second = (an_attempt(id, gpus=("GPU-w_1-0",)) for id in ("a_1", "a_2"))
    for attempt in (first, second):
        fleet.see_attempt(None, attempt, "u_1")
    fleet.see_attempt(first, replace(first, state=AttemptState.ENDED), "u_1")
    assert fleet.occupancy("w_2").gpus == frozenset({"GPU-w_1-0"})


def test_a_worker_that_no_longer_reports_a_gpu_no_longer_shares_it() -> None:
    fleet = _twins()
    fleet.put_worker(a_worker("w_2", gpus=1))
    fleet.see_attempt(None, an_attempt("a_1", gpus=("GPU-w_1-0",)), "u_1")
    assert fleet.neighbours("w_1") == []
    assert fleet.occupancy("w_2") == Occupancy()


def test_gpus_without_a_name_of_their_own_are_told_apart_by_their_worker() -> None:
    fleet = Roster()
    for name in ("w_1", "w_2"):
        worker = a_worker(name, gpus=1)
        fleet.put_worker(replace(worker, gpus=(replace(worker.gpus[0], uuid="GPU-declared-0"),)))
    fleet.see_attempt(None, an_attempt("a_1", gpus=("GPU-declared-0",)), "u_1")
    assert fleet.occupancy("w_1").gpus == frozenset({"GPU-declared-0"})
    assert fleet.occupancy("w_2") == Occupancy()
    assert fleet.neighbours("w_1") == []
