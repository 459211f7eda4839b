"""Keeps one lock for each name that is in use, and none for the others: there may be millions of names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLocks:
    """Locks by name: nobody else holds a name while one task holds it."""

    def __init__(self) -> None:
        self._in_use: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._in_use)

    @asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        lock, users = self._in_use.get(name, (asyncio.Lock(), 0))
        self._in_use[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._in_use.pop(name)
            if users > 1:
                self._in_use[name] = (lock, users - 1)
