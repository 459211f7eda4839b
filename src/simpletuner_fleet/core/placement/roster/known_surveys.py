"""Remembers what the whole fleet says to a queue of jobs, until something changes that it depends on.

Whoever submits a thousand jobs that no worker can take is told why a thousand times, and the fleet is asked once.
"""

from collections.abc import Callable

from simpletuner_fleet.core.placement.explain import Survey

MOST_LINES = 256
"""The reasons of so many queues are remembered."""


class KnownSurveys:
    def __init__(self) -> None:
        self._rows = 0
        self._work = 0
        self._lines: dict[str, tuple[int, int, Survey]] = {}

    def rows_changed(self) -> None:
        """Notes that a worker is another, or the rules by which workers are chosen."""
        self._rows += 1

    def work_changed(self) -> None:
        """Notes that a worker holds more or less than before, or is listening or not."""
        self._work += 1

    def of(self, line: str, ask: Callable[[], Survey]) -> Survey:
        """Returns the survey for this queue of jobs; `ask` makes a new one where the last is not true any more."""
        rows, work, survey = self._lines.pop(line, (-1, -1, None))
        if survey is None or rows != self._rows or (survey.follows_work and work != self._work):
            survey = ask()
        self._lines[line] = (self._rows, self._work, survey)
        if len(self._lines) > MOST_LINES:
            del self._lines[next(iter(self._lines))]
        return survey
