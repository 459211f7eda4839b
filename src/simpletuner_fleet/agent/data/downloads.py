"""Fetches files by content, resuming where the last try ended. What arrived is for the caller to verify."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import SLOWEST_BYTES_PER_S
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Without as many bytes as the slowest connection brings."""
CATCHES_UP_WITHIN_S = 60.0
"""An answer that comes at last has so long to be fast enough."""
WRITE_BYTES = 1024 * 1024
Opening = Callable[[str, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""From a SHA-256 and an offset to the bytes from there on."""


class ContentSource(Protocol):
    """Opens the files that jobs need: the orchestrator does, or a node that asks it on another's behalf."""

    def fetch_object(
        self, job_id: str, sha256: str, offset: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...
    def fetch_data(
        self, job_id: str, sha256: str, offset: int
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...


class DownloadFailed(Exception):
    """A download failed, and trying again would not help."""


class DownloadStalled(DownloadFailed):
    """Nothing came for so long that the download is given up here; elsewhere, or later, it may work."""


class Downloads:
    """Downloads the files of one purpose.

    They share one timeout. It is restarted by the beginning of each, and by bytes of any of them once these have come
    fast enough since then: who sends a byte now and then must not hold a job for ever.
    """

    def __init__(
        self,
        open_at: Opening,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._open_at = open_at
        self._patience_s = patience_s
        self._clock = clock
        self._on_bytes = on_bytes
        self._heard_at = clock()
        self._heard_bytes = 0
        """Since then."""

    async def fetch(self, sha256: str, size: int, target: Path, what: str) -> None:
        """Returns when the file has its size. Raises DownloadFailed."""
        backoff = Backoff(0.25, 10.0)
        # What this machine did before, such as reading gigabytes, was no silence.
        self._begin_to_wait()
        while (have := await asyncio.to_thread(_size_of, target)) < size:
            try:
                await self._receive(sha256, size, target, have, what)
                backoff.reset()
            except Refused as problem:
                if not problem.passing and not isinstance(problem, TokenRejected):
                    raise DownloadFailed(f"{what} cannot be fetched: {problem.detail}") from problem
                await self._wait(backoff, problem)
            except Unreachable as error:
                if await asyncio.to_thread(_size_of, target) > have:
                    backoff.reset()
                await self._wait(backoff, error)

    async def _receive(self, sha256: str, size: int, target: Path, have: int, what: str) -> None:
        async with self._open_at(sha256, have) as chunks:
            waiting, opened_at = bytearray(), self._clock()
            try:
                async for chunk in chunks:
                    have += len(chunk)
                    if have > size:
                        raise DownloadFailed(f"{what} is longer than it should be")
                    self._on_bytes(len(chunk))
                    waiting += chunk
                    self._heard(len(chunk), opened_at, what)
                    if len(waiting) >= WRITE_BYTES:
                        written, waiting = waiting, bytearray()
                        await asyncio.to_thread(_append, target, written)
            finally:
                await asyncio.to_thread(_append, target, waiting)
        if have < size:
            raise Unreachable(EOFError("the answer ended early"), refused=False)

    def _begin_to_wait(self) -> None:
        self._heard_at, self._heard_bytes = self._clock(), 0

    def _heard(self, count: int, opened_at: float, what: str) -> None:
        self._heard_bytes += count
        now = self._clock()
        waited_s = now - self._heard_at
        if self._heard_bytes >= waited_s * SLOWEST_BYTES_PER_S:
            self._begin_to_wait()
        elif waited_s > self._patience_s and now - opened_at > CATCHES_UP_WITHIN_S:
            raise DownloadStalled(f"only {self._heard_bytes} bytes of {what} came in {waited_s:.0f} s")

    async def _wait(self, backoff: Backoff, error: Exception) -> None:
        if self._clock() - self._heard_at > self._patience_s:
            raise DownloadStalled(str(error)) from error
        log.debug("fetching waits: %s", error)
        await asyncio.sleep(backoff.next_s())


def _size_of(path: Path) -> int:
    path.touch()
    return path.stat().st_size


def _append(path: Path, data: bytearray) -> None:
    with path.open("ab", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
