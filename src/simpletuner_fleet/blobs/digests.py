"""SHA-256 of uploads as they come, so that the end of a long one need not be read again."""

import hashlib
import os
from collections import OrderedDict
from threading import Lock
from typing import Any

CHUNK_BYTES = 1024 * 1024
MAX_RUNNING = 1024

Key = tuple[str, ...]


class RunningDigests:
    """One per upload whose parts have come in order; all others are read again at the end.

    Two calls for one key must not run at once; calls for several may.
    """

    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._max = max_running
        self._running: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def feed(self, key: Key, offset: int, data: memoryview) -> None:
        with self._lock:
            digest, reached = self._running.pop(key, (None, 0))
        if offset == 0:
            digest, reached = hashlib.sha256(), 0
        if digest is None or reached != offset:
            return
        digest.update(data)
        with self._lock:
            self._running[key] = (digest, offset + len(data))
            if len(self._running) > self._max:
                self._running.popitem(last=False)

    def result(self, key: Key, size: int) -> str | None:
        """None unless exactly this much was fed."""
        with self._lock:
            digest, reached = self._running.get(key, (None, 0))
        return digest.hexdigest() if digest is not None and reached == size else None

    def forget(self, key: Key) -> None:
        with self._lock:
            self._running.pop(key, None)


def digest_of_file(file: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while chunk := os.pread(file, CHUNK_BYTES, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()
