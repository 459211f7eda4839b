"""Who listens now. The hub holds no truth: it only wakes those who will look for themselves."""

import asyncio
from typing import Any


class WorkerStream:
    """One worker's open stream. A newer one of the same worker takes its place."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.closing: str | None = None
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def close(self, why: str) -> None:
        self.closing = self.closing or why
        self._news.set()

    async def news(self, timeout_s: float) -> bool:
        """True if there may be news, False after the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True


class Watcher:
    """A console or CLI that watches everything; one that does not keep up is dropped."""

    def __init__(self, capacity: int) -> None:
        self.events: asyncio.Queue[tuple[int, str, dict[str, Any]] | None] = asyncio.Queue(capacity)
        self.dropped = False

    def offer(self, item: tuple[int, str, dict[str, Any]] | None) -> None:
        try:
            self.events.put_nowait(item)
        except asyncio.QueueFull:
            self.dropped = True


class StreamHub:
    def __init__(self, watcher_capacity: int = 1000) -> None:
        self._workers: dict[str, WorkerStream] = {}
        self._watchers: set[Watcher] = set()
        self._capacity = watcher_capacity
        self._event_id = 0

    def open(self, worker_id: str) -> WorkerStream:
        older = self._workers.get(worker_id)
        if older:
            older.close("superseded")
        stream = self._workers[worker_id] = WorkerStream(worker_id)
        return stream

    def closed(self, stream: WorkerStream) -> bool:
        """True if it was still the worker's own; a superseded stream leaves its successor alone."""
        if self._workers.get(stream.worker_id) is not stream:
            return False
        del self._workers[stream.worker_id]
        return True

    def streaming(self, worker_id: str) -> bool:
        return worker_id in self._workers

    def wake(self, worker_id: str) -> None:
        stream = self._workers.get(worker_id)
        if stream:
            stream.wake()

    def cut(self, worker_id: str, why: str) -> None:
        stream = self._workers.get(worker_id)
        if stream:
            stream.close(why)

    def watch(self) -> Watcher:
        watcher = Watcher(self._capacity)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def publish(self, event: str, data: dict[str, Any]) -> None:
        self._event_id += 1
        for watcher in list(self._watchers):
            watcher.offer((self._event_id, event, data))
            if watcher.dropped:
                self._watchers.discard(watcher)

    def close_all(self) -> None:
        for stream in self._workers.values():
            stream.close("server_stopping")
        for watcher in self._watchers:
            watcher.offer(None)

    @property
    def worker_count(self) -> int:
        return len(self._workers)
