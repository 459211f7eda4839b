"""Finds files that a trainer adds to a checkpoint after it was sent, as it does with pictures of a validation."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from simpletuner_fleet.trainers.checkpoints import FoundCheckpoint, files_beneath

LOOK_EVERY_S = 5.0
MOST_WATCHED = 8
"""Trainers write such files within minutes: older checkpoints are looked at no more."""
Fingerprint = dict[str, tuple[int, int]]


def fingerprint(files: Iterable[Path]) -> Fingerprint:
    """Returns size and time of each; raises FileNotFoundError where one was removed meanwhile."""
    return {str(file): ((status := file.stat()).st_size, status.st_mtime_ns) for file in files}


class LateFiles:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self._sent: dict[str, tuple[FoundCheckpoint, Fingerprint]] = {}
        self._seen: dict[str, Fingerprint] = {}

    def was_sent(self, checkpoint: FoundCheckpoint, files: Fingerprint) -> None:
        self._sent[checkpoint.name] = (checkpoint, files)
        while len(self._sent) > MOST_WATCHED:
            del self._sent[next(iter(self._sent))]

    def has_sent_step(self, step: int) -> bool:
        return any(checkpoint.step == step for checkpoint, _ in self._sent.values())

    def grown(self, ended: bool) -> list[FoundCheckpoint]:
        """Returns those with other files than were sent, once they are the same at two looks; at the end at once.

        One that lacks a file that was sent is being removed, perhaps by a trainer that was killed over it. What is left of
        it would take the place of what is stored.
        """
        now = self._clock()
        if not ended and now - self._looked_at < LOOK_EVERY_S:
            return []
        self._looked_at = now
        return [one for one, sent in list(self._sent.values()) if self._has_grown(one, sent, ended)]

    def _has_grown(self, checkpoint: FoundCheckpoint, sent: Fingerprint, ended: bool) -> bool:
        try:
            files = fingerprint(files_beneath(checkpoint.path, checkpoint.path))
        except OSError:
            return False
        if not files:
            self._sent.pop(checkpoint.name, None)
            return False
        before = self._seen.get(checkpoint.name)
        self._seen[checkpoint.name] = files
        return files != sent and files.keys() >= sent.keys() and (ended or files == before)
