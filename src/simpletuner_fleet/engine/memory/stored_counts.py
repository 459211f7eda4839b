"""Remembers for a moment how much people, teams and all together have stored."""

from collections.abc import Callable, Mapping

GOOD_FOR_S = 30.0
WATCHED_GOOD_FOR_S = 300.0
"""The quotas are watched every half a minute, or after the reports of people that were asked for before."""
MOST_KEPT = 1_000
"""So many accounts; those that were counted longest ago are forgotten first."""


class StoredCounts:
    """Caches for a moment how much each account has stored.

    A count scans everything that an account has stored, and everybody waits for a step that makes one. So a submission
    uses one that is not too old, and mostly that of whoever watches the quotas, who counts beside the steps.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}
        self._watched: Mapping[str, int] = {}
        self._watched_at = float("-inf")

    def note_watched(self, counts: Mapping[str, int], at: float) -> None:
        """Notes what was counted beside the steps, of all accounts at once."""
        self._watched, self._watched_at = counts, at

    def of(self, account: str, now: float, count: Callable[[str], int]) -> int:
        known = self._counts.get(account)
        if known is None or not 0 <= now - known[0] < GOOD_FOR_S:
            if account in self._watched and 0 <= now - self._watched_at < WATCHED_GOOD_FOR_S:
                return self._watched[account]
            known = (now, count(account))
            self._counts.pop(account, None)
            self._counts[account] = known
            if len(self._counts) > MOST_KEPT:
                del self._counts[next(iter(self._counts))]
        return known[1]
