"""Writing steps run in the event loop itself; a thread only waits for the disk.

In a thread of their own they would hand the interpreter to the loop and take it back at every statement: measured with
both busy, that was a third of all the time the server used.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.store.failures import BatchLost, Locked
from simpletuner_fleet.store.lane import Answer, Task, deliver, resolve, unavailable
from simpletuner_fleet.store.writer import Answers, Writer

T = TypeVar("T")
Then = Callable[[asyncio.AbstractEventLoop, list[Task], BaseException | None], None]
log = logging.getLogger(__name__)

MAX_STEPS_PER_TURN = 64
"""Bounds how long the event loop does nothing else."""


class LocalSession(Protocol):
    """A database whose statements are quick, all but these."""

    def begin(self) -> None:
        """Raises Locked at once rather than wait."""
        ...

    def begin_patiently(self) -> None: ...
    def commit(self) -> None: ...
    @property
    def untidy(self) -> bool: ...
    def tidy(self) -> None: ...
    def close(self) -> None: ...


class UnderWay(NamedTuple):
    """What the thread does now, and what follows in the loop."""

    done: Future[None]
    then: Then
    batch: list[Task]


class LoopLane:
    """For one event loop at a time. While a batch is on its way to the disk, the next one gathers."""

    def __init__(self, writer: Writer, session: LocalSession) -> None:
        self._writer = writer
        self._session = session
        self._waiting: deque[Task] = deque()
        self._at_work = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: UnderWay | None = None
        self._closed = False
        self._idle: list[asyncio.Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "store-writer")

    async def submit(self, step: Callable[[Any], T]) -> T:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append(Task(step, future))
        self._start(loop)
        return await future

    async def close(self) -> None:
        """What was handed in before is still done."""
        self._closed = True
        loop = asyncio.get_running_loop()
        self._start(loop)
        while self._at_work:
            idle = loop.create_future()
            self._idle.append(idle)
            await idle
        await loop.run_in_executor(self._thread, self._session.close)
        self._thread.shutdown(wait=False)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._at_work and self._waiting:
            self._at_work = True
            self._loop = loop
            loop.call_soon(self._begin, loop)
        elif self._at_work and self._loop is not loop:
            self._take_over(loop)

    def _take_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """From an event loop that ended midway."""
        self._loop = loop
        if self._under_way:
            self._under_way.done.add_done_callback(lambda _: self._wake(loop))
        else:
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_STEPS_PER_TURN))]
        try:
            self._session.begin()
        except Locked:
            self._in_thread(loop, self._session.begin_patiently, self._run, batch)
        except BatchLost as lost:
            self._answer(loop, self._writer.lost(batch, lost))
        else:
            self._run(loop, batch, None)

    def _run(self, loop: asyncio.AbstractEventLoop, batch: list[Task], trouble: BaseException | None) -> None:
        try:
            if trouble is not None:
                raise trouble
            answers = self._writer.run_steps(batch)
        except BatchLost as lost:
            self._answer(loop, self._writer.lost(batch, lost))
        except Exception as error:
            self._answer(loop, self._failed(batch, error))
        else:
            self._commit(loop, batch, answers)

    def _commit(self, loop: asyncio.AbstractEventLoop, batch: list[Task], answers: Answers) -> None:
        def committed(
            loop: asyncio.AbstractEventLoop, batch: list[Task], trouble: BaseException | None
        ) -> None:
            if trouble is None:
                self._writer.committed()
                self._answer(loop, answers.each)
            elif isinstance(trouble, BatchLost):
                self._answer(loop, self._writer.lost(batch, trouble))
            else:
                self._answer(loop, self._failed(batch, trouble))

        if answers.to_commit:
            self._in_thread(loop, self._session.commit, committed, batch)
        else:
            self._answer(loop, answers.each)

    def _failed(self, batch: list[Task], error: BaseException) -> list[Answer]:
        log.error("The store failed in a way nobody foresaw.", exc_info=error)
        self._writer.give_up()
        return [unavailable(task, f"The store failed: {type(error).__name__}.") for task in batch]

    def _answer(self, loop: asyncio.AbstractEventLoop, answers: list[Answer]) -> None:
        if all(answer.future.get_loop() is loop for answer in answers):
            resolve(answers)
        else:
            deliver(answers)
        if self._session.untidy:
            self._in_thread(loop, self._session.tidy, self._go_on, [])
        else:
            self._go_on(loop, [], None)

    def _go_on(self, loop: asyncio.AbstractEventLoop, _: list[Task], trouble: BaseException | None) -> None:
        if trouble is not None:
            log.error("The upkeep of the store failed.", exc_info=trouble)
        self._at_work = False
        self._start(loop)
        if not self._at_work:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    def _in_thread(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], None], then: Then, batch: list[Task]
    ) -> None:
        """`then` runs in the loop again."""
        done = self._thread.submit(work)
        self._under_way = UnderWay(done, then, batch)
        done.add_done_callback(lambda _: self._wake(loop))

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._go_on_with, loop)
        except RuntimeError:
            log.debug("An event loop ended before the store had done its work.")

    def _go_on_with(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._under_way and loop is self._loop:
            done, then, batch = self._under_way
            self._under_way = None
            then(loop, batch, done.exception())
