"""Tracks who was heard when, in memory only, so that a restart gives everybody full grace."""

from collections.abc import Callable, Iterable

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers import liveness
from simpletuner_fleet.core.workers.mass_loss import MassLossBreaker

CONTESTED_FOR_S = 600.0


class Presence:
    """Remembers when workers were heard and attempts confirmed, and says which are overdue.

    Silence is measured by the listening clock, which stands still while the orchestrator itself was stalled.
    """

    def __init__(self, policy: Policy, now: Callable[[], float]) -> None:
        self._policy = policy
        self._now = now
        self.listening_now = 0.0
        self._last_round: float | None = None
        self._heard: dict[str, float] = {}
        self._confirmed: dict[Turn, float] = {}
        self._holders: dict[Turn, str] = {}
        self._offered: dict[Turn, float] = {}
        self._unsaved: dict[str, float] = {}
        self._breaker = MassLossBreaker(policy)
        self._changed_hands: dict[str, float] = {}
        """The last to change hands last; those for whom it does not count any more are forgotten."""

    def begin_round(self, now: float) -> None:
        if self._last_round is not None:
            elapsed = max(0.0, now - self._last_round)
            self.listening_now = liveness.heard_time(self.listening_now, elapsed, self._policy)
        self._last_round = now

    def expect(
        self, worker_ids: Iterable[str], running: Iterable[tuple[Turn, str]], offers: Iterable[Turn]
    ) -> None:
        """Expects everybody to be heard again after a start, counted from now on."""
        for worker_id in worker_ids:
            self._heard.setdefault(worker_id, self.listening_now)
        for turn, worker_id in running:
            self._confirmed.setdefault(turn, self.listening_now)
            self._holders[turn] = worker_id
        for turn in offers:
            self._offered.setdefault(turn, self.listening_now)

    def changed_hands(self, worker_id: str) -> None:
        """Notes that an agent took over a worker's name from another one that was still connected."""
        now = self._now()
        self._changed_hands.pop(worker_id, None)
        self._changed_hands[worker_id] = now
        while not self._is_recent(next(iter(self._changed_hands)), now):
            del self._changed_hands[next(iter(self._changed_hands))]

    def is_contested(self, worker_id: str) -> bool:
        """Tells whether the worker's name was taken over a short while ago.

        Two agents with one token would take it from each other for ever.
        """
        return worker_id in self._changed_hands and self._is_recent(worker_id, self._now())

    def _is_recent(self, worker_id: str, now: float) -> bool:
        return now - self._changed_hands[worker_id] < CONTESTED_FOR_S

    def _moment(self, now: float) -> float:
        """Returns the listening clock within a round: a message counts from when it came, not from the last round."""
        if self._last_round is None or now <= self._last_round:
            return self.listening_now
        return liveness.heard_time(self.listening_now, now - self._last_round, self._policy)

    def heard(self, worker_id: str, now: float) -> None:
        self._heard[worker_id] = self._moment(now)
        self._unsaved[worker_id] = now

    def confirmed(self, turn: Turn, worker_id: str) -> bool:
        """Returns False if we know of no such live attempt of this worker: nobody confirms another's."""
        if self._holders.get(turn) != worker_id:
            return False
        self._confirmed[turn] = self._moment(self._now())
        return True

    def offered(self, turn: Turn, worker_id: str) -> None:
        self._confirmed[turn] = self._offered[turn] = self._moment(self._now())
        self._holders[turn] = worker_id

    def answered(self, turn: Turn) -> None:
        self._offered.pop(turn, None)

    def reported(self, turn: Turn, worker_id: str, now: float) -> None:
        """Notes that the worker was heard, confirms this attempt, and has answered its offer."""
        self.heard(worker_id, now)
        if self._holders.get(turn) == worker_id:
            self._confirmed[turn] = self._heard[worker_id]
        self._offered.pop(turn, None)

    def ended(self, turn: Turn) -> None:
        self._confirmed.pop(turn, None)
        self._holders.pop(turn, None)
        self._offered.pop(turn, None)

    def left(self, worker_id: str) -> None:
        self._heard.pop(worker_id, None)
        self._unsaved.pop(worker_id, None)

    def expected(self, worker_id: str) -> bool:
        return worker_id in self._heard

    def notice_mass_loss(self) -> bool:
        """Returns whether much of the fleet has begun to vanish at once; its attempts are then held back."""
        return self._breaker.look(self._heard, self.listening_now)

    @property
    def holds_back(self) -> bool:
        return self._breaker.holds_back

    def silent_workers(self) -> dict[str, float]:
        return liveness.silent_workers(self._heard, self.listening_now, self._policy)

    def unconfirmed_attempts(self) -> list[Turn]:
        overdue = liveness.unconfirmed(self._confirmed, self.listening_now, self._policy)
        return list(self._breaker.admit(overdue, self.listening_now))

    def is_silent(self, worker_id: str) -> bool:
        """Tells whether the worker is still silent just before that is recorded: it may have been heard meanwhile."""
        return worker_id in self._heard and bool(
            liveness.silent_workers({worker_id: self._heard[worker_id]}, self.listening_now, self._policy)
        )

    def is_unconfirmed(self, turn: Turn) -> bool:
        return turn in self._confirmed and bool(
            liveness.unconfirmed({turn: self._confirmed[turn]}, self.listening_now, self._policy)
        )

    def old_offers(self) -> list[Turn]:
        return liveness.unanswered_offers(self._offered, self.listening_now, self._policy)

    def heard_at(self, worker_id: str) -> float | None:
        """Returns when it was heard, if that is newer than what the store knows."""
        return self._unsaved.get(worker_id)

    def take_unsaved(self) -> list[tuple[str, float]]:
        taken = list(self._unsaved.items())
        self._unsaved.clear()
        return taken
