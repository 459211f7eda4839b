"""Logs that a worker cannot reach its orchestrator: at once and in full, and the same again only now and then."""

import logging
from collections.abc import Callable

from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.client.troubles import format_trouble, of_connection_error

log = logging.getLogger(__name__)

SAY_AGAIN_S = 60.0


class Complaint:
    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._said: tuple[str, float] | None = None

    def unreachable(self, error: Unreachable, url: str, *, answered_before: bool) -> None:
        """Logs an outage. Whatever the next failed try looks like, it is the same outage."""
        if self._is_due("unreachable"):
            trouble = of_connection_error(error.cause, url, answered_before=answered_before)
            log.error("%s", format_trouble(trouble, in_log=True))

    def refused(self, problem: Refused) -> None:
        if self._is_due(problem.detail):
            log.warning(
                "the orchestrator refused: %s", " ".join(filter(None, (problem.detail, problem.next)))
            )

    def clear(self) -> None:
        self._said = None

    def _is_due(self, what: str) -> bool:
        now = self._clock()
        if self._said is not None and self._said[0] == what and now - self._said[1] <= SAY_AGAIN_S:
            return False
        self._said = (what, now)
        return True
