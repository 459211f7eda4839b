"""Limits how many of people's calls are processed at once, so that workers' calls need not wait.

One loop serves everybody. Whoever asks a hundred heavy questions at once would have a hundred answers made between two
heartbeats; with this limit it is a few, and one person's are never all of them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from simpletuner_fleet.core.errors import TooManyRequests

AT_ONCE = 24
AT_ONCE_PER_CALLER = 8
WAITING_PER_CALLER = 64
PATIENCE_S = 15.0
TRY_AGAIN_S = 5.0


class Gate:
    """Limits how many calls are inside, in all and of one caller; the others wait for their turn."""

    def __init__(self, at_once: int = AT_ONCE, per_caller: int = AT_ONCE_PER_CALLER) -> None:
        self._at_once = at_once
        self._per_caller = per_caller
        self._inside: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._waiting_of: Counter[str] = Counter()

    def enter_at_once(self, caller: str) -> bool:
        """Enters if there is room, and tells whether it did. A caller does not overtake their own waiting calls."""
        if self._waiting_of.get(caller) or not self._has_room(caller):
            return False
        self._inside[caller] += 1
        return True

    async def enter(self, caller: str) -> None:
        """Waits for room, first come, first served.

        Raises TooManyRequests for a caller who waits too long, or too often.
        """
        if self._waiting_of[caller] >= WAITING_PER_CALLER:
            raise TooManyRequests(TRY_AGAIN_S)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((caller, turn))
        self._waiting_of[caller] += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                await turn
        except TimeoutError:
            # Whose turn came in the very moment in which their patience ended is inside.
            if not _has_come(turn):
                raise TooManyRequests(TRY_AGAIN_S) from None
        except asyncio.CancelledError:
            if _has_come(turn):
                self.leave(caller)
            raise
        finally:
            _less(self._waiting_of, caller)

    @asynccontextmanager
    async def inside(self, caller: str) -> AsyncIterator[None]:
        if not self.enter_at_once(caller):
            await self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def leave(self, caller: str) -> None:
        _less(self._inside, caller)
        for _ in range(len(self._waiting)):
            other, turn = self._waiting.popleft()
            if turn.done():
                continue
            if self._has_room(other):
                self._inside[other] += 1
                turn.set_result(None)
                return
            self._waiting.append((other, turn))

    def _has_room(self, caller: str) -> bool:
        return self._inside.get(caller, 0) < self._per_caller and self._inside.total() < self._at_once


def _has_come(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled()


def _less(counts: Counter[str], caller: str) -> None:
    counts[caller] -= 1
    if counts[caller] <= 0:
        del counts[caller]
