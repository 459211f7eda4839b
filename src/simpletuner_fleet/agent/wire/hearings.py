"""Tells when the orchestrator has compared what this worker holds with what it has on record."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Hearings:
    """Counts registrations and heartbeats: an attempt that was thought lost goes on once one of them names it."""

    def __init__(self) -> None:
        self.go_on = False
        """Whether somebody calls again and again. Where nobody does, there is nothing to wait for."""
        self._begun = 0
        self._awaited: dict[int, asyncio.Event] = {}

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Surrounds a call; one that fails is none."""
        self._begun += 1
        number = self._begun
        yield
        for awaited in [one for one in self._awaited if one <= number]:
            self._awaited.pop(awaited).set()

    @property
    def are_awaited(self) -> bool:
        return bool(self._awaited)

    def next(self) -> asyncio.Event | None:
        """Returns what is set once a call was answered that begins after this moment; None where none will."""
        if not self.go_on:
            return None
        return self._awaited.setdefault(self._begun + 1, asyncio.Event())
