"""Sends everything that an attempt leaves, by one rule for when to try again and when to give up.

A `Courier` calls its sender again and again while the trainer runs, and until all is sent once it has ended.
`RetryRule` decides what follows a failure: an orchestrator that is away is waited for without end, since the
attempt's report could not arrive either; one that answers and takes nothing is waited for only a while once the
trainer has ended, or a job could never end.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.agent.wire.hearings import Hearings
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.trainers.job_files import PASSING

log = logging.getLogger(__name__)

MOST_WHY_CHARS = 500
HEARINGS = 2
"""Before an attempt is believed to be stale: of a new process the first, its registration, takes nothing up again."""


class NothingTaken(Exception):
    """The orchestrator answered, without a complaint, and has no more than before."""


class Unreadable(Exception):
    """What is to be sent cannot be read for now: this machine lacks something, such as another open file."""


class SenderBroke(Exception):
    """A sender failed in a way that nobody had thought of: what it has not sent has reached nobody."""


Failure = Unreachable | Refused | NothingTaken | Unreadable | SenderBroke


class RetryRule(Struct, frozen=True, kw_only=True):
    """Decides what follows a failed try to send. It is pure: the time is handed to it."""

    patience_s: float
    """How long an attempt that ended waits for an orchestrator that answers and takes nothing."""
    nonsense_is_absence: bool = True
    """Whether an answer that cannot be read is taken as none at all."""
    passing_codes: frozenset[str] = frozenset()
    """Refusals that the next try may end, besides those that say so themselves."""

    def is_away(self, failure: Failure) -> bool:
        if isinstance(failure, TokenRejected):
            return True
        return isinstance(failure, Unreachable) and (self.nonsense_is_absence or not failure.answered)

    def is_final(self, failure: Failure) -> bool:
        if not isinstance(failure, Refused) or isinstance(failure, TokenRejected):
            return False
        return not failure.passing and failure.code not in self.passing_codes

    def gives_up(self, failure: Failure, *, ended: bool, troubled_s: float) -> bool:
        if self.is_away(failure):
            return False
        return self.is_final(failure) or (ended and troubled_s > self.patience_s)


class Sent(StrEnum):
    """Names the result of a sender's try."""

    MORE = "more"
    """There may be more to send at once."""
    ALL = "all"
    """Nothing is left for now."""
    DONE = "done"
    """Nothing is left, and nothing will come."""


class Courier:
    """Sends one kind of thing for one attempt. It is `over` once nothing more will be sent."""

    def __init__(
        self,
        name: str,
        send: Callable[[bool], Awaitable[Sent]],
        rule: RetryRule,
        hearings: Hearings,
        *,
        look_every_s: float | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` is told whether the trainer had ended before; without `look_every_s` it is called when woken alone."""
        self._name, self._send, self._rule, self._hearings = name, send, rule, hearings
        self._heard_since = 0
        """How many hearings were waited for since its attempt was refused as stale."""
        self._look_every_s, self._clock = look_every_s, clock
        self._backoff = backoff or Backoff(0.25, 10.0)
        self._troubled_since: float | None = None
        self._wakeup = asyncio.Event()
        self.ended = asyncio.Event()
        self.over = asyncio.Event()
        self.cut_short = False
        """It was stopped before all was sent."""
        self.trouble: Failure | None = None
        """What is in the way now."""
        self.gave_up: Failure | None = None
        """Why something that was wanted is not sent."""

    def trainer_ended(self, patience_s: float | None = None) -> None:
        """Allows giving up from now on; `patience_s` says after how long, where the usual is too short."""
        if patience_s is not None:
            self._rule = replace(self._rule, patience_s=patience_s)
        self.ended.set()
        self.wake()

    def stop(self) -> None:
        """Stops sending, because there is no more time: what was not sent stays here."""
        self.cut_short = self.cut_short or not self.over.is_set()
        self.over.set()
        self.trainer_ended()

    def wake(self) -> None:
        """Makes it try at once, because there is something new to send."""
        self._wakeup.set()

    def went_well(self) -> None:
        """Resets patience and pauses, because something arrived."""
        self._troubled_since = None
        self._heard_since = 0
        self.trouble = None
        self._backoff.reset()

    async def run(self) -> None:
        """Returns when the trainer has ended and all is sent, nobody wants it any more, or it is told to stop."""
        try:
            while not self.over.is_set() and await self.send_once():
                pass
        except Exception as error:
            if not self.over.is_set():
                self.gave_up = SenderBroke(f"{type(error).__name__}: {error}"[:MOST_WHY_CHARS])
            raise
        finally:
            self.over.set()

    async def send_once(self) -> bool:
        """Makes one try and the pause after it. Returns False when there is nothing left to do, now and ever."""
        self._wakeup.clear()
        try:
            sent = await self._send(self.ended.is_set())
        except (Unreachable, Refused, NothingTaken) as failure:
            return await self._after(failure)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            return await self._after(Unreadable(str(error)[:MOST_WHY_CHARS]))
        self.went_well()
        if sent is Sent.ALL:
            await pause(self._look_every_s, self._wakeup)
        return sent is not Sent.DONE

    async def _after(self, failure: Failure) -> bool:
        if _is_stale(failure) and await self._is_heard_meanwhile():
            return True
        now = self._clock()
        self.trouble = failure
        if self._rule.is_away(failure):
            self._troubled_since = None
            log.debug("%s waits: %s", self._name, failure)
        elif self._troubled_since is None:
            self._troubled_since = now
        troubled_s = 0.0 if self._troubled_since is None else now - self._troubled_since
        if self._rule.gives_up(failure, ended=self.ended.is_set(), troubled_s=troubled_s):
            _tell_given_up(self._name, failure)
            if not _is_stale(failure):
                self.gave_up = failure
            return False
        await pause(self._backoff.next_s(), self.over)
        return True

    async def _is_heard_meanwhile(self) -> bool:
        """Waits, before it believes that its attempt is stale, until the orchestrator has heard that it is held here.

        It was thought lost while this worker was cut off. If nobody else has the job by then, it goes on.
        """
        hearing = self._hearings.next() if self._heard_since < HEARINGS else None
        if hearing is None:
            return False
        self._heard_since += 1
        waits = [asyncio.create_task(event.wait()) for event in (hearing, self.over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return True


def _is_stale(failure: Failure) -> bool:
    return isinstance(failure, Refused) and failure.code == "stale_attempt"


def _tell_given_up(name: str, failure: Failure) -> None:
    if _is_stale(failure):
        log.info("%s: this attempt is not the job's newest any more: no more is sent", name)
    else:
        log.warning("%s: no more is sent: %s", name, failure)


async def pause(seconds: float | None, unless: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()


class AttemptSender(Protocol):
    """Sends something for one attempt."""

    @property
    def over(self) -> asyncio.Event: ...
    def stop(self) -> None: ...
    async def run(self) -> None: ...


S = TypeVar("S", bound=AttemptSender)
E = TypeVar("E")


class SendersByAttempt(Generic[S]):
    """Runs the senders of one kind for all attempts on this machine.

    They begin with their attempts, whose reports wait for them.
    """

    def __init__(self, kind: str, on_over: Callable[[], None]) -> None:
        """`on_over` is called whenever one of them may have become the last that a report waits for."""
        self._kind, self._on_over = kind, on_over
        self._senders: dict[Turn, tuple[S, asyncio.Task[None]]] = {}

    def begin(
        self, turn: Turn, sender: S, ending: Awaitable[E], when_ended: Callable[[E], None]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(_run_until_ended(sender, ending, when_ended))
        task.add_done_callback(self._is_over)
        self._senders[turn] = (sender, task)
        return task

    def get(self, turn: Turn) -> S | None:
        entry = self._senders.get(turn)
        return entry[0] if entry else None

    def all(self) -> list[S]:
        return [sender for sender, _ in self._senders.values()]

    def are_over(self, turn: Turn) -> bool:
        """Returns whether the attempt's report may go: whatever was to arrive before it has, or will not."""
        sender = self.get(turn)
        return sender is None or sender.over.is_set()

    def hurry(self) -> None:
        """Stops all of them, because there is no more time: what was not sent stays here."""
        for sender in self.all():
            sender.stop()
        self._on_over()

    def forget(self, turn: Turn) -> None:
        entry = self._senders.pop(turn, None)
        if entry:
            entry[0].stop()
            entry[1].cancel()

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            log.error("%s failed", self._kind, exc_info=task.exception())
        self._on_over()


async def _run_until_ended(
    sender: AttemptSender, ending: Awaitable[E], when_ended: Callable[[E], None]
) -> None:
    async with asyncio.TaskGroup() as both:
        sending = both.create_task(sender.run())
        when_ended(await ending)
        await sending
