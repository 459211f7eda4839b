from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.mass_loss import MassLossBreaker, is_mass_loss, vanishing

POLICY = Policy(mass_loss_wait_s=300.0, mass_loss_requeues_per_s=2.0)
TURNS = [f"t{number}" for number in range(20)]


def heard(silent: int, alive: int, at: float = 0.0, now: float = 120.0) -> dict[str, float]:
    return {f"s{one}": at for one in range(silent)} | {f"a{one}": now for one in range(alive)}


def test_a_third_of_a_fleet_and_a_handful_at_least_is_a_mass() -> None:
    assert not is_mass_loss(4, 4)
    assert not is_mass_loss(5, 15)
    assert is_mass_loss(6, 15)
    assert is_mass_loss(5, 5)


def test_who_will_be_lost_within_the_minute_counts_already() -> None:
    """Heartbeats are spread over their interval: behind one cut, the first are lost half a minute before the last."""
    silent = {f"s{number}": number * 5.0 for number in range(6)}
    assert vanishing(silent | {"alive": 119.0}, 120.0, POLICY) == 6


def test_jobs_of_a_vanished_fleet_are_held_back_and_then_given_away_a_few_at_a_time() -> None:
    breaker = MassLossBreaker(POLICY)
    assert breaker.look(heard(6, 6), 120.0)
    assert not breaker.look(heard(6, 6), 121.0), "it is told once"
    assert breaker.admit(TURNS, 121.0) == ()
    assert breaker.admit(TURNS, 419.0) == ()
    assert breaker.admit(TURNS, 421.0) == TURNS[:2]
    assert breaker.admit(TURNS[2:], 422.0) == TURNS[2:4]
    assert [breaker.holds_back, breaker.admit([], 440.0), breaker.holds_back] == [True, (), False]
    assert breaker.admit(TURNS, 441.0) == TURNS


def test_single_losses_are_given_away_at_once() -> None:
    breaker = MassLossBreaker(POLICY)
    assert not breaker.look(heard(3, 1), 120.0)
    assert not breaker.look(heard(5, 20), 120.0)
    assert breaker.admit(TURNS, 120.0) == TURNS
