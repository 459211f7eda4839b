"""Sends what trainers print: read and timed as it comes, sent from wherever the orchestrator has it.

Reading and sending are apart, so that times stay true while the orchestrator is away.
"""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from simpletuner_fleet.agent.backoff import Backoff
from simpletuner_fleet.agent.client import OrchestratorClient, Refused, TokenRejected, Unreachable
from simpletuner_fleet.agent.inbox import Turn, turn_of
from simpletuner_fleet.agent.log_stream import LogLimits, LogStream, left_out
from simpletuner_fleet.agent.logs import Chunk
from simpletuner_fleet.agent.masking import Mask
from simpletuner_fleet.protocol.messages import JobSubmit

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
LOOK_FOR_RANKS_S = 2.0
MAX_RANKS = 256
PATIENCE_S = 60.0
"""How long an attempt that ended waits for an orchestrator that answers and keeps nothing."""
THREADS = 2
T = TypeVar("T")


class InThread(Protocol):
    """Runs something that blocks, elsewhere."""

    def __call__(self, act: Callable[..., T], /, *args: Any, **choices: Any) -> Awaitable[T]: ...


RankLogs = Callable[[], Mapping[int, Sequence[Path]]]


class LogSources(Struct, frozen=True, kw_only=True):
    """Where an attempt's output is found, and the folder where is kept what of it is sent."""

    output_log: Path
    folder: Path
    rank_logs: RankLogs
    mask: Mask
    unmaskable: bool = False
    """Its secrets are not known any more: what was not sent yet cannot be."""

    def stream(self, rank: int, files: Sequence[Path], limits: LogLimits) -> LogStream:
        return LogStream(files, self.folder / f"sent-{rank}.log-index", limits, self.mask)


class Shipper:
    """One stream of one attempt."""

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
    ) -> None:
        self._job_id, self._epoch, self._rank = offer.job_id, offer.epoch, rank
        self._stream, self._client, self._clock = stream, client, clock
        self._in_thread = in_thread
        self._look_every_s, self._patience_s = look_every_s, patience_s
        self._backoff = backoff or Backoff(0.25, 10.0)
        self._news = asyncio.Event()
        self._all_read = False
        self._troubled_since: float | None = None

    async def run(self, ended: asyncio.Event) -> None:
        """Until all that was printed has arrived, or none of it is wanted any more."""
        reading = asyncio.create_task(self._read(ended))
        try:
            await self._send_all()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            self._stream.close()

    async def withhold(self) -> None:
        """Says how much cannot be sent, where it is not known what to hide."""
        try:
            held = await self._client.send_log(self._job_id, self._epoch, Chunk(0, b""), self._rank)
            gap = max(0, await self._in_thread(self._stream.printed) - held)
            why = " because the worker restarted and does not know any more which secrets to hide"
            if gap:
                chunk = Chunk(held, left_out(gap, why), gap)
                await self._client.send_log(self._job_id, self._epoch, chunk, self._rank)
        except (Unreachable, Refused) as error:
            log.warning("job %s: the rest of its log is not sent: %s", self._job_id, error)
        finally:
            self._stream.close()

    async def _read(self, ended: asyncio.Event) -> None:
        now = 0.0
        while True:
            last = ended.is_set()
            now = max(now, self._clock())
            more = await self._in_thread(self._stream.scan, now, ended=last)
            self._all_read = last and not more
            self._news.set()
            if self._all_read:
                return
            if not more:
                await pause(self._look_every_s, ended)

    async def _send_all(self) -> None:
        offset = 0
        asks_first = self._stream.resumed
        while True:
            self._news.clear()
            all_read = self._all_read
            chunk = await self._in_thread(self._stream.read_chunk, offset, ended=all_read)
            if chunk is None and all_read:
                return
            if chunk is None:
                await self._news.wait()
                continue
            try:
                stored = await self._send(Chunk(0, b"") if asks_first else chunk)
            except (Unreachable, Refused) as error:
                if not self._goes_on_after(error):
                    log.warning("job %s: the rest of its log is not sent: %s", self._job_id, error)
                    return
                await asyncio.sleep(self._backoff.next_s())
                continue
            if stored > offset or asks_first:
                self._troubled_since = None
                self._backoff.reset()
            elif self._gives_up():
                log.warning("job %s: the orchestrator keeps no more of its log", self._job_id)
                return
            else:
                await asyncio.sleep(self._backoff.next_s())
            offset, asks_first = max(0, stored), False

    async def _send(self, chunk: Chunk) -> int:
        return await self._client.send_log(self._job_id, self._epoch, chunk, self._rank)

    def _goes_on_after(self, error: Unreachable | Refused) -> bool:
        """An orchestrator that is away is waited for; one that answers and keeps nothing only for a while."""
        if isinstance(error, TokenRejected):
            return True
        if isinstance(error, Unreachable) and not error.answered:
            return True
        if isinstance(error, Refused) and not error.passing:
            return False
        return not self._gives_up()

    def _gives_up(self) -> bool:
        now = self._clock()
        self._troubled_since = now if self._troubled_since is None else self._troubled_since
        return self._all_read and now - self._troubled_since > self._patience_s


class Logs:
    """The shippers of all attempts on this machine."""

    def __init__(self, client: OrchestratorClient, limits: LogLimits | None = None) -> None:
        self._client = client
        self._limits = limits or LogLimits()
        self._tasks: dict[Turn, asyncio.Task[None]] = {}
        # Few threads of its own: every thread that ever held a large block keeps memory for the next.
        self._threads = ThreadPoolExecutor(THREADS, "logs")
        self.on_over: Callable[[], None] = lambda: None

    def begin(self, offer: JobSubmit, sources: LogSources, ending: Awaitable[object]) -> None:
        task = asyncio.create_task(self._run(offer, sources, ending))
        task.add_done_callback(self._is_over)
        self._tasks[turn_of(offer)] = task

    def task(self, turn: Turn) -> asyncio.Task[None]:
        return self._tasks[turn]

    def are_over(self, turn: Turn) -> bool:
        """Whether all of it has arrived, or never will."""
        found = self._tasks.get(turn)
        return found is None or found.done()

    def hurry(self) -> None:
        """What has not arrived is sent at the next start, where there is one."""
        for task in self._tasks.values():
            task.cancel()
        self.on_over()

    def forget(self, turn: Turn) -> None:
        task = self._tasks.pop(turn, None)
        if task:
            task.cancel()

    async def _run(self, offer: JobSubmit, sources: LogSources, ending: Awaitable[object]) -> None:
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            main = await self._in_thread(sources.stream, 0, [sources.output_log], self._limits)
            shipper = Shipper(offer, 0, main, self._client, in_thread=self._in_thread)
            if sources.unmaskable:
                await ending
                await shipper.withhold()
                return
            tasks.create_task(shipper.run(ended))
            tasks.create_task(self._ship_ranks(offer, sources, ended, tasks))
            await ending
            ended.set()

    async def _ship_ranks(
        self, offer: JobSubmit, sources: LogSources, ended: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:
        """Files of single ranks appear when their processes have started, if at all."""
        known = {0}
        while True:
            last = ended.is_set()
            for rank, files in (await self._in_thread(_found, sources.rank_logs)).items():
                if rank not in known and 0 < rank < MAX_RANKS:
                    known.add(rank)
                    stream = await self._in_thread(sources.stream, rank, files, self._limits)
                    shipper = Shipper(offer, rank, stream, self._client, in_thread=self._in_thread)
                    tasks.create_task(shipper.run(ended))
            if last:
                return
            await pause(LOOK_FOR_RANKS_S, ended)

    async def _in_thread(self, act: Callable[..., T], *args: Any, **choices: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(act, *args, **choices))

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            log.error("sending a log failed", exc_info=task.exception())
        self.on_over()


def _found(rank_logs: RankLogs) -> Mapping[int, Sequence[Path]]:
    try:
        return rank_logs()
    except Exception:  # anybody's plug-in: the main output goes on
        log.exception("a trainer could not say where its ranks write")
        return {}


async def pause(seconds: float, unless: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await unless.wait()
