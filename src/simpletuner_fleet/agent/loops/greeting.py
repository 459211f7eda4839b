"""Logs that a worker is connected, and that it is connected again."""

import logging
from collections.abc import Callable

from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.protocol.messages import Registered

log = logging.getLogger(__name__)


class Greeting:
    """Logs that the worker is connected, or connected again.

    It says each thing once, so that the last line of a log tells how things are.
    """

    def __init__(self, name: str, clock: Callable[[], float] = boottime) -> None:
        self._name = name
        self._clock = clock
        self._connected = False
        self._lost_at: float | None = None

    def line_is_lost(self) -> None:
        if self._lost_at is None:
            self._lost_at = self._clock()

    def say(self, answer: Registered, url: str, *, persistent: bool) -> None:
        if not self._connected:
            log.info("connected to %s as %r; waiting for jobs", url, answer.name)
            self._warn(answer, persistent)
        elif self._lost_at is not None:
            log.info("connected again to %s after %s", url, span_text(self._clock() - self._lost_at))
        self._connected, self._lost_at = True, None

    def _warn(self, answer: Registered, persistent: bool) -> None:
        if answer.name != self._name:
            log.warning(
                "the token belongs to the worker %r: it is known by that name, and not as %r",
                answer.name,
                self._name,
            )
        if answer.worker_type == "persistent" and not persistent:
            log.warning(
                "this worker was created as persistent, but leaves after one job: "
                "start it with --persistent to keep it"
            )


def span_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
