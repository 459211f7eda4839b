"""Who was heard of last, and who may say so."""

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.memory.presence import CONTESTED_FOR_S, Presence

TURN = Turn("j_1", 1)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def presence_of_one_attempt(clock: Clock) -> Presence:
    presence = Presence(Policy(heartbeat_timeout_s=10.0), clock)
    presence.begin_round(clock.now_s)
    presence.expect(["w_1", "w_2"], [(TURN, "w_1")], [])
    return presence


def pass_time(presence: Presence, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        presence.begin_round(clock.now_s)


def test_a_worker_keeps_its_own_attempt_alive() -> None:
    clock = Clock()
    presence = presence_of_one_attempt(clock)
    pass_time(presence, clock, 8)
    assert presence.confirmed(TURN, "w_1")
    pass_time(presence, clock, 8)
    assert presence.unconfirmed_attempts() == []


def test_no_worker_keeps_the_attempt_of_another_alive() -> None:
    clock = Clock()
    presence = presence_of_one_attempt(clock)
    pass_time(presence, clock, 8)
    assert not presence.confirmed(TURN, "w_2")
    pass_time(presence, clock, 8)
    assert presence.unconfirmed_attempts() == [TURN]


def test_whoever_took_over_a_name_long_ago_is_forgotten() -> None:
    clock = Clock()
    presence = presence_of_one_attempt(clock)
    for number in range(3_000):
        clock.now_s += 1.0
        presence.changed_hands(f"w_{number}")
        presence.changed_hands("w_1")
    assert presence.is_contested("w_1")
    assert presence.is_contested("w_2999")
    assert presence.is_contested("w_2401")
    assert not presence.is_contested("w_2398")
    assert len(presence._changed_hands) <= CONTESTED_FOR_S + 1
