"""Slows down requeues when much of the fleet vanishes at once.

Then the cause is the network or the orchestrator's own machine, not the workers. To give all their jobs away at once
would restart what runs well behind a network cut, and flood the remaining workers. So there is a wait first, and then a
few are given away at a time; a worker that comes back meanwhile keeps what it has.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from simpletuner_fleet.core.policy import Policy

T = TypeVar("T")
WITHIN_S = 60.0
LEAST_WORKERS = 5
"""Fewer are no mass: with three workers, one is a third."""
SHARE = 1 / 3


def vanishing(last_heard: Mapping[str, float], listening_now: float, policy: Policy) -> int:
    """Counts the workers that are lost or will be within a minute unless they are heard."""
    silence_s = max(policy.heartbeat_timeout_s - WITHIN_S, 2 * policy.heartbeat_interval_s)
    return sum(listening_now - at >= silence_s for at in last_heard.values())


def is_mass_loss(vanished: int, expected: int) -> bool:
    return vanished >= LEAST_WORKERS and vanished > SHARE * expected


class MassLossBreaker:
    """Keeps jobs from being given away all at once when much of the fleet vanishes.

    All times are of the listening clock.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waits_until: float | None = None
        self._allowance = 0.0
        self._last_round = 0.0

    @property
    def holds_back(self) -> bool:
        return self._waits_until is not None

    def look(self, last_heard: Mapping[str, float], listening_now: float) -> bool:
        """Returns whether a mass loss was noticed just now."""
        if self._waits_until is not None or len(last_heard) < LEAST_WORKERS:
            return False
        if not is_mass_loss(vanishing(last_heard, listening_now, self._policy), len(last_heard)):
            return False
        self._waits_until = listening_now + self._policy.mass_loss_wait_s
        self._allowance, self._last_round = 0.0, self._waits_until
        return True

    def admit(self, overdue: Sequence[T], listening_now: float) -> Sequence[T]:
        """Returns which of the overdue items may be given away now."""
        if self._waits_until is None:
            return overdue
        if listening_now < self._waits_until:
            return ()
        if not overdue:
            self._waits_until = None
            return ()
        passed_s = listening_now - self._last_round
        self._allowance = min(
            self._allowance + passed_s * self._policy.mass_loss_requeues_per_s, float(len(overdue))
        )
        self._last_round = listening_now
        count = int(self._allowance)
        self._allowance -= count
        return overdue[:count]
