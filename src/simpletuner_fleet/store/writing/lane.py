"""Runs what the event loop hands over in one thread, strictly in order, and answers in batches."""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct

from simpletuner_fleet.core.errors import StoreUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)


class Task(Struct, frozen=True, eq=False):
    step: Callable[[Any], Any]
    future: "asyncio.Future[Any]"


class Answer(Struct, frozen=True, eq=False):
    future: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None


class Lane:
    """Runs tasks in a thread, strictly one after another, and answers them in batches.

    `run_batch` answers every task of the batch; `between` runs when they have their answers.
    """

    def __init__(
        self,
        name: str,
        run_batch: Callable[[list[Task]], list[Answer]],
        between: Callable[[], None],
        at_end: Callable[[], None],
        max_batch: int,
    ) -> None:
        self._run_batch = run_batch
        self._between = between
        self._at_end = at_end
        self._max_batch = max_batch
        self._waiting: SimpleQueue[Task | None] = SimpleQueue()
        self._closed = False
        self._abandons = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def submit(self, step: Callable[[Any], T]) -> T:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put(Task(step, future))
        return await future

    async def close(self, *, abandon: bool = False) -> None:
        """Closes the lane after finishing what was submitted before, or only what has begun."""
        self._abandons = abandon
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._take()
            if batch:
                deliver(self._answers(batch))
            self._between_batches()
        self._at_end()

    def _take(self) -> tuple[list[Task], bool]:
        """Waits for the first task, then takes all that are waiting.

        The second value is False when it was asked to close.
        """
        batch: list[Task] = []
        task = self._waiting.get()
        while task is not None:
            batch.append(task)
            if len(batch) == self._max_batch:
                return batch, True
            try:
                task = self._waiting.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _answers(self, batch: list[Task]) -> list[Answer]:
        if self._abandons:
            return [unavailable(task, "The store is closed.") for task in batch]
        try:
            return self._run_batch(batch)
        except Exception as error:
            log.exception("The store failed in a way nobody foresaw.")
            return [unavailable(task, f"The store failed: {type(error).__name__}.") for task in batch]

    def _between_batches(self) -> None:
        try:
            self._between()
        except Exception:
            log.exception("The upkeep of the store failed.")


def unavailable(task: Task | Answer, detail: str) -> Answer:
    return Answer(task.future, error=StoreUnavailable(detail))


def deliver(answers: list[Answer]) -> None:
    """Delivers the answers of a batch with one call into each event loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_loop[answer.future.get_loop()].append(answer)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(resolve, mine)
        except RuntimeError:
            log.debug("An event loop ended before it had its answers.")


def resolve(answers: list[Answer]) -> None:
    for answer in answers:
        future, error = answer.future, answer.error
        if future.done():
            continue
        if error is None:
            future.set_result(answer.result)
        elif isinstance(error, StopIteration):
            # A future refuses to hold it; its batch mates must not wait for ever because of that.
            future.set_exception(RuntimeError("the step raised StopIteration"))
        else:
            future.set_exception(error)
