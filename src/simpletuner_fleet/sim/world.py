"""Virtual time: one heap of things to come, one source of chance, one trace that tells what happened."""

import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from math import ceil
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
    """Everything random comes from `chance`, everything timed from `now`; nothing else differs between two runs."""

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
        self.is_quiet: Callable[[], bool] | None = None
        """Says that nothing can happen until something that is not a pulse does; pulses are then left out."""
        self._pulses: dict[int, float] = {}
        self._left_out: list[tuple[float, float, Act]] = []

    def after(self, delay_s: float, act: Act) -> None:
        self._planned += 1
        heappush(self._heap, (self.now + delay_s, self._planned, act))

    def pulse(self, every_s: float, act: Act) -> None:
        """What is done again and again, and changes nothing while nothing happens."""
        if self.is_quiet is not None:
            self._pulses[self._planned + 1] = every_s
        self.after(every_s, act)

    def _leaves_out(self) -> bool:
        """Whether what comes next is a pulse that finds nothing to do; whatever else comes lets them beat again."""
        at, number, act = self._heap[0]
        every_s = self._pulses.pop(number, None)
        if every_s is not None and self.is_quiet is not None and self.is_quiet():
            heappop(self._heap)
            self._left_out.append((at, every_s, act))
            return True
        if self._left_out:
            self._beat_again(at)
        return False

    def _beat_again(self, now: float) -> None:
        """Each at its own times, as if it had gone on."""
        for at, every_s, act in self._left_out:
            self._planned += 1
            self._pulses[self._planned] = every_s
            heappush(self._heap, (at + ceil((now - at) / every_s) * every_s, self._planned, act))
        self._left_out.clear()

    def step(self) -> bool:
        """Lets the next thing happen; False if nothing is left to happen."""
        if not self._heap:
            return False
        self.now, _, act = heappop(self._heap)
        self.events += 1
        act()
        return True

    def run_until(self, until: float) -> None:
        """Lets everything happen that is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if self._pulses and self._leaves_out():
                continue
            self.now, _, act = heappop(heap)
            self.events += 1
            act()
        self._beat_again(until)
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
        """Chance that exists only while faults do."""
        return self.faulty and self.chance.random() < probability

    @property
    def trace(self) -> list[str]:
        """The last of what happened."""
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
