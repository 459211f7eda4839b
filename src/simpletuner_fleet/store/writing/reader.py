"""Reads in a thread of its own: each read uses a snapshot that began after it was asked for."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from simpletuner_fleet.ports import View
from simpletuner_fleet.store.failures import BatchLost
from simpletuner_fleet.store.sql.database import SqlSession
from simpletuner_fleet.store.sql.view import SqlView
from simpletuner_fleet.store.writing.lane import Answer, Lane, Task, deliver, unavailable

T = TypeVar("T")
MAX_READS_PER_TURN = 64
HANDED_OUT_EVERY_S = 0.001
"""Short looks are answered together: to wake the event loop costs as much as some of them."""


class Reader:
    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._view: View = SqlView(session)
        self._began_at: float | None = None
        """When the read began that runs now, by the monotonic clock."""

    def reading_for_s(self) -> float:
        """Returns for how long the read that runs now has gone on; 0 where none does. Any thread may ask."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at

    def lane(self, name: str, at_once: int = MAX_READS_PER_TURN) -> Lane:
        return Lane(name, self.run_batch, self._session.tidy, self._session.close, at_once)

    def run_batch(self, batch: list[Task]) -> list[Answer]:
        """Returns the last answers.

        Earlier ones are delivered on the way, so that nobody waits for others' long reads.
        """
        ready: list[Answer] = []
        since = time.monotonic()
        for task in batch:
            ready.append(self._answer(task))
            if time.monotonic() - since >= HANDED_OUT_EVERY_S:
                deliver(ready)
                ready, since = [], time.monotonic()
        return ready

    def _answer(self, task: Task) -> Answer:
        if task.future.cancelled():  # nobody waits for it any more
            return Answer(task.future)
        self._began_at = time.monotonic()
        try:
            return Answer(task.future, self._looked(task))
        except BatchLost as lost:
            return unavailable(task, str(lost))
        except BaseException as error:
            return Answer(task.future, error=error)
        finally:
            self._began_at = None

    def _looked(self, task: Task) -> Any:
        """Runs a read.

        It changes nothing, so it is repeated on a new connection if the old one was lost since the last read.
        """
        try:
            return self.look(task.step)
        except BatchLost:
            return self.look(task.step)

    def look(self, look: Callable[[View], T]) -> T:
        try:
            self._session.begin()
            result = look(self._view)
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        return result

    def close(self) -> None:
        self._session.close()
