"""A stop watch that stands still while the machine gives this process no time."""

import threading
import time
from types import TracebackType
from typing import Self

LOOK_S = 0.005
STALL_S = 0.05
"""A look that comes so much later than it should was held up by the machine. Python code that keeps the interpreter
busy holds it up by far less, so that what our own code takes still counts."""


class StopWatch:
    """Measures how long something took, less what the machine alone held up: a virtual one may stand still for seconds."""

    def __init__(self) -> None:
        self._stalled_s = 0.0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began - self._stalled_s

    def _look(self) -> None:
        while not self._over.is_set():
            before = time.monotonic()
            time.sleep(LOOK_S)
            late_s = time.monotonic() - before - LOOK_S
            if late_s > STALL_S:
                self._stalled_s += late_s
