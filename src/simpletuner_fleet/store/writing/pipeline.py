"""Runs steps in memory, in the event loop, while the batch before them is being written to the disk.

Whatever has been kept when a commit ends goes into the next one, so batches grow with the load. Nobody is answered
before the commit that holds their step and all that their step has seen; if one fails, memory is forgotten and loaded
again, and everybody whose step depended on it is told that nothing was changed.

A step that asks for what memory does not hold is undone and run again with the connection to itself, once no commit is
under way. So a step may run twice: it must have no effect but through its transaction.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import ConcurrentChange, RowObserver
from simpletuner_fleet.store.failures import BatchLost, Locked
from simpletuner_fleet.store.sql.database import SqlSession
from simpletuner_fleet.store.writing.lane import Answer, Task, deliver, resolve, unavailable
from simpletuner_fleet.store.writing.sql_tx import Batch, NeedsConnection, SqlTx

T = TypeVar("T")
Trouble = BaseException | None
log = logging.getLogger(__name__)

MAX_STEPS_PER_TURN = 64
"""Bounds how long the event loop does nothing else."""
MAX_UNCOMMITTED = 4096
"""While the disk stands still, so many steps may be run ahead of it."""


class WritingSession(SqlSession, Protocol):
    def begin_patiently(self) -> None:
        """Begins a transaction, waiting for another program's lock up to a limit."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Begins a transaction for what is only written, and commits it at the end; it may send all of it at once."""
        ...

    @property
    def untidy(self) -> bool: ...


class ThreadWork(NamedTuple):
    """Describes the work that the store's thread does now, and what follows in the event loop."""

    done: "Future[None]"
    then: Callable[[Trouble], None]
    exclusive: bool
    """Whether steps must wait for it, since it uses what they use."""


class CommitPipeline:
    """Runs steps in memory and commits what they changed in batches. It is for one event loop at a time."""

    def __init__(self, session: WritingSession, tx: SqlTx, *, statements_in_loop: bool) -> None:
        """Takes `statements_in_loop` for a database whose statements are quick: only its commits run in a thread."""
        self._session = session
        self._tx = tx
        self._statements_in_loop = statements_in_loop
        self._waiting: deque[Task] = deque()
        self._ahead: list[Answer] = []
        """Answers to steps that have run since the last batch was put together."""
        self._blocked: Task | None = None
        """A step that need not be tried in memory again before the thread has done what it does now."""
        self._newcomer: RowObserver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._served_others = False
        """Whether another event loop came before: somebody there may still wait for an answer."""
        self._turn_is_due = False
        self._work: ThreadWork | None = None
        self._closed = False
        self._session_is_closed = False
        self._idle: list[asyncio.Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "store-writer")

    def observe(self, observer: RowObserver) -> None:
        """Adds an observer, for which memory is loaded anew.

        That would lose what is under way, so in that case the observer is added once everything is stored.
        """
        if self._work or self._ahead:
            self._newcomer = observer
        else:
            self._tx.observe(observer)

    @property
    def is_stored(self) -> bool:
        return self._tx.loaded and not (self._waiting or self._work or self._ahead or self._tx.changed)

    async def submit(self, step: Callable[[Any], T]) -> T:
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append(Task(step, future))
        if loop is not self._loop or not self._turn_is_due:
            self._turn_soon(loop)
        return await future

    async def finish(self) -> None:
        """Accepts no further step; those submitted before are still run."""
        self._closed = True
        loop = asyncio.get_running_loop()
        self._turn_soon(loop)
        while self._waiting or self._work or self._ahead or self._turn_is_due:
            idle = loop.create_future()
            self._idle.append(idle)
            await idle

    async def close(self) -> None:
        if self._session_is_closed:
            return
        await self.finish()
        self._session_is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._session.close)
        self._thread.shutdown(wait=False)

    # Turns in the event loop

    def _turn_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            self._take_over(loop)
        if not self._turn_is_due:
            self._turn_is_due = True
            loop.call_soon(self._turn, loop)

    def _take_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes over from an event loop that ended midway, if there was one."""
        self._served_others = self._loop is not None
        self._loop = loop
        self._turn_is_due = False
        if self._work:
            self._work.done.add_done_callback(lambda _: self._wake(loop))

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._turn_is_due = False
        if self._work is not None and self._work.exclusive:
            return
        self._let_newcomer_in()
        if self._waiting and not self._tx.loaded:
            if self._work is None:
                self._load()
            return
        blocked = self._newcomer is not None or self._run_in_memory()
        if self._work is None:
            if self._ahead or self._tx.changed:
                self._start_commit()
            elif blocked:
                self._begin_direct()
                blocked = False
            else:
                self._tell_idle()
        if self._waiting and not blocked and len(self._ahead) < MAX_UNCOMMITTED:
            self._turn_soon(loop)

    def _let_newcomer_in(self) -> None:
        if self._newcomer is not None and self._work is None and not self._ahead:
            self._tx.observe(self._newcomer)
            self._newcomer = None

    def _run_in_memory(self) -> bool:
        """Runs what can be run now; returns True if the first waiting step needs the connection."""
        for _ in range(min(MAX_STEPS_PER_TURN, MAX_UNCOMMITTED - len(self._ahead))):
            if not self._waiting:
                return False
            task = self._waiting[0]
            if task is self._blocked:
                return True
            try:
                result = task.step(self._tx)
            except NeedsConnection:
                self._tx.undo_step()
                self._blocked = task
                return True
            except BatchLost as lost:
                self._tx.undo_step()
                self._ahead.append(unavailable(task, str(lost)))
            except BaseException as error:
                self._tx.undo_step()
                self._ahead.append(Answer(task.future, error=error))
            else:
                self._tx.keep_step()
                self._ahead.append(Answer(task.future, result))
            self._waiting.popleft()
        return False

    # Commits

    def _start_commit(self) -> None:
        """Puts what was kept into a batch. Where nothing was changed, everybody is answered at once."""
        answers, self._ahead = self._ahead, []
        if not self._tx.changed:
            self._answer(answers)
            self._go_on()
            return
        try:
            batch = self._tx.take_batch()
        except BaseException as error:  # a row that cannot be put into words of the database
            self._lose(answers, error)
            self._go_on()
            return

        def commit() -> None:
            with self._rolled_back_on_failure(), self._session.transaction():
                batch.write_down(self._session)

        self._in_thread(commit, lambda trouble: self._committed([batch], answers, trouble))

    def _committed(self, batches: list[Batch], answers: list[Answer], trouble: Trouble) -> None:
        """Begins the next commit before anybody is answered, so that the disk has work while answers are written."""
        if trouble is not None:
            self._lose(answers, trouble)
            answers = []
        else:
            self._tx.stored(batches)
        if self._session.untidy:
            self._in_thread(self._session.tidy, self._tidied)
        elif self._ahead and self._tx.changed:
            self._start_commit()
        self._answer(answers)
        self._go_on()

    def _lose(self, answers: list[Answer], trouble: BaseException) -> None:
        """Tells everybody whose step was in the batch, or has run since, that nothing was kept.

        Whatever has run since depended on the batch.
        """
        lost = [*answers, *self._ahead]
        self._ahead = []
        self._tx.forget()
        if len(lost) == 1 and isinstance(trouble, ConcurrentChange):
            self._answer([Answer(lost[0].future, error=trouble)])
        else:
            self._answer([unavailable_answer(answer, trouble) for answer in lost])

    def _tidied(self, trouble: Trouble) -> None:
        if trouble is not None:
            log.error("The upkeep of the store failed.", exc_info=trouble)
        self._go_on()

    # A step that has the connection to itself

    def _begin_direct(self) -> None:
        task = self._waiting.popleft()
        if not self._statements_in_loop:
            answers: list[Answer] = []
            batches: list[Batch] = []
            self._in_thread(
                lambda: self._direct_in_thread(task, answers, batches),
                lambda trouble: self._committed(batches, answers or [Answer(task.future)], trouble),
                exclusive=True,
            )
            return
        try:
            self._session.begin()
        except Locked:
            self._in_thread(
                self._session.begin_patiently,
                lambda trouble: self._direct_in_loop(task, trouble),
                exclusive=True,
            )
        except BatchLost as lost:
            self._lose([Answer(task.future)], lost)
            self._go_on()
        else:
            self._direct_in_loop(task, None)

    def _direct_in_thread(self, task: Task, answers: list[Answer], batches: list[Batch]) -> None:
        with self._rolled_back_on_failure():
            self._session.begin_patiently()
            answer, batch = self._run_directly(task)
            if batch is None:
                self._session.rollback()
            else:
                self._session.commit()
                batches.append(batch)
        answers.append(answer)

    def _direct_in_loop(self, task: Task, trouble: Trouble) -> None:
        if trouble is not None:
            self._lose([Answer(task.future)], trouble)
            self._go_on()
            return
        try:
            with self._rolled_back_on_failure():
                answer, batch = self._run_directly(task)
        except BaseException as error:
            self._lose([Answer(task.future)], error)
            self._go_on()
            return
        if batch is None:
            self._session.rollback()
            self._answer([answer])
            self._go_on()
        else:
            self._in_thread(self._commit_direct, lambda trouble: self._committed([batch], [answer], trouble))

    def _commit_direct(self) -> None:
        with self._rolled_back_on_failure():
            self._session.commit()

    def _run_directly(self, task: Task) -> tuple[Answer, Batch | None]:
        """Returns the answer and what is left to commit; there is no batch where the step has failed."""
        tx = self._tx
        tx.directly = True
        try:
            result = task.step(tx)
        except BatchLost:
            raise
        except BaseException as error:
            tx.undo_step()
            return Answer(task.future, error=error), None
        else:
            tx.keep_step()
            batch = tx.take_batch()
            batch.write_down(self._session)
            return Answer(task.future, result), batch
        finally:
            tx.directly = False

    # Loading

    def _load(self) -> None:
        """Loads memory in the thread, since a long queue takes seconds; steps wait for it, and nothing else does."""
        self._in_thread(self._load_in_thread, self._loaded, exclusive=True)

    def _load_in_thread(self) -> None:
        try:
            self._session.begin_patiently()
            self._tx.load()
        finally:  # also where it did not begin: a connection that was lost is made anew only once that is noticed
            self._session.rollback()

    def _loaded(self, trouble: Trouble) -> None:
        if trouble is not None:
            waiting = [Answer(task.future) for task in self._waiting]
            self._waiting.clear()
            self._lose(waiting, trouble)
        self._go_on()

    # The thread

    @contextmanager
    def _rolled_back_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._session.rollback()
            raise

    def _in_thread(
        self, work: Callable[[], None], then: Callable[[Trouble], None], *, exclusive: bool = False
    ) -> None:
        """Runs the work in the thread; `then` runs in the event loop again."""
        done = self._thread.submit(work)
        self._work = ThreadWork(done, then, exclusive)
        loop = self._loop
        assert loop is not None
        done.add_done_callback(lambda _: self._wake(loop))

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._finish_work, loop)
        except RuntimeError:
            log.debug("An event loop ended before the store had done its work.")

    def _finish_work(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._work is not None and loop is self._loop and self._work.done.done():
            work, self._work = self._work, None
            self._blocked = None
            work.then(work.done.exception())

    def _go_on(self) -> None:
        if self._loop is not None:
            self._turn_soon(self._loop)

    def _answer(self, answers: list[Answer]) -> None:
        if self._served_others and any(answer.future.get_loop() is not self._loop for answer in answers):
            deliver(answers)
        else:
            resolve(answers)

    def _tell_idle(self) -> None:
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()


def unavailable_answer(answer: Answer, trouble: BaseException) -> Answer:
    if isinstance(trouble, BatchLost):
        return unavailable(answer, str(trouble))
    log.error("The store failed in a way nobody foresaw.", exc_info=trouble)
    return unavailable(answer, f"The store failed: {type(trouble).__name__}.")
