"""Keeps the lease while this orchestrator leads, and watches it while another does, in a thread of its own.

A busy event loop must not cost the lease, and a database that hangs must not block the loop. What the loop asks,
`may_promise`, is answered from memory: by when the last renewal that succeeded was sent.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from simpletuner_fleet.core import leadership as rules
from simpletuner_fleet.core.leadership import Lease, LeaseWatch

log = logging.getLogger(__name__)

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LONG_SILENCE_S = 5.0
RETRY_S = 0.2


def boottime_now() -> float:
    """Returns a time that goes on while the machine is suspended, and that no administrator sets."""
    return time.clock_gettime(CLOCK)


class LeaseBook(Protocol):
    """Records the leader's lease for all orchestrators. Any method may raise."""

    def look(self) -> Lease | None: ...
    def take(self, seen: Lease | None, holder: str, url: str, fingerprint: str) -> Lease | None:
        """Begins a new term if the lease is still the one that was seen; returns None if it is not."""
        ...

    def renew(self, term: int) -> bool:
        """Renews the lease; returns False where the term is over."""
        ...

    def release(self, term: int) -> None: ...
    def close(self) -> None: ...


class Leadership:
    """Keeps the lease while this orchestrator leads, and watches it while another does.

    `start` and `stop` belong to one event loop.
    """

    def __init__(
        self,
        book: LeaseBook,
        holder: str,
        clock: Callable[[], float] = boottime_now,
    ) -> None:
        self._book = book
        self._holder = holder
        self._url = self._fingerprint = ""
        self._clock = clock
        self._watch: LeaseWatch | None = None
        self._term: int | None = None
        self._sent_at: float | None = None
        self._heard_at = clock()
        self._may_stand = True
        self.follows_living = False
        """Whether another orchestrator leads and was seen to renew its lease."""
        self._over = threading.Event()
        self._asking = threading.Lock()
        """The book is for one thread at a time."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.on_change: Callable[[], None] | None = None
        """Called in the loop whenever another orchestrator has begun to lead, or nobody does."""

    @property
    def term(self) -> int | None:
        """Returns the term in which this orchestrator leads; None while it does not."""
        return self._term

    @property
    def leader(self) -> Lease | None:
        """Returns the current lease as far as it is known, also where this orchestrator holds it."""
        watch = self._watch
        if watch is None or watch.lease is None or watch.lease.released:
            return None
        if self._term is None and rules.is_gone(watch, self._heard_at):
            return None
        return watch.lease

    @property
    def is_connected(self) -> bool:
        """Tells whether the database has answered recently."""
        return self._clock() - self._heard_at < LONG_SILENCE_S

    def may_promise(self, term: int) -> bool:
        """Tells whether this orchestrator surely leads, in the same term in which the promise was decided."""
        return self._term == term and rules.may_promise(self._sent_at, self._clock())

    def start(self, url: str, fingerprint: str = "") -> None:
        """Starts the thread.

        `url` is where other orchestrators reach this one, `fingerprint` that of the certificate it shows there.
        """
        self._url, self._fingerprint = url, fingerprint
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self._thread.start()

    async def leads(self) -> int:
        """Waits until this orchestrator leads, and returns the term."""
        while self._term is None:
            self._changed.clear()
            await self._changed.wait()
        return self._term

    async def term_over(self, term: int) -> None:
        while self._term == term:
            self._changed.clear()
            await self._changed.wait()

    async def step_down(self, pause_s: float) -> None:
        """Gives the lease back, and does not try to take it again before the pause is over."""
        self._may_stand = False
        await asyncio.to_thread(self._give_back)
        asyncio.get_running_loop().call_later(pause_s, self._stand_again)

    async def stop(self) -> None:
        """Gives the lease back, so that another may lead at once."""
        self._over.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._give_back)
        self._book.close()

    def _stand_again(self) -> None:
        self._may_stand = True

    def _give_back(self) -> None:
        with self._asking:
            term, self._term, self._sent_at = self._term, None, None
            if term is None:
                return
            try:
                self._book.release(term)
            except Exception as error:
                log.warning("the lease could not be given back; it ends by itself: %s", error)

    def _run(self) -> None:
        troubled = False
        while not self._over.is_set():
            try:
                with self._asking:
                    pause_s = self.turn()
                troubled = False
            except Exception as error:  # whatever it is: without renewals nothing is promised
                level = logging.DEBUG if troubled else logging.WARNING
                log.log(level, "the lease could not be looked after: %s", error)
                troubled, pause_s = True, RETRY_S
            self._over.wait(pause_s)

    def turn(self) -> float:
        """Renews the lease, or looks at it and perhaps takes it; returns after how long the next turn is due."""
        if self._term is not None:
            return self._renew(self._term)
        lease = self._book.look()
        now = self._heard_at = self._clock()
        before, self._watch = self._watch, rules.watched(self._watch, lease, now)
        if self._may_stand and rules.may_take_over(self._watch, now):
            return self._take(lease)
        renewed = (
            before is not None and before is not self._watch and _term_of(before) == _term_of(self._watch)
        )
        if _term_of(before) != _term_of(self._watch) or (renewed and not self.follows_living):
            self.follows_living = renewed
            self._tell()
        return rules.next_look_s(self._watch, now)

    def _take(self, seen: Lease | None) -> float:
        sent_at = self._clock()
        mine = self._book.take(seen, self._holder, self._url, self._fingerprint)
        if mine is None:
            return RETRY_S
        log.info("this orchestrator leads now, in term %d", mine.term)
        self._heard_at = self._clock()
        self._watch = LeaseWatch(lease=mine, since=self._heard_at)
        self._sent_at = sent_at
        self._term = mine.term
        self.follows_living = False
        self._tell()
        return rules.RENEW_EVERY_S

    def _renew(self, term: int) -> float:
        sent_at = self._clock()
        if self._book.renew(term):
            self._sent_at = sent_at
            self._heard_at = self._clock()
            return rules.RENEW_EVERY_S
        log.warning("another orchestrator leads now; the term %d of this one is over", term)
        self._term = self._sent_at = self._watch = None
        self._tell()
        return 0.0

    def _tell(self) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._tell_in_loop)
        except RuntimeError:
            log.debug("The event loop ended before it heard who leads.")

    def _tell_in_loop(self) -> None:
        self._changed.set()
        if self.on_change:
            self.on_change()


def _term_of(watch: LeaseWatch | None) -> int | None:
    return watch.lease.term if watch and watch.lease and not watch.lease.released else None
