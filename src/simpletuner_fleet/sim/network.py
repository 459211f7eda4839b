"""Simulates the network between one machine and the orchestrator: slow, lossy, repeating, sometimes cut.

It may be cut in one direction or both.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec import Struct

from simpletuner_fleet.agent.wire.errors import Unreachable, problem_of
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.leadership import is_outdated
from simpletuner_fleet.sim.world import Violation, World

CALL_TIMEOUT_S = 10.0
FOREIGN_ANSWERS: tuple[tuple[int, bytes], ...] = (
    (301, b""),
    (400, b"<html>Bad Request</html>"),
    (401, b'{"detail": "Not authenticated"}'),
    (403, b"<html>Forbidden</html>"),
    (404, b'{"code": "not_found", "message": "no such route"}'),
    (405, b""),
    (409, b'{"error": "conflict"}'),
    (410, b"gone"),
    (413, b"<html>Request Entity Too Large</html>"),
)
DEAD_PEER_S = 45.0
"""The time for which a stream goes unheard before either end gives it up."""


class LinkDown(Exception):
    """No answer came: the request may have been read or not."""


class NobodyListens(LinkDown):
    """The orchestrator's machine answers that no orchestrator runs there."""


class Said(Struct, frozen=True):
    """Holds an answer with the term of whoever leads among several orchestrators."""

    term: int
    outcome: Any


UNREACHABLE = LinkDown()
NOBODY_LISTENS = NobodyListens()
Answered = Callable[[Any], None]
Serve = Callable[[Answered], None]
"""Hands a request to the orchestrator; its answer, a value or an exception, goes to the callable given."""


class Weather(Struct, frozen=True, kw_only=True):
    """Sets how often one seed's network loses, repeats and delays messages while faults last."""

    request_lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    slow: float = 0.0
    latest_repeat_s: float = 200.0


class Link:
    def __init__(self, world: World, name: str, weather: Weather) -> None:
        self.world = world
        self.name = name
        self.weather = weather
        self.up = True
        """Worker to orchestrator."""
        self.down = True
        """Orchestrator to worker."""
        self.refuses = False
        """A forwarder on the way is dead, and its machine says so, whether the orchestrator lives or not."""
        self.middle_box: Random | None = None
        """Somebody in between answers in its own words, as this chance has it."""
        self.entry = 0
        """Which of several orchestrators is spoken to: another one after every failure."""
        self.compares_terms = True
        self.newest_term = 0
        self._newest_obeyed = 0
        self._echoes = Random(f"echoes of {world.seed} to {name}")
        """Of its own: what a stream's messages do when they come again changes nothing else of a seed."""

    def forget_terms(self) -> None:
        """Forgets the terms, since another process now uses this link."""
        self.newest_term = self._newest_obeyed = 0

    def _understood(self, outcome: Any) -> Any:
        """Returns what the caller makes of an answer: one of a leader that was replaced counts as none."""
        if isinstance(outcome, LinkDown):
            self.entry += 1
        elif isinstance(outcome, Said):
            if self.compares_terms and is_outdated(outcome.term, self.newest_term):
                self.world.counts["answer of a replaced leader"] += 1
                return UNREACHABLE
            if self.compares_terms and outcome.term < self._newest_obeyed:
                raise Violation("T3", f"{self.name} obeys term {outcome.term} after {self._newest_obeyed}")
            self.newest_term = max(self.newest_term, outcome.term)
            self._newest_obeyed = max(self._newest_obeyed, outcome.term)
            return outcome.outcome
        return outcome

    def _foreign_answer(self, chance: Random) -> Any:
        """Returns what the real agent makes of an answer that is not the orchestrator's."""
        self.world.counts["fault:foreign answer"] += 1
        refusal = problem_of(*chance.choice(FOREIGN_ANSWERS))
        if isinstance(refusal, Unreachable):
            return UNREACHABLE
        believed = type("BelievedStranger", (FleetError,), {"code": refusal.code})
        return believed("Somebody in between said so.")

    def delay_s(self) -> float:
        chance = self.world.chance
        if self.world.happens(self.weather.slow):
            self.world.counts["fault:slow message"] += 1
            return chance.uniform(1.0, 30.0)
        return 0.002 + 0.198 * chance.random()

    def echo(self, deliver: Callable[[], None]) -> None:
        """Delivers a message of the stream again, and late: a box on the way has kept it, for the next connection too."""
        if not self.world.faulty or self._echoes.random() >= self.weather.repeated:
            return
        self.world.counts["fault:message of a stream repeated"] += 1
        late_s = self._echoes.choice((0.5, 20.0, self.weather.latest_repeat_s))
        self.world.after(self._echoes.uniform(0.0, late_s), deliver)

    def call(self, serve: Serve, answered: Answered) -> None:
        """Makes one request; the caller gets the answer, or after a while that there is none, but never both."""
        world = self.world
        open_until = world.now + CALL_TIMEOUT_S
        finished = False

        def finish(outcome: Any) -> None:
            nonlocal finished
            if not finished:
                finished = True
                answered(self._understood(outcome))

        def give_up() -> None:
            world.after(max(0.0, open_until - world.now), lambda: finish(UNREACHABLE))

        def reply(outcome: Any) -> None:
            if self.middle_box is not None:
                outcome = self._foreign_answer(self.middle_box)
            if isinstance(outcome, LinkDown) and self.down:
                world.after(0.05, lambda: finish(outcome))
                return
            if not self.down or world.happens(self.weather.answer_lost):
                world.counts["fault:answer lost"] += 1
                give_up()
                return
            delay_s = self.delay_s()
            if world.now + delay_s >= open_until:
                give_up()
            else:
                world.after(delay_s, lambda: finish(outcome))

        def arrive() -> None:
            if not self.up:
                world.counts["fault:request lost"] += 1
                give_up()
                return
            serve(reply)

        if self.middle_box is not None and self.middle_box.random() < 0.5:
            answer = self._foreign_answer(self.middle_box)
            world.after(0.05, lambda: finish(answer))
            return
        if self.refuses:
            world.after(0.05, lambda: finish(NOBODY_LISTENS))
            return
        if not self.up or world.happens(self.weather.request_lost):
            world.counts["fault:request lost"] += 1
            give_up()
            return
        world.after(self.delay_s(), arrive)
        if world.happens(self.weather.repeated):
            world.counts["fault:request repeated"] += 1
            late_s = world.chance.choice((0.5, 20.0, self.weather.latest_repeat_s))
            world.after(world.chance.uniform(0.0, late_s), lambda: serve(lambda _: None))
