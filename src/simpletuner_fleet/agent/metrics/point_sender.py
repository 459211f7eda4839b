"""Sends the points of an attempt's files, each once.

They are counted in the order they are sent, so files whose points may come in another order the next time need a
count of their own.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.metrics.metric_files import MetricFile, PointBatch
from simpletuner_fleet.agent.metrics.reading_time import AT_ONCE_S, ReadingTime
from simpletuner_fleet.agent.metrics.tensorboard import EventFile, EventFolder
from simpletuner_fleet.agent.wire.errors import Refused, TokenRejected, Unreachable
from simpletuner_fleet.core.training.metrics import Point
from simpletuner_fleet.protocol.metrics import MAX_BATCH, MetricPoint, to_wire

log = logging.getLogger(__name__)

AFTER_END_S = 120.0
"""How long numbers are read after their trainer's end, however long they take to arrive."""
Post = Callable[[int, Sequence[MetricPoint]], Awaitable[int]]
"""Takes how many went before, and the points; answers how many are stored then."""


class _Place(Struct):
    offset: int
    tail: str


class _Sent(Struct):
    """Records how many points were sent, and how far each file was read, so that a later process can go on."""

    next: int
    files: dict[str, _Place]


class _Gathered(NamedTuple):
    pieces: list[tuple[MetricFile | EventFile, PointBatch]]
    more: bool
    took_s: float

    @property
    def points(self) -> list[Point]:
        return [point for _, piece in self.pieces for point in piece.points]


class PointSender:
    def __init__(
        self,
        job_id: str,
        files: Sequence[Path],
        sent: Path,
        post: Post,
        *,
        events: EventFolder | None = None,
        ended: Callable[[], bool] = lambda: False,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job_id, self._sent, self._post = job_id, sent, post
        self._files: list[MetricFile | EventFile] = [MetricFile(path) for path in files]
        self._first = 0
        self._events, self._ended, self._clock = events or EventFolder(None, since=0), ended, clock
        self._stopped, self._time = stopped, ReadingTime(AFTER_END_S, stopped)
        self._found_nothing_s = 0.0
        self._looks_for_events = True
        self._places: dict[str, _Place] = {}
        self._next = 0
        self._takes_points = True
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> None:
        """Loads what an earlier process of this agent had sent."""
        async with self._one_at_a_time:
            await asyncio.to_thread(self._load)

    async def send_all(self) -> None:
        async with self._one_at_a_time:
            self._found_nothing_s, self._looks_for_events = 0.0, True
            while self._takes_points and not self._stopped() and await self._send_points():
                pass

    async def _send_points(self) -> bool:
        """Sends a batch; returns whether there may be more at once."""
        gathered = await asyncio.to_thread(self._gather)
        points = gathered.points
        if points:
            stored = await self._send(points)
            if stored is None:
                return False
            if stored < self._next:
                self._start_over(stored)
                return True
            if stored < self._next + len(points):
                raise Unreachable(ValueError(f"only {stored} points were kept"), refused=False)
        for file, piece in gathered.pieces:
            file.take(piece)
        self._next += len(points)
        if points:
            await asyncio.to_thread(self._save)
        return gathered.more and self._reads_on(gathered)

    def _reads_on(self, gathered: _Gathered) -> bool:
        """Tells whether to go on at once. While its trainer runs, a file in which nothing is found can wait.

        Only what was taken counts: an orchestrator that is away has the same read again and again.
        """
        if not self._ended():
            self._found_nothing_s += 0.0 if gathered.points else gathered.took_s
            return self._found_nothing_s < AT_ONCE_S
        self._time.count_after_end(gathered.took_s)
        if self._time.is_over:
            log.warning("job %s: there was no time to read all of its numbers", self._job_id)
            self._takes_points = False
        return self._takes_points

    async def _send(self, points: Sequence[Point]) -> int | None:
        """Returns how many the orchestrator has then; None where it wants no more."""
        try:
            return await self._post(self._next, [self._on_wire(point) for point in points])
        except Refused as problem:
            if isinstance(problem, TokenRejected) or problem.passing or problem.code == "stale_attempt":
                raise
            log.warning(
                "job %s: the orchestrator takes no more of its numbers: %s", self._job_id, problem.detail
            )
            self._takes_points = False
            return None

    def _start_over(self, stored: int) -> None:
        """Sends everything again from the start; the orchestrator skips what it already has."""
        log.warning("job %s: the orchestrator has only %d points: sent again", self._job_id, stored)
        self._next = 0
        for file in self._files:
            file.rewind()

    def _on_wire(self, point: Point) -> MetricPoint:
        values = {key: to_wire(value) for key, value in point.values.items()}
        return MetricPoint(step=point.step, at=self._clock() if point.at is None else point.at, values=values)

    def _gather(self) -> _Gathered:
        pieces: list[tuple[MetricFile | EventFile, PointBatch]] = []
        self._time.begin()
        self._find_events()
        room = MAX_BATCH
        files = [*self._files[self._first :], *self._files[: self._first]]
        unread = len(files)
        for file in files:
            piece = file.peek(room)
            unread -= 1
            if piece:
                room -= len(piece.points)
                pieces.append((file, piece))
            if piece and piece.read_bytes and unread and self._time.is_up():
                # The others are the first the next time, or one that is slow would keep them waiting to its end.
                self._first = (self._first + len(files) - unread) % len(files)
                break
        more = unread > 0 or any(piece.more for _, piece in pieces)
        return _Gathered(pieces, more, self._time.spent_s())

    def _find_events(self) -> None:
        """Adds new files; after the trainer's end one look is enough, since nothing appears any more."""
        at_once, self._looks_for_events = self._ended() and self._looks_for_events, False
        for file in self._events.look(at_once=at_once):
            place = self._places.get(file.name)
            if place:
                file.restore(place.offset, bytes.fromhex(place.tail))
            self._files.append(file)

    def _load(self) -> None:
        try:
            sent = msgspec.json.decode(self._sent.read_bytes(), type=_Sent)
            for file in self._files:
                place = sent.files.get(file.name)
                if place:
                    file.restore(place.offset, bytes.fromhex(place.tail))
        except (OSError, ValueError, msgspec.MsgspecError):
            return
        self._next, self._places = sent.next, sent.files

    def _save(self) -> None:
        files = {file.name: _Place(file.offset, file.tail.hex()) for file in self._files}
        temporary = self._sent.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(_Sent(self._next, files)))
            os.replace(temporary, self._sent)
        except OSError as error:
            log.debug("job %s: how many points were sent is not written down: %s", self._job_id, error)
