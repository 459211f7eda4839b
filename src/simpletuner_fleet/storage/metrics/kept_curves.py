"""Keeps curves in memory: each blob is read once, and from then on only what was added to it.

Where what was added is not in order, as after a crash that left some of it there twice, the whole curve is read anew:
then each step counts once, and its last record wins. That is done at once a few times; of a curve that is out of order
again and again, what came late is left out until it is a good part of the whole. So however a worker orders its steps,
all readings together cost a small multiple of what it has sent. Once the attempt has ended, its curve is read whole.
"""

import asyncio
import math
import operator
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.training.bands import Band, Grain, Samples
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.metrics.metric_files import (
    INDEX,
    READ_BYTES,
    RECORD,
    chunks,
    columns,
    gpu_folder,
    metrics_folder,
    whole_records,
)

AT_ONCE_BYTES = 256 * RECORD.size
"""What takes longer leaves the loop to others."""
READ_ANEW_AT_ONCE = 16
"""So often a curve is read anew for whatever came late. A crash of the worker or the server makes that necessary once."""
LATE_PART = 8
"""After that it is read anew once an eighth of its records came late."""
EDITIONS_KNOWN = 64
"""Whoever looks again after this many changes gets everything."""
RUNS_KEPT = 400_000
"""In all bands that are kept in memory, at 40 bytes each."""


class StepSpan(NamedTuple):
    """Describes the range of steps that is asked for; both ends are included."""

    first: int = 0
    last: float = math.inf


EVERYTHING = StepSpan()


class CurvePart(NamedTuple):
    """Describes the part of a job's curve that comes from one attempt."""

    attempt: Attempt
    end_step: float = math.inf
    """From here on a later attempt counts."""


class KeptCurve:
    """Keeps the curve of one key in memory: its band, and how far its blobs have been read."""

    def __init__(
        self, blob_keys: Sequence[str], ends: Sequence[float], by_time: bool, span: StepSpan
    ) -> None:
        self.band = Band()
        self._blob_keys, self._ends = blob_keys, ends
        self._by_time, self._span = by_time, span
        self._at = self._offset = 0
        self._newest = -math.inf
        self._records = self._late = self._times_read_anew = 0

    async def follow(self, blobs: Blobs) -> bool:
        """Reads what was added; returns whether the whole curve had to be read anew."""
        while not self._is_to_be_read_anew:
            chunk = await self._next(blobs)
            if not chunk:
                return False
            self._records += len(chunk) // RECORD.size
            if len(chunk) > AT_ONCE_BYTES:
                await asyncio.to_thread(self._take, chunk)
            else:
                self._take(chunk)
        await self._read_anew(blobs)
        return True

    @property
    def _is_to_be_read_anew(self) -> bool:
        at_once = self._times_read_anew < READ_ANEW_AT_ONCE
        return self._late > 0 and (at_once or self._late * LATE_PART >= self._records)

    async def _next(self, blobs: Blobs) -> bytes:
        """Returns the next records. Only the newest attempt's blob grows: the others are not read again."""
        while True:
            chunk = whole_records(await blobs.read(self._blob_keys[self._at], self._offset, READ_BYTES))
            self._offset += len(chunk)
            if chunk or self._at == len(self._blob_keys) - 1:
                return chunk
            self._at, self._offset = self._at + 1, 0

    def _take(self, chunk: bytes) -> None:
        samples = columns(chunk)
        places: array[int] | array[float] = samples.times if self._by_time else samples.steps
        if not self._newest < places[0] or not all(map(operator.lt, places, places[1:])):
            samples = self._without_late(samples)
        counted = _within(samples, self._span, self._ends[self._at])
        if counted.steps:
            self._newest = (counted.times if self._by_time else counted.steps)[-1]
            self.band.add(counted)

    def _without_late(self, samples: Samples) -> Samples:
        """Leaves out the records that belong before others which have come already, and counts them."""
        places: array[int] | array[float] = samples.times if self._by_time else samples.steps
        least, most = self._span.first, min(self._span.last, self._ends[self._at] - 1)
        newest, in_order = self._newest, []
        for index, step in enumerate(samples.steps):
            if not least <= step <= most:
                continue
            if places[index] > newest:
                newest = places[index]
                in_order.append(index)
            else:
                self._late += 1
        return _chosen(samples, in_order)

    async def _read_anew(self, blobs: Blobs) -> None:
        """Reads all of it. What was known stays known until that is done: a read may fail, and who waits for it may go."""
        ordering = _Ordering(self._by_time, self._span)
        offset = records = 0
        for blob_key, end in zip(self._blob_keys, self._ends, strict=True):
            offset = 0
            async for chunk in chunks(blobs, blob_key):
                offset += len(chunk)
                records += len(chunk) // RECORD.size
                await asyncio.to_thread(ordering.take, chunk, end)
        self._newest, self.band = await asyncio.to_thread(ordering.banded)
        self._at, self._offset = len(self._blob_keys) - 1, offset
        self._records, self._late = records, 0
        self._times_read_anew += 1


class _Ordering:
    """Puts records in the order of their steps or times; of those in one place the last counts."""

    def __init__(self, by_time: bool, span: StepSpan) -> None:
        self._by_time, self._span = by_time, span
        self._samples = Samples(array("Q"), array("d"), array("d"))
        self._by_place: dict[float, int] = {}
        """Where among the samples the last one of each place is."""

    def take(self, chunk: bytes, end: float) -> None:
        samples, first = columns(chunk), len(self._samples.steps)
        self._samples.steps.extend(samples.steps)
        self._samples.times.extend(samples.times)
        self._samples.values.extend(samples.values)
        indices = range(first, first + len(samples.steps))
        places: array[int] | array[float] = samples.times if self._by_time else samples.steps
        if self._span is EVERYTHING and end == math.inf:
            self._by_place.update(zip(places, indices, strict=True))
            return
        least, most = self._span.first, min(self._span.last, end - 1)
        self._by_place.update(
            (place, index)
            for place, index, step in zip(places, indices, samples.steps, strict=True)
            if least <= step <= most
        )

    def banded(self) -> tuple[float, Band]:
        """Returns the last place, and the band of all."""
        places = sorted(self._by_place)
        band = Band()
        band.add(_chosen(self._samples, [self._by_place[place] for place in places]))
        return places[-1] if places else -math.inf, band


def _chosen(samples: Samples, indices: Sequence[int]) -> Samples:
    steps, times, values = samples
    return Samples(
        array("Q", [steps[index] for index in indices]),
        array("d", [times[index] for index in indices]),
        array("d", [values[index] for index in indices]),
    )


def _within(samples: Samples, span: StepSpan, end: float) -> Samples:
    if span is EVERYTHING and end == math.inf:
        return samples
    first = bisect_left(samples.steps, span.first)
    last = bisect_left(samples.steps, min(end, span.last + 1))
    return Samples(samples.steps[first:last], samples.times[first:last], samples.values[first:last])


class KeptJob:
    """Keeps the curves of one job, or of one of its attempts, as far as they have been read."""

    def __init__(
        self,
        reading: int,
        parts: Sequence[CurvePart],
        attempts: Sequence[Attempt],
        span: StepSpan = EVERYTHING,
    ) -> None:
        self.reading = reading
        """Another number for each: what was told of one says nothing of the next."""
        self.edition = 0
        self.bands: dict[str, Band] = {}
        self._curves: dict[str, KeptCurve] = {}
        self._editions: dict[int, dict[str, Grain]] = {}
        self._parts, self._span = parts, span
        self._gpu_parts = [CurvePart(attempt) for attempt in attempts]
        self._asked_once: set[str] = set()

    @property
    def runs(self) -> int:
        return sum(band.runs for band in self.bands.values())

    def grain(self, edition: int, key: str) -> Grain | None:
        return self._editions.get(edition, {}).get(key)

    async def follow(self, blobs: Blobs, only: Collection[str]) -> None:
        await self._find_keys(blobs, self._parts, metrics_folder, False)
        await self._find_keys(blobs, self._gpu_parts, gpu_folder, True)
        for key, curve in self._curves.items():
            if (not only or key in only or key == INDEX) and await curve.follow(blobs):
                self._editions.clear()
            self.bands[key] = curve.band
        grains = {key: band.grain for key, band in self.bands.items()}
        if grains != self._editions.get(self.edition):
            self.edition += 1
            self._editions[self.edition] = grains
            self._editions.pop(self.edition - EDITIONS_KNOWN, None)

    async def _find_keys(
        self, blobs: Blobs, parts: Sequence[CurvePart], folder_of: Callable[[str], str], by_time: bool
    ) -> None:
        """Finds the keys. Only the newest attempt can have new ones: the others are asked once."""
        for part in parts:
            folder = folder_of(part.attempt.id)
            if folder in self._asked_once and part is not parts[-1]:
                continue
            self._asked_once.add(folder)
            for key in await blobs.names(folder):
                if key not in self._curves and not (by_time and key == INDEX):
                    self._curves[key] = KeptCurve(
                        [f"{folder_of(one.attempt.id)}/{key}" for one in parts],
                        [one.end_step for one in parts],
                        by_time,
                        EVERYTHING if by_time else self._span,
                    )


class CurveCache:
    """Caches the curves that were read last, within a bound on their memory."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int | None], tuple[object, KeptJob]] = {}
        self._readings = secrets.randbelow(2**48)

    def next_reading(self) -> int:
        """Returns the next number. The first is random: no number from before a restart may match one from after it."""
        self._readings += 1
        return self._readings

    def get(self, place: tuple[str, int | None], made_of: object) -> KeptJob | None:
        """Returns the cached curves, if they were made of the same attempts."""
        kept = self._kept.pop(place, None)
        if kept is None or kept[0] != made_of:
            return None
        self._kept[place] = kept
        return kept[1]

    def put(self, place: tuple[str, int | None], made_of: object, job: KeptJob) -> None:
        self._kept.pop(place, None)
        self._kept[place] = (made_of, job)
        runs = sum(kept.runs for _, kept in self._kept.values())
        while runs > RUNS_KEPT and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            runs -= self._kept.pop(oldest)[1].runs
