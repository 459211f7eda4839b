"""Reads a training's numbers once as they appear, whether or not they can be sent."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from simpletuner_fleet.agent.metrics.metric_files import MetricFile
from simpletuner_fleet.agent.metrics.tensorboard import EventFile, EventFolder
from simpletuner_fleet.core.training.metrics import MAX_KEYS, Point

MOST_AT_ONCE = 20_000
LATEST = 64


class Readings:
    def __init__(self, files: Sequence[Path], events: Path | None, since: int = 0) -> None:
        self._files: list[MetricFile | EventFile] = [MetricFile(path) for path in files]
        self._events = EventFolder(events, since)
        self._values: dict[str, float] = {}
        self._latest: deque[Point] = deque(maxlen=LATEST)

    def read(self, *, at_once: bool = False) -> list[Point]:
        """Returns what is new; `at_once` says that nothing will be read after this."""
        self._files += self._events.look(at_once=at_once)
        points: list[Point] = []
        for file in self._files:
            while len(points) < MOST_AT_ONCE:
                piece = file.peek(MOST_AT_ONCE - len(points))
                if piece is None or not piece.fresh:
                    break
                file.take(piece)
                points += piece.points
        for point in points:
            self._remember(point)
        return points

    def latest(self) -> list[Point]:
        """Returns the last few, oldest first; each knows the newest value of every key, whichever point told it."""
        return list(self._latest)

    def _remember(self, point: Point) -> None:
        self._values |= {
            key: value
            for key, value in point.values.items()
            if key in self._values or len(self._values) < MAX_KEYS
        }
        if self._latest and self._latest[-1].step == point.step:
            self._latest.pop()
        self._latest.append(Point(step=point.step, values=dict(self._values), at=point.at, total=point.total))
