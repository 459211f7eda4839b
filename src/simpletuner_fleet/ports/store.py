"""Declares the store, in which transactions run and are kept."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports.transactions import Tx, View

T = TypeVar("T")


class ConcurrentChange(Exception):
    """The row changed between being read and being written; nothing of the transaction was kept."""


class RowObserver(Protocol):
    """Follows every change of a live row, in the order of changes; an undone change is told as one more."""

    def rows_reset(self) -> None:
        """Is called when memory was lost: every live row will be told anew, as if it had just come."""
        ...

    def worker_changed(self, before: Worker | None, after: Worker | None) -> None: ...
    def job_changed(self, before: Job | None, after: Job | None) -> None: ...
    def attempt_changed(self, before: Attempt | None, after: Attempt | None, job: Job | None) -> None:
        """`job` is the attempt's own, as far as it can be read."""
        ...


class Store(Protocol):
    def observe(self, observer: RowObserver) -> None:
        """Tells this observer of every live row before the next step, and of every change from then on."""
        ...

    async def write(self, step: Callable[[Tx], T]) -> T:
        """Runs `step` in a transaction of its own; returns when it is durable. An exception keeps nothing of it.

        Raises core.errors.StoreUnavailable when the database cannot accept. Steps run one at a time, in order. A step
        may be undone and run again before it is kept, so it has no effect but through its transaction.
        """
        ...

    async def read(self, look: Callable[[View], T]) -> T:
        """Runs `look`, which sees every write that has returned."""
        ...

    def reading_for_s(self) -> float:
        """Returns for how long the one `read` that runs now has gone on; 0 where none does."""
        ...

    async def scan(self, look: Callable[[View], T]) -> T:
        """Does as `read`, beside it: for a look through many rows, behind which no other read has to wait."""
        ...

    def find_trouble(self) -> str | None:
        """Returns why it takes no more writes until it is opened anew, if that is so."""
        ...

    async def close(self) -> None: ...
