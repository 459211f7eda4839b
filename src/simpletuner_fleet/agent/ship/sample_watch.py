"""Finds which pictures of a training are ready to be shown while it still draws others."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.core.training.samples import MAX_BYTES, MOST, drawn_order

LOOK_EVERY_S = 2.0
SENT_EVERY_S = 10.0
"""However fast a trainer draws."""
MOST_TIME_SHARE = 0.05
"""Of the time, a folder with very many pictures is not looked through for more than this."""


class SampleFile(NamedTuple):
    """Identifies a picture that a training drew. Another drawing of the same name counts as another file."""

    path: Path
    at_ns: int
    size: int


class SampleWatch:
    """Finds the pictures of a training that are ready to be shown.

    A file that stayed the same between two looks is taken for whole.
    """

    def __init__(
        self,
        *,
        look_every_s: float = LOOK_EVERY_S,
        sent_every_s: float = SENT_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_every_s, self._sent_every_s, self._clock = look_every_s, sent_every_s, clock
        self._due_at = clock()
        self._seen: frozenset[SampleFile] = frozenset()
        self._steady: frozenset[SampleFile] = frozenset()
        self._sent: frozenset[SampleFile] = frozenset()

    def is_due(self) -> bool:
        return self._clock() >= self._due_at

    def look(self, find: Callable[[], Iterable[Path]], root: Path, *, last: bool = False) -> list[SampleFile]:
        """Returns the newest, newest first; none where nothing is new.

        `last` says that nobody draws any more, and all are whole.
        """
        began = self._clock()
        present = self._there(find(), root)
        self._steady = present if last else present & self._seen
        self._seen = present
        took_s = self._clock() - began
        self._due_at = began + max(self._look_every_s, took_s / MOST_TIME_SHARE)
        if self._steady <= self._sent:
            return []
        return sorted(self._steady, key=_newness, reverse=True)[:MOST]

    def were_sent(self) -> None:
        self._sent = self._steady
        self._due_at = self._clock() + self._sent_every_s

    def _there(self, paths: Iterable[Path], root: Path) -> frozenset[SampleFile]:
        samples = set()
        within = root.resolve()
        for path in paths:
            sample = _drawn(path)
            if sample and (sample in self._seen or _lies_in(path, root, within)):
                samples.add(sample)
        return frozenset(samples)


def _drawn(path: Path) -> SampleFile | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return SampleFile(path, about.st_mtime_ns, about.st_size) if 0 < about.st_size <= MAX_BYTES else None


def _lies_in(path: Path, root: Path, within: Path) -> bool:
    """Returns whether this is a file within the output folder. Trainers are anybody's: nothing else is shown."""
    try:
        return path.is_file() and path.is_relative_to(root) and path.resolve().is_relative_to(within)
    except OSError:
        return False


def _newness(sample: SampleFile) -> tuple[int, tuple[int, int, str]]:
    return (sample.at_ns, drawn_order(sample.path.name))
