"""Provides virtual time: one heap of events to come, one source of randomness, one trace of what happened."""

import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Act = Callable[[], None]

TRACE_KEPT = 40


class Violation(BaseException):
    """A promise was broken. The seed and the last events of the trace tell how.

    Not an Exception: the orchestrator survives those, and would survive this one, too.
    """

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class World:
    """Holds the simulated world: its virtual time, its randomness and its trace.

    Everything random comes from `chance`, everything timed from `now`; nothing else differs between two runs.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.now = 0.0
        self.faulty = True
        """Chaos until the healing, then none."""
        self.hurries = False
        """Since nothing goes wrong any more, what takes long and would show nothing ends soon."""
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.whole_trace: list[str] | None = None
        self._lines: list[str] = []
        self._heap: list[tuple[float, int, Act]] = []
        self._planned = 0

    def after(self, delay_s: float, act: Act) -> None:
        self._planned += 1
        heappush(self._heap, (self.now + delay_s, self._planned, act))

    def step(self) -> bool:
        """Runs the next event; False if there is none left."""
        if not self._heap:
            return False
        self.now, _, act = heappop(self._heap)
        self.events += 1
        act()
        return True

    def run_until(self, until: float) -> None:
        """Runs all events that are due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heappop(heap)
            self.events += 1
            act()
        self.now = until

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def note(self, what: str) -> None:
        line = f"{self.now:10.3f}  {what}"
        if self.whole_trace is not None:
            self.whole_trace.append(line)
        self._lines.append(line)

    def fault(self, kind: str, what: str = "") -> None:
        self.counts[f"fault:{kind}"] += 1
        self.note(f"!! {kind} {what}")

    def happens(self, probability: float) -> bool:
        """Tells by chance whether something happens, which it never does once the faults have ended."""
        return self.faulty and self.chance.random() < probability

    @property
    def trace(self) -> list[str]:
        """Returns the last events of the trace."""
        return self._lines[-TRACE_KEPT:]

    @property
    def trace_hash(self) -> str:
        return hashlib.blake2b("".join(self._lines).encode(), digest_size=16).hexdigest()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits: over the memory store none does."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of the orchestrator waited for something")
