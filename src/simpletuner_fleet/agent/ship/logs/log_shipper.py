"""Sends what trainers print: it is read and timed as it comes, and sent from wherever the orchestrator has it.

Reading and sending are separate, so that times stay true while the orchestrator is away.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.ship.courier import (
    MOST_WHY_CHARS,
    Courier,
    NothingTaken,
    RetryRule,
    Sent,
    pause,
)
from simpletuner_fleet.agent.ship.logs.log_journal import MOST_SOURCES
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits, LogStream, left_out
from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from simpletuner_fleet.agent.ship.masking import Mask
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.job_files import PASSING

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
LOOK_FOR_RANKS_S = 2.0
MAX_RANKS = 256
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and keeps nothing, and for its own machine."""
WITHHELD = " because the worker restarted and does not know any more which secrets to hide"
THREADS = 2
T = TypeVar("T")


class InThread(Protocol):
    """Runs a function that blocks in another thread, as `asyncio.to_thread` does."""

    def __call__(self, act: Callable[..., T], /, *args: Any, **choices: Any) -> Awaitable[T]: ...


RankLogs = Callable[[], Mapping[int, Sequence[Path]]]


class LogSources(Struct, frozen=True, kw_only=True):
    """Names where an attempt's output is written, and the folder that records what of it is sent."""

    output_log: Path
    folder: Path
    rank_logs: RankLogs
    mask: Mask
    unmaskable: bool = False
    """Its secrets are not known any more: what was not sent yet cannot be."""

    def stream(self, rank: int, files: Sequence[Path], limits: LogLimits) -> LogStream:
        return LogStream(files, self.folder / f"sent-{rank}.log-index", limits, self.mask, grows=rank > 0)


class LogShipper:
    """Sends one stream of one attempt's output."""

    def __init__(
        self,
        offer: JobSubmit,
        rank: int,
        stream: LogStream,
        client: OrchestratorClient,
        *,
        in_thread: InThread = asyncio.to_thread,
        look_every_s: float = LOOK_EVERY_S,
        patience_s: float = PATIENCE_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_id, self._epoch, self._rank = offer.job_id, offer.epoch, rank
        self._stream, self._client = stream, client
        self._clock, self._monotonic = clock, monotonic
        self._in_thread = in_thread
        self._look_every_s, self._patience_s = look_every_s, patience_s
        self._offset, self._asked = 0, False
        self._not_read = ""
        """Why something of it cannot be read."""
        self._gave_up_reading = False
        self.results_wait_s: float | None = None
        """Set once the trainer has ended well: its job waits so long for its log."""
        self._withholds = False
        self._withheld: Chunk | None = None
        """What is said instead of what cannot be sent."""
        self._courier = Courier(
            f"job {offer.job_id}: its log",
            self._send_next,
            RetryRule(patience_s=patience_s, nonsense_is_absence=False),
            client.hearings,
            backoff=backoff,
            clock=monotonic,
        )

    async def run(self, ended: asyncio.Event) -> None:
        """Returns when all that was printed and can be read has arrived, or none of it is wanted any more."""
        if self._passed_over:
            log.warning("job %s: %s", self._job_id, self._passed_over)
        reading = asyncio.create_task(self._read(ended))
        try:
            await self._courier.run()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            self._stream.close()

    @property
    def left_something(self) -> bool:
        return self._courier.gave_up is not None or self._gave_up_reading or bool(self._passed_over)

    @property
    def sent_something(self) -> bool:
        return self._offset > 0

    @property
    def trouble(self) -> str:
        return str(self._courier.trouble or self._courier.gave_up or self._not_read or self._passed_over)

    @property
    def _passed_over(self) -> str:
        over = self._stream.files_passed_over
        return f"of {MOST_SOURCES + over} files of rank {self._rank}, {MOST_SOURCES} are sent" if over else ""

    async def withhold(self) -> None:
        """Says how much cannot be sent, where it is not known what to hide; returns when that has arrived."""
        self._withholds = True
        self._courier.trainer_ended(self.results_wait_s)
        try:
            await self._courier.run()
        finally:
            self._stream.close()

    async def _say_withheld(self) -> Sent:
        """Says it once, also where the answer to it was lost, or an agent before this one has said it."""
        stored = await self._client.send_log(self._job_id, self._epoch, Chunk(0, b""), self._rank)
        self._offset = max(0, stored)
        if self._withheld is None:
            withheld = await self._in_thread(self._stream.withheld, self._offset)
            said = left_out(withheld.gap, WITHHELD) if withheld.gap else b""
            self._withheld = Chunk(withheld.offset, said, withheld.gap)
        whole = self._withheld
        left = whole.data[max(0, stored - whole.offset) :]
        if not left:
            return Sent.DONE
        chunk = Chunk(stored, left, whole.gap if stored == whole.offset else 0)
        if await self._client.send_log(self._job_id, self._epoch, chunk, self._rank) <= stored:
            raise NothingTaken(f"the orchestrator keeps no more than {stored} bytes of it")
        return Sent.DONE

    async def _read(self, ended: asyncio.Event) -> None:
        """Reads to the end. Whatever happens, what was read by then is sent, and that ends: a report waits for it."""
        try:
            await self._read_all(ended)
        except Exception as error:
            log.exception("job %s: its log is read no further", self._job_id)
            why = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._not_read, self._gave_up_reading = why[:MOST_WHY_CHARS], True
        self._courier.trainer_ended(self.results_wait_s)

    async def _read_all(self, ended: asyncio.Event) -> None:
        """Raises where it cannot be read for so long after the trainer's end that nothing will change."""
        failing_since: float | None = None
        while True:
            last = ended.is_set()
            try:
                more = await self.read_once(last)
            except OSError as error:
                self._not_read = str(error)[:MOST_WHY_CHARS]
                if last:
                    failing_since = self._monotonic() if failing_since is None else failing_since
                    self._raise_if_for_good(error, self._monotonic() - failing_since)
                await pause(self._look_every_s, self._courier.over if last else ended)
                continue
            self._not_read, failing_since = "", None
            if last and not more:
                return
            if not more:
                await pause(self._look_every_s, ended)

    def _raise_if_for_good(self, error: OSError, failing_s: float) -> None:
        patience_s = self._patience_s if self.results_wait_s is None else self.results_wait_s
        if error.errno not in PASSING or failing_s > patience_s:
            raise error

    async def read_once(self, last: bool) -> bool:
        """Notes what was printed since the last time; returns whether there may be more at once."""
        more = await self._in_thread(self._stream.scan, self._monotonic(), self._clock(), ended=last)
        self._courier.wake()
        return more

    async def send_once(self) -> bool:
        """Sends one chunk, or waits for one. Returns False when nothing is left to do, now and ever."""
        return await self._courier.send_once()

    async def _send_next(self, all_read: bool) -> Sent:
        if self._withholds:
            return await self._say_withheld()
        chunk = await self._in_thread(self._stream.read_chunk, self._offset, ended=all_read)
        if chunk is None:
            return Sent.DONE if all_read else Sent.ALL
        asks, before = self._stream.resumed and not self._asked, self._offset
        stored = await self._client.send_log(
            self._job_id, self._epoch, Chunk(0, b"") if asks else chunk, self._rank
        )
        self._offset, self._asked = max(0, stored), True
        if stored <= before and not asks:
            raise NothingTaken(f"the orchestrator keeps no more than {before} bytes of it")
        return Sent.MORE


class LogShippers:
    """Runs the shippers of all attempts on this machine."""

    def __init__(
        self,
        client: OrchestratorClient,
        limits: LogLimits | None = None,
        on_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._limits = limits or LogLimits()
        self._tasks: dict[Turn, asyncio.Task[None]] = {}
        self._not_sent: set[Turn] = set()
        self._cut_short: set[Turn] = set()
        self._ranks_passed_over: dict[Turn, int] = {}
        """How many ranks have no log, because there are too many."""
        self._shippers: dict[Turn, list[LogShipper]] = {}
        # Few threads of its own: every thread that ever held a large block keeps memory for the next.
        self._threads = ThreadPoolExecutor(THREADS, "logs")
        self._on_over = on_over

    def begin(self, offer: JobSubmit, sources: LogSources, ending: Awaitable[object]) -> None:
        task = asyncio.create_task(self._run(offer, sources, ending))
        task.add_done_callback(self._is_over)
        self._tasks[turn_of(offer)] = task

    def task(self, turn: Turn) -> asyncio.Task[None]:
        return self._tasks[turn]

    def are_over(self, turn: Turn) -> bool:
        """Returns whether all of it has arrived, or never will."""
        task = self._tasks.get(turn)
        return task is None or task.done()

    def left_something(self, turn: Turn) -> bool:
        """Returns whether some of it has not arrived and will not."""
        return turn in self._not_sent or turn in self._ranks_passed_over

    def was_cut_short(self, turn: Turn) -> bool:
        return turn in self._cut_short

    def sent_something(self, turn: Turn) -> bool:
        return any(shipper.sent_something for shipper in self._shippers.get(turn, ()))

    def trouble(self, turn: Turn) -> str:
        trouble = next((one.trouble for one in self._shippers.get(turn, ()) if one.trouble), "")
        over = self._ranks_passed_over.get(turn)
        return trouble or (_too_many_ranks(over) if over else "")

    def hurry(self) -> None:
        """Ends sending: what has not arrived is sent at the next start, where there is one."""
        for turn, task in self._tasks.items():
            if not task.done():
                self._cut_short.add(turn)
            task.cancel()
        self._on_over()

    def forget(self, turn: Turn) -> None:
        self._not_sent.discard(turn)
        self._cut_short.discard(turn)
        self._ranks_passed_over.pop(turn, None)
        self._shippers.pop(turn, None)
        task = self._tasks.pop(turn, None)
        if task:
            task.cancel()

    async def _run(self, offer: JobSubmit, sources: LogSources, ending: Awaitable[object]) -> None:
        turn, ended = turn_of(offer), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            main = sources.stream(0, [sources.output_log], self._limits)
            shipper = LogShipper(offer, 0, main, self._client, in_thread=self._in_thread)
            if sources.unmaskable:
                well = ended_well(await ending)
                for one in [shipper, *await self.find_ranks_once(offer, sources, {})]:
                    one.results_wait_s = offer.results_wait_s if well else None
                    tasks.create_task(self._ship(turn, one, one.withhold))
                return
            tasks.create_task(self._ship(turn, shipper, functools.partial(shipper.run, ended)))
            tasks.create_task(self._ship_ranks(offer, sources, ended, tasks))
            if ended_well(await ending):
                self._wait_for_results(turn, offer.results_wait_s)
            ended.set()

    def _wait_for_results(self, turn: Turn, wait_s: float) -> None:
        for shipper in self._shippers.get(turn, ()):
            shipper.results_wait_s = wait_s

    async def _ship(self, turn: Turn, shipper: LogShipper, send: Callable[[], Awaitable[None]]) -> None:
        self._shippers.setdefault(turn, []).append(shipper)
        try:
            await send()
        except Exception:  # of one log alone: the others go on
            log.exception("job %s: sending a log failed", turn.job_id)
        finally:
            if shipper.left_something:
                self._not_sent.add(turn)

    async def _ship_ranks(
        self, offer: JobSubmit, sources: LogSources, ended: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:
        """Sends the files of single ranks, which appear when their processes have started, or start anew, if at all.

        They are read to their ends after the last look for more of them.
        """
        turn, known, all_there = turn_of(offer), dict[int, LogStream](), asyncio.Event()
        while True:
            last = ended.is_set()
            for shipper in await self.find_ranks_once(offer, sources, known):
                shipper.results_wait_s = next(
                    (one.results_wait_s for one in self._shippers.get(turn, ())), None
                )
                send = functools.partial(shipper.run, all_there)
                tasks.create_task(self._ship(turn, shipper, send))
            if last:
                all_there.set()
                return
            await pause(LOOK_FOR_RANKS_S, ended)

    async def find_ranks_once(
        self, offer: JobSubmit, sources: LogSources, known: dict[int, LogStream]
    ) -> list[LogShipper]:
        """Returns shippers of the ranks that are not `known` yet; they are from now on, and get what is new of theirs."""
        shippers: list[LogShipper] = []
        rank_files = await self._in_thread(_rank_files, sources.rank_logs)
        self._count_passed_over(turn_of(offer), sum(rank >= MAX_RANKS for rank in rank_files))
        for rank, files in rank_files.items():
            if rank in known:
                known[rank].offer(files)
            elif 0 < rank < MAX_RANKS:
                known[rank] = sources.stream(rank, files, self._limits)
                shippers.append(LogShipper(offer, rank, known[rank], self._client, in_thread=self._in_thread))
        return shippers

    def _count_passed_over(self, turn: Turn, count: int) -> None:
        if count > self._ranks_passed_over.get(turn, 0):
            self._ranks_passed_over[turn] = count
            log.warning("job %s: %s", turn.job_id, _too_many_ranks(count))

    async def _in_thread(self, act: Callable[..., T], *args: Any, **choices: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(act, *args, **choices))

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            log.error("sending a log failed", exc_info=task.exception())
        self._on_over()


def _too_many_ranks(count: int) -> str:
    return f"the logs of {count} ranks from rank {MAX_RANKS} on are not sent"


def ended_well(ending: object) -> bool:
    """Returns whether the trainer ended by itself, without an error."""
    return getattr(ending, "reason", None) is EndReason.EXITED and getattr(ending, "exit_code", None) == 0


def _rank_files(rank_logs: RankLogs) -> Mapping[int, Sequence[Path]]:
    try:
        return rank_logs()
    except Exception:  # anybody's plug-in: the main output goes on
        log.exception("a trainer could not say where its ranks write")
        return {}
