import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers import liveness
from simpletuner_fleet.core.workers.worker import WorkerType
from tests.core.builders import NOW, POLICY, a_worker


def test_the_listening_clock_follows_rounds_that_take_their_time() -> None:
    clock = 0.0
    for _ in range(40):
        clock = liveness.heard_time(clock, POLICY.sweep_interval_s, POLICY)
    assert clock == 40 * POLICY.sweep_interval_s


def test_a_stalled_round_does_not_count_as_silence() -> None:
    heard = {"w_1": 0.0}
    after_an_hours_freeze = liveness.heard_time(0.0, 3600.0, POLICY)
    assert after_an_hours_freeze == 2 * POLICY.sweep_interval_s
    assert liveness.silent_workers(heard, after_an_hours_freeze, POLICY) == {}


def test_silence_is_named_from_the_timeout_on_and_not_before() -> None:
    heard = {"w_old": 0.0, "w_edge": 80.0, "w_new": 80.1}
    assert liveness.silent_workers(heard, 200.0, POLICY) == {"w_old": 200.0, "w_edge": 120.0}


def test_every_silent_worker_is_named_however_many_there_are() -> None:
    heard = {f"w_{number}": 0.0 for number in range(5000)}
    assert liveness.silent_workers(heard, 200.0, POLICY).keys() == heard.keys()


def test_attempts_nobody_confirms_are_named_after_a_whole_timeout() -> None:
    assert liveness.unconfirmed({("j_1", 4): 0.0, ("j_2", 7): 0.1}, 120.0, POLICY) == [("j_1", 4)]


def test_an_offer_expires_when_nobody_has_answered_it_for_a_whole_timeout() -> None:
    offered_at = {("j_1", 4): 0.0, ("j_2", 7): 0.1}
    assert liveness.unanswered_offers(offered_at, 15.0, POLICY) == [("j_1", 4)]
    assert liveness.unanswered_offers(offered_at, 14.9, POLICY) == []


@pytest.mark.parametrize(
    ("kind", "offline_for_s", "expected"),
    [
        (WorkerType.EPHEMERAL, 3600.0, True),
        (WorkerType.EPHEMERAL, 3599.0, False),
        (WorkerType.EPHEMERAL, None, False),
        (WorkerType.PERSISTENT, 1e9, False),
    ],
)
def test_only_ephemeral_workers_offline_for_an_hour_are_cleaned_up(
    kind: WorkerType, offline_for_s: float | None, expected: bool
) -> None:
    since = None if offline_for_s is None else NOW - offline_for_s
    worker = a_worker(chosen_type=kind, offline_since=since)
    assert liveness.outlived(worker, POLICY, NOW) is expected


@pytest.mark.parametrize("timeout_s", [0.5, 1.0, 30.0, 120.0, 3600.0])
def test_a_loss_is_seen_soon_after_its_timeout(timeout_s: float) -> None:
    policy = Policy(heartbeat_timeout_s=timeout_s)
    assert policy.sweep_interval_s <= timeout_s / 8
    assert policy.sweep_interval_s <= 60
