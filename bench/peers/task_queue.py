"""A task queue whose rate is measured as ours is: from the first task sent until the last is durably acknowledged."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from bench.programs import wait_until

PRODUCERS = 4
WARM_UP_TASKS = 200
DONE_WITHIN_S = 120.0


class TaskQueue(Struct, frozen=True):
    name: str
    send: Callable[[], Any]
    """Sends one task that does nothing; it is on the disk when this returns."""
    all_acknowledged: Callable[[], bool]

    def rate(self, tasks: int) -> float:
        """Returns tasks a second."""
        began = time.monotonic()
        with ThreadPoolExecutor(PRODUCERS) as pool:
            for _ in pool.map(lambda _: self.send(), range(tasks)):
                pass
        wait_until(self.all_acknowledged, f"{self.name} finishes its tasks", DONE_WITHIN_S)
        return tasks / (time.monotonic() - began)
