"""Computes the SHA-256 of uploads as they come, so that a long one need not be read again at its end."""

import hashlib
import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

CHUNK_BYTES = 1024 * 1024
MAX_RUNNING = 1024
THREADS = 4

Key = tuple[str, ...]


class RunningDigests:
    """Computes the digests of uploads as they come.

    There is a digest for each upload whose parts have come in order; all others are read again at the end. A part is
    digested while the next one is on its way. Two calls for one key must not run at once; calls for several may.
    """

    def __init__(self, max_running: int = MAX_RUNNING) -> None:
        self._max = max_running
        self._running: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._pending: dict[Key, Future[None]] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(THREADS, "digests")

    def close(self) -> None:
        self._threads.shutdown()

    def feed(self, key: Key, offset: int, data: memoryview) -> None:
        self._wait_for_feed(key)
        with self._lock:
            pending = self._pending[key] = self._threads.submit(self._feed, key, offset, data)
        pending.add_done_callback(lambda done: self._fed(key, done))

    def _fed(self, key: Key, done: Future[None]) -> None:
        """Forgets a part that was digested: many uploads are begun, and some never go on."""
        with self._lock:
            if self._pending.get(key) is done:
                del self._pending[key]

    def _feed(self, key: Key, offset: int, data: memoryview) -> None:
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
        """Returns None unless exactly this much was fed."""
        self._wait_for_feed(key)
        with self._lock:
            digest, reached = self._running.get(key, (None, 0))
        return digest.hexdigest() if digest is not None and reached == size else None

    def forget(self, key: Key) -> None:
        self._wait_for_feed(key)
        with self._lock:
            self._running.pop(key, None)

    def _wait_for_feed(self, key: Key) -> None:
        with self._lock:
            pending = self._pending.pop(key, None)
        if pending:
            pending.result()


def digest_of_file(file: int) -> str:
    digest = hashlib.sha256()
    at = 0
    while chunk := os.pread(file, CHUNK_BYTES, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()
