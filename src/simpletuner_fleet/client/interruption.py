"""Wakes what waits, in whichever thread, once whoever asked for it has given up: a socket would keep it for minutes."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")
ENDING_S = 0.3
"""How long threads are waited for that were told to end; one that looks up a name or connects cannot be woken."""

TURN_S = 0.5


class Interrupted(Exception):
    """Whoever asked for this has given up; nobody is told of it."""


class Interrupter:
    """What was begun within it can be ended from another thread. It is not ended twice, and never taken back."""

    def __init__(self) -> None:
        self._over = Event()
        self._lock = Lock()
        self._wakers: dict[object, Callable[[], None]] = {}

    def end(self) -> None:
        self._over.set()
        with self._lock:
            for wake in self._wakers.values():
                wake()

    def check(self) -> None:
        if self._over.is_set():
            raise Interrupted

    def pause(self, seconds: float) -> None:
        self._over.wait(seconds)
        self.check()

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Belongs to what this thread does meanwhile, and to the threads that are begun with its context."""
        token = _present.set(self)
        try:
            self.check()
            yield
        finally:
            _present.reset(token)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Calls `wake`, which must not wait itself, if the end comes meanwhile, and raises then."""
        mark = object()
        with self._lock:
            self.check()
            self._wakers[mark] = wake
        try:
            yield
        finally:
            # Under the lock, so that nothing is woken that somebody else waits on by then.
            with self._lock:
                del self._wakers[mark]
            self.check()


_present: ContextVar[Interrupter | None] = ContextVar("interrupter", default=None)


def check() -> None:
    """Raises where whoever asked for this has given up."""
    present = _present.get()
    if present:
        present.check()


def pause(seconds: float) -> None:
    present = _present.get()
    if present:
        present.pause(seconds)
    else:
        time.sleep(seconds)


@contextmanager
def waking(wake: Callable[[], None]) -> Iterator[None]:
    present = _present.get()
    if present is None:
        yield
        return
    with present.waking(wake):
        yield


@contextmanager
def hanging_up(line: socket.socket) -> Iterator[None]:
    """Ends the connection where whoever asked gives up while it is waited for."""
    with waking(lambda: _hang_up(line)):
        yield


@contextmanager
def hanging_up_copy(line: socket.socket) -> Iterator[None]:
    """As `hanging_up`, for a socket that TLS takes the descriptor of."""
    if _present.get() is None:
        yield
        return
    with socket.socket(fileno=os.dup(line.fileno())) as copy, hanging_up(copy):
        yield


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):
        # That of TLS first forgets the keys, with which another thread reads just now.
        socket.socket.shutdown(line, socket.SHUT_RDWR)


def _next_of(queue: SimpleQueue[Thing]) -> Thing:
    """Waits in short turns: of a Ctrl-C that comes in the moment in which a wait begins, Python tells only at its end."""
    while True:
        with suppress(Empty):
            return queue.get(timeout=TURN_S)


def side_by_side(act: Callable[[Thing], Result], things: Iterable[Thing], at_once: int) -> list[Result]:
    """Returns what is made of each thing, in their order, in a few threads.

    The first error ends them all, as does an interruption of whoever waits here.
    """
    todo = list(things)
    rest, lock, ending = iter(enumerate(todo)), Lock(), Interrupter()
    done: SimpleQueue[tuple[int, Result] | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            while True:
                with lock:
                    at, thing = next(rest, (-1, None))
                if thing is None:
                    return
                ending.check()
                done.put((at, act(thing)))
        except BaseException as error:
            done.put(error)

    made: dict[int, Result] = {}
    threads: list[Thread] = []
    try:
        with waking(ending.end), waking(lambda: done.put(Interrupted())):
            with ending.begun():
                for _thread in range(min(at_once, len(todo))):
                    thread = Thread(target=copy_context().run, args=(work,), daemon=True)
                    thread.start()
                    threads.append(thread)  # one that was not started could not be waited for
            while len(made) < len(todo):
                news = _next_of(done)
                if isinstance(news, BaseException):
                    raise news
                made[news[0]] = news[1]
    finally:
        ending.end()
        until = time.monotonic() + ENDING_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
    return [made[at] for at in range(len(todo))]
