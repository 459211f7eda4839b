"""A stop watch that stands still while the machine gives this process no time."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_S = 0.005
STALL_S = 0.05
"""A look that comes so much later than it should was held up by the machine. Python code that keeps the interpreter
busy holds it up by far less, so that what our own code takes still counts."""


class StopWatch:
    """Measures how long something took, less what the machine alone held up: a virtual one may stand still for seconds."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid` is a process whose waiting for a processor does not count either."""
        self._pid = pid or os.getpid()
        self._stalled_s = 0.0
        self._starved_before_s = self._starved_s = starved_s(self._pid)
        self._began = self._looks_since = time.monotonic()
        """`_looks_since` is when the last look began: what it is late by counts at once, not when it ends."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._began = self._looks_since = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        with self._lock:
            now = time.monotonic()
            stalled_s = self._stalled_s + self._late_s(now)
        return now - self._began - max(stalled_s, self._starved_s - self._starved_before_s)

    def _look(self) -> None:
        while not self._over.is_set():
            time.sleep(LOOK_S)
            self._starved_s = max(self._starved_s, starved_s(self._pid))
            with self._lock:
                now = time.monotonic()
                self._stalled_s += self._late_s(now)
                self._looks_since = now

    def _late_s(self, now: float) -> float:
        late_s = now - self._looks_since - LOOK_S
        return late_s if late_s > STALL_S else 0.0


def starved_s(pid: int) -> float:
    """Returns for how long the main thread of a process was ready to run and had no processor; 0.0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
