"""What people, teams and all have stored, as it was counted a moment ago."""

from collections.abc import Callable

GOOD_FOR_S = 30.0


class StoredCounts:
    """Remembers for a moment how much each account has stored.

    A count walks through everything that an account has stored: a submission takes one that is not too old.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def of(self, account: str, now: float, count: Callable[[str], int]) -> int:
        known = self._counts.get(account)
        if known is None or not 0 <= now - known[0] < GOOD_FOR_S:
            known = self._counts[account] = (now, count(account))
        return known[1]
