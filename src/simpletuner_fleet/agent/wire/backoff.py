"""Computes how long to wait before trying again.

The wait doubles and is random within bounds, so that a thousand workers do not call at once.
"""

import random

FIRST_S = 0.25
MOST_S = 10.0
NEXT_LEADER_S = 1.5
"""The most that is waited where an orchestrator answers that it does not lead: another one does within seconds."""


class Backoff:
    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next_s(self, most_s: float = MOST_S) -> float:
        ceiling = min(self._most_s, most_s, self._first_s * 2 ** min(self._tries, 16))
        self._tries += 1
        return random.uniform(ceiling / 4, ceiling)
