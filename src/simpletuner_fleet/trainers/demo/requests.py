"""Receives requests to a running training: to stop, by a signal; to save or validate now, by a file."""

import json
import os
import signal
from pathlib import Path
from types import FrameType

SIGNAL_FILE = "SIMPLETUNER_ACCELERATE_SIGNAL_FILE"
"""Names a file such as {"manual_checkpoint": 3, "manual_validation": 1}; each time a number has grown, it is done once."""
SAVE, VALIDATE = "manual_checkpoint", "manual_validation"


class StopSignal:
    """Remembers the first SIGTERM or SIGINT; the training looks between steps. Other signals keep their meaning."""

    def __init__(self) -> None:
        self._signal: int | None = None

    def listen(self, *, ignore_sigterm: bool) -> None:
        signal.signal(signal.SIGINT, self._remember)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_sigterm else self._remember)

    def __bool__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + (self._signal or 0)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number


class Requests:
    """Reads the requests under one key of the signal file, such as to save a checkpoint now."""

    def __init__(self, path: str | None, key: str) -> None:
        self._path = Path(path) if path else None
        self._key = key
        self._seen = 0
        self._changed: tuple[int, int] | None = None

    @classmethod
    def from_environment(cls, key: str) -> "Requests":
        return cls(os.environ.get(SIGNAL_FILE), key)

    def take(self) -> bool:
        """Tells whether it was asked for since the last look. A file half-written is read again next time."""
        count = self._count()
        asked = count > self._seen
        self._seen = max(self._seen, count)
        return asked

    def _count(self) -> int:
        if self._path is None:
            return 0
        try:
            facts = self._path.stat()
            if (facts.st_mtime_ns, facts.st_ino) == self._changed:
                return self._seen
            count = int(json.loads(self._path.read_bytes()).get(self._key, 0))
        except (OSError, ValueError, TypeError, AttributeError):
            return 0
        self._changed = (facts.st_mtime_ns, facts.st_ino)
        return count
