"""Reads through many rows in threads of their own, so that neither a short read nor another scan waits behind one."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from simpletuner_fleet.ports import View
from simpletuner_fleet.store.sql.database import SqlSession
from simpletuner_fleet.store.writing.lane import Lane
from simpletuner_fleet.store.writing.reader import Reader

T = TypeVar("T")
SCANNERS = 2
"""More than one caller runs at once: see `SCANS_PER_CALLER`."""


class _Scanner(Struct):
    lane: Lane
    asked: int = 0


class Scanners:
    """Hands each scan to the scanner for which the fewest wait."""

    def __init__(self, sessions: Sequence[SqlSession]) -> None:
        self._scanners = [
            _Scanner(Reader(session).lane(f"store-scanner-{number}", at_once=1))
            for number, session in enumerate(sessions)
        ]

    async def submit(self, look: Callable[[View], T]) -> T:
        scanner = min(self._scanners, key=lambda one: one.asked)
        scanner.asked += 1
        try:
            return await scanner.lane.submit(look)
        finally:
            scanner.asked -= 1

    async def close(self) -> None:
        """Lets the scans that have begun end, and answers the others that the store is closed."""
        await asyncio.gather(*(scanner.lane.close(abandon=True) for scanner in self._scanners))
