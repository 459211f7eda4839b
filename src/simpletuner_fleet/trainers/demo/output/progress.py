"""Draws a progress line in tqdm's default form, redrawn in place by a carriage return."""

import time
from collections.abc import Callable
from typing import TextIO

EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 10
SHORTEST_PAUSE_S = 0.1


class ProgressBar:
    def __init__(
        self, out: TextIO, *, total: int, start: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out, self._total, self._start, self._clock = out, total, start, clock
        self._began = clock()
        self._drawn = float("-inf")

    def rate(self, step: int) -> float:
        """Returns steps a second since this process started."""
        elapsed = self._clock() - self._began
        return (step - self._start) / elapsed if elapsed > 0 else 0.0

    def show(self, step: int, facts: str) -> None:
        """Draws at most ten times a second, and the last step always."""
        now = self._clock()
        if now - self._drawn < SHORTEST_PAUSE_S and step != self._total:
            return
        self._drawn = now
        self._out.write("\r" + line(step, self._total, now - self._began, self.rate(step), facts))
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


def line(step: int, total: int, elapsed: float, rate: float, facts: str) -> str:
    left = _clock_text((total - step) / rate) if rate else "?"
    share = step / total
    return (
        f"Steps: {share:4.0%}|{_bar(share)}| {step}/{total} "
        f"[{_clock_text(elapsed)}<{left}, {_rate_text(rate)}, {facts}]"
    )


def _bar(share: float) -> str:
    whole, part = divmod(int(share * BAR * 8), 8)
    bar = EIGHTHS[8] * whole + (EIGHTHS[part] if part else "")
    return bar.ljust(BAR)


def _clock_text(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def _rate_text(rate: float) -> str:
    if not rate:
        return "?it/s"
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"
