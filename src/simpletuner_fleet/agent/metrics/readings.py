"""Reads a training's numbers once as they appear, whether or not they can be sent."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from simpletuner_fleet.agent.metrics.metric_files import MetricFile
from simpletuner_fleet.agent.metrics.reading_time import ReadingTime
from simpletuner_fleet.agent.metrics.tensorboard import EventFile, EventFolder
from simpletuner_fleet.core.training.metrics import MAX_KEYS, Point

MOST_AT_ONCE = 20_000
AFTER_END_S = 60.0
"""How long numbers are read after their trainer's end."""
LATEST = 64


class Readings:
    def __init__(
        self,
        files: Sequence[Path],
        events: Path | None,
        since: int = 0,
        *,
        after_end_s: float = AFTER_END_S,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._files: deque[MetricFile | EventFile] = deque(MetricFile(path) for path in files)
        self._events = EventFolder(events, since)
        self._time = ReadingTime(after_end_s, stopped)
        self._values: dict[str, float] = {}
        self._latest: deque[Point] = deque(maxlen=LATEST)
        self.behind = False
        """Whether there is more to be read at once."""
        self.cut_short = False
        """Whether there was more than there was time for after the trainer's end."""
        self.gave_up = False
        """Whether a file has more numbers than are read."""

    def read(self, *, at_once: bool = False) -> list[Point]:
        """Returns what is new, as far as there is time; `at_once` says that the trainer has ended."""
        self._time.begin()
        self._files += self._events.look(at_once=at_once)
        points: list[Point] = []
        unread = self._read_files(points)
        for point in points:
            self._remember(point)
        if at_once:
            self._time.count_after_end(self._time.spent_s())
        self.behind = unread and not self._time.is_over
        self.cut_short = unread and self._time.is_over
        return points

    def latest(self) -> list[Point]:
        """Returns the last few, oldest first; each knows the newest value of every key, whichever point told it."""
        return list(self._latest)

    def _read_files(self, points: list[Point]) -> bool:
        """Reads one file after another, and returns whether something is left.

        One that has taken all the time is the last the next time, or the others would wait for its end.
        """
        left = len(self._files)
        while left:
            file = self._files[0]
            piece = file.peek(MOST_AT_ONCE - len(points))
            self.gave_up = self.gave_up or file.given_up
            if piece:
                file.take(piece)
                points += piece.points
            is_read = piece is None or not piece.more
            left -= is_read
            # A look at a file without anything new costs no time, or many of them would never all be read.
            is_enough = piece is not None and piece.read_bytes > 0 and self._is_enough(points)
            if is_read or is_enough:
                self._files.rotate(-1)
            if is_enough:
                break
        return left > 0

    def _is_enough(self, points: Sequence[Point]) -> bool:
        return len(points) >= MOST_AT_ONCE or self._time.is_up()

    def _remember(self, point: Point) -> None:
        self._values |= {
            key: value
            for key, value in point.values.items()
            if key in self._values or len(self._values) < MAX_KEYS
        }
        if self._latest and self._latest[-1].step == point.step:
            self._latest.pop()
        self._latest.append(Point(step=point.step, values=dict(self._values), at=point.at, total=point.total))
