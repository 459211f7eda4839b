"""Implements fair share: who has used the least of their share goes first, among teams, then within a team.

Use fades by half with every half-life, the same for everybody, so that it need not be counted down: each second is
weighted by 2 to the power of when it was, and only sums of that are compared. An attempt that began at t and still runs
has used the integral of that weight from t to now. Whoever waits alone gets everything: a share that nobody wants is
lent, and comes back as attempts end.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import log

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, Job, Requirements
from simpletuner_fleet.core.placement.usage import Charge, Going

LARGEST_EXPONENT = 256.0
"""Beyond it the sums are brought down, so that no number overflows."""
HALF_LIVES_KEPT = 10.0
"""What is older has faded to less than a thousandth."""
COUNTED_AHEAD_S = 60.0
"""What goes on is counted as if it went on for so long: many GPUs that come free in one moment do not all go to one team."""
Account = tuple[str, str]
"""A team, and a person in it; the team as a whole with an empty person."""
ShareKey = tuple[float, float]
NO_SHARE: ShareKey = (0.0, 0.0)


class FairShare(Struct, frozen=True, kw_only=True):
    """Holds the settings of fair share: whether it is on, and how fast past use loses its weight."""

    enabled: bool = False
    half_life_s: float = 7 * 86_400.0


class Shares:
    def __init__(self, half_life_s: float, weights: Mapping[str, float], now: float) -> None:
        self.half_life_s = half_life_s
        self.weights = weights
        """By team; a team that is not here, and all who have none together, weigh 1."""
        self.now = now
        """When the running step began; whoever begins one sets it."""
        self.round = 0
        """Another one begins when sums are brought down, teams weigh otherwise, or time goes back: until then use that goes
        on only grows."""
        self.moved: set[Account] = set()
        """People whose use may have become less, as by an attempt that was undone; whoever notes it takes them out."""
        self._epoch = now
        self._ended: dict[Account, float] = defaultdict(float)
        self._gpus: dict[Account, int] = defaultdict(int)
        self._starts: dict[Account, float] = defaultdict(float)
        """Of attempts that go on: the weight of the moment they began, times their GPUs."""
        self._teams: set[str] = set()
        """Those of which anything was counted; lists may be made of it in another thread than it changes in."""

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Sets what teams weigh from now on; what was used stays counted."""
        self.weights = weights
        self.round += 1

    def key(self, requires: Requirements) -> ShareKey:
        """Returns a sort key; the smaller goes first."""
        return self.for_weight(requires.team), self.used_by(requires.team, requires.owner)

    def used_by(self, team: str, owner: str) -> float:
        return self._used((team, owner))

    def goes_before(self, team: str, other: str) -> bool:
        """Tells whether this team has used less for its weight than the other."""
        return self.for_weight(team) < self.for_weight(other)

    def for_weight(self, team: str) -> float:
        return self._used((team, "")) / self.weights.get(team, 1.0)

    def used_part(self, team: str) -> float:
        """Returns the fraction of all recent use that is this team's."""
        whole = sum(self._used((one, "")) for one in list(self._teams))
        return self._used((team, "")) / whole if whole else 0.0

    def due_part(self, team: str) -> float:
        """Returns the fraction that is this team's share, among all teams."""
        whole = sum(self.weights.values()) + (0.0 if team in self.weights else 1.0)
        return self.weights.get(team, 1.0) / whole

    def see_attempt(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        team, owner = (job.team, job.owner) if job else ("", "")
        self.moved.add((team, owner))
        self._teams.add(team)
        for attempt, sign in ((before, -1), (after, 1)):
            if attempt is None or (begun := _begun(attempt)) is None:
                continue
            gpus = sign * max(1, len(attempt.gpus))
            for account in ((team, ""), (team, owner)):
                if attempt.live:
                    self._gpus[account] += gpus
                    self._starts[account] += gpus * self._weight(begun)
                elif attempt.ended_at is not None:
                    self._ended[account] += gpus * self._integral(begun, attempt.ended_at)

    def take_going(self, going: Iterable[Going]) -> None:
        """Counts attempts that were running before the counting began."""
        for one in going:
            self._teams.add(one.team)
            gpus = max(1, one.gpus)
            begun = one.offered_at if one.begun_at is None else one.begun_at
            for account in ((one.team, ""), (one.team, one.owner)):
                self._gpus[account] += gpus
                self._starts[account] += gpus * self._weight(begun)

    def take_charges(self, charges: Iterable[Charge]) -> None:
        for one in charges:
            self._teams.add(one.team)
            for account in ((one.team, ""), (one.team, one.owner)):
                self._ended[account] += max(1, one.gpus) * self._integral(one.begun_at, one.ended_at)

    def advance(self, now: float) -> None:
        self.round += now < self.now
        self.now = now
        exponent = (now - self._epoch) / self.half_life_s
        if exponent <= LARGEST_EXPONENT:
            return
        faded = 0.5**exponent
        for sums in (self._ended, self._starts):
            for account in sums:
                sums[account] *= faded
        self._epoch = now
        self.round += 1

    def _used(self, account: Account) -> float:
        going = self._gpus.get(account, 0)
        used = self._ended.get(account, 0.0)
        if going:
            soon = self._weight(self.now + COUNTED_AHEAD_S)
            used += (going * soon - self._starts[account]) * self.half_life_s / log(2)
        return max(0.0, used)

    def _weight(self, at: float) -> float:
        return float(2.0 ** ((at - self._epoch) / self.half_life_s))

    def _integral(self, begun: float, ended: float) -> float:
        return max(0.0, self._weight(ended) - self._weight(begun)) * self.half_life_s / log(2)


def _begun(attempt: Attempt) -> float | None:
    """Returns when the attempt's use began: an offer counts at once, so that many do not all go to one team."""
    return attempt.accepted_at if attempt.accepted_at is not None or not attempt.live else attempt.offered_at
