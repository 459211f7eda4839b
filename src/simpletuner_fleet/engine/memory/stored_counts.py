"""Remembers for a moment how much people, teams and all together have stored."""

from collections.abc import Callable

GOOD_FOR_S = 30.0
MOST_KEPT = 1_000
"""So many accounts; those that were counted longest ago are forgotten first."""


class StoredCounts:
    """Caches for a moment how much each account has stored.

    A count scans everything that an account has stored, so a submission uses one that is not too old.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def of(self, account: str, now: float, count: Callable[[str], int]) -> int:
        known = self._counts.get(account)
        if known is None or not 0 <= now - known[0] < GOOD_FOR_S:
            known = (now, count(account))
            self._counts.pop(account, None)
            self._counts[account] = known
            if len(self._counts) > MOST_KEPT:
                del self._counts[next(iter(self._counts))]
        return known[1]
