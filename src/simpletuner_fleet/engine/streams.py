"""Tracks who listens now; the hub is no source of truth, and only wakes those who then look for themselves."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from simpletuner_fleet.protocol.messages import JobSubmit

TakeOffers = Callable[[Sequence[JobSubmit]], None]
Tell = Callable[[int, str, dict[str, Any]], None]
"""Told (event id, event name, data)."""


class WorkerStream:
    """Represents one worker's open stream, which a newer one of the same worker replaces."""

    __slots__ = ("_look", "_take", "closing", "incarnation", "worker_id")

    def __init__(
        self, worker_id: str, incarnation: str, look: Callable[[], None], take: TakeOffers | None
    ) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.closing: str | None = None
        self._look = look
        self._take = take

    def wake(self) -> None:
        self._look()

    def offer(self, offers: Sequence[JobSubmit]) -> None:
        if self._take is None or self.closing:
            self._look()
        else:
            self._take(offers)

    def close(self, why: str) -> None:
        self.closing = self.closing or why
        self._look()


class StreamHub:
    def __init__(self) -> None:
        self.event_id = 0
        self.on_cut: Callable[[str], None] | None = None
        """Told the id of a worker whose credential or very self is gone."""
        self._workers: dict[str, WorkerStream] = {}
        self._watchers: dict[object, Tell] = {}

    def open(
        self,
        worker_id: str,
        incarnation: str,
        look: Callable[[], None],
        take: TakeOffers | None = None,
    ) -> WorkerStream:
        """Opens a stream; `look` is called whenever there may be something to send, and once more to close.

        `take` is handed offers that were just decided; without it, `look` has to find them.
        """
        older = self._workers.get(worker_id)
        stream = self._workers[worker_id] = WorkerStream(worker_id, incarnation, look, take)
        if older:
            older.close("reconnected" if older.incarnation == incarnation else "superseded")
        return stream

    def closed(self, stream: WorkerStream) -> bool:
        """Returns True if it was still the worker's current stream; an older one does not affect its successor."""
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

    def offer(self, worker_id: str, offers: Sequence[JobSubmit]) -> None:
        stream = self._workers.get(worker_id)
        if stream:
            stream.offer(offers)

    def cut(self, worker_id: str, why: str) -> None:
        if self.on_cut:
            self.on_cut(worker_id)
        stream = self._workers.get(worker_id)
        if stream:
            stream.close(why)

    def watch(self, key: object, tell: Tell) -> None:
        self._watchers[key] = tell

    def unwatch(self, key: object) -> None:
        self._watchers.pop(key, None)

    def publish(self, event: str, data: dict[str, Any]) -> None:
        self.event_id += 1
        if not self._watchers:
            return
        for tell in list(self._watchers.values()):
            tell(self.event_id, event, data)

    @property
    def worker_count(self) -> int:
        return len(self._workers)

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)


class Wakeups:
    """Wakes whoever waits for news of one thing, such as an attempt's log.

    Nothing is kept where nobody waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def wake(self, key: str) -> None:
        for wakeup in self._waiting.get(key, ()):
            wakeup.set()

    async def wait(self, key: str, timeout_s: float) -> None:
        wakeup = asyncio.Event()
        self._waiting.setdefault(key, set()).add(wakeup)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await wakeup.wait()
        finally:
            others = self._waiting[key]
            others.discard(wakeup)
            if not others:
                del self._waiting[key]
