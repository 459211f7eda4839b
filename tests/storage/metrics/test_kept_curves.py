"""Curves whose records are not in order: each step counts once, and nobody else waits while that is found out."""

import math
import random
import time

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.training.bands import Bucket
from simpletuner_fleet.storage.metrics import kept_curves, metric_files
from simpletuner_fleet.storage.metrics.kept_curves import EVERYTHING, KeptCurve
from simpletuner_fleet.storage.metrics.metric_files import RECORD

KEY = "metrics/a_1/loss"
Records = list[tuple[int, float, float]]


class CountingBlobs(MemoryBlobs):
    """Counts what is read."""

    read_bytes = 0

    async def read(self, key: str, start: int, length: int) -> bytes:
        content = await super().read(key, start, length)
        self.read_bytes += len(content)
        return content

    async def add(self, records: Records) -> None:
        content = b"".join(RECORD.pack(*record) for record in records)
        await self.append(KEY, await self.size(KEY), content)


def curve_of(*, by_time: bool = False) -> KeptCurve:
    return KeptCurve([KEY], [math.inf], by_time, EVERYTHING)


async def shown(records: Records, *, by_time: bool) -> list[Bucket]:
    """Returns the curve of records that were stored in order."""
    blobs, curve = CountingBlobs(), curve_of(by_time=by_time)
    await blobs.add(records)
    assert not await curve.follow(blobs)
    return curve.band.shown(50)[1]


async def test_after_a_step_that_stands_there_twice_only_what_is_added_is_read() -> None:
    blobs, curve = CountingBlobs(), curve_of()
    await blobs.add([(step, float(step), 0.5) for step in (*range(1_000), 999, 1_000)])
    assert await curve.follow(blobs)
    blobs.read_bytes = 0
    for step in range(1_001, 1_101):
        await blobs.add([(step, float(step), 0.5)])
        assert not await curve.follow(blobs)
    assert blobs.read_bytes == 100 * RECORD.size
    assert curve.band.count == 1_101


async def test_however_records_are_mixed_up_the_curve_is_as_if_they_had_come_in_order() -> None:
    for seed in range(20):
        chance, by_time = random.Random(seed), bool(seed % 2)
        blobs, curve, stored = CountingBlobs(), curve_of(by_time=by_time), Records()
        for _ in range(chance.randrange(1, 8)):
            first = chance.randrange(100)
            steps = [chance.randrange(100) if chance.random() < 0.1 else first + at for at in range(20)]
            added = [(step, 1_000.0 + step, chance.random()) for step in steps]
            await blobs.add(added)
            stored += added
            await curve.follow(blobs)
        last_of_each = {step: (step, at, value) for step, at, value in stored}
        expected = await shown([last_of_each[step] for step in sorted(last_of_each)], by_time=by_time)
        assert curve.band.count == len(last_of_each)
        assert curve.band.shown(50)[1] == expected, seed


async def test_a_long_curve_out_of_order_does_not_keep_the_loop_busy() -> None:
    blobs, curve = CountingBlobs(), curve_of()
    await blobs.add([(at // 2, float(at), 1.0) for at in range(200_000)])
    began = time.thread_time()
    assert await curve.follow(blobs)
    assert time.thread_time() - began < 0.2
    assert curve.band.count == 100_000


async def test_steps_in_a_hostile_order_are_read_a_few_times_and_shown_nearly_whole() -> None:
    blobs, curve = CountingBlobs(), curve_of()
    steps, at_once = 100_000, 1_000
    for last in range(steps, 0, -at_once):
        await blobs.add([(step, float(step), 0.5) for step in range(last, last - at_once, -1)])
        await curve.follow(blobs)
        assert curve.band.count >= (steps - last) * 7 // 8
    assert blobs.read_bytes <= 15 * steps * RECORD.size
    whole = curve_of()
    assert await whole.follow(blobs)
    assert whole.band.count == steps


async def test_what_comes_in_order_is_shown_at_once_whatever_else_came() -> None:
    blobs, curve = CountingBlobs(), curve_of()
    await blobs.add([(step, float(step), 0.5) for step in range(1_000, 2_000)])
    await curve.follow(blobs)
    for step in range(100):
        await blobs.add([(step, float(step), 0.5), (2_000 + step, float(2_000 + step), 0.5)])
        await curve.follow(blobs)
    assert curve.band.shown(5_000)[1][-1].step == 2_099
    assert curve.band.count >= 1_100
    assert blobs.read_bytes <= 25 * 1_200 * RECORD.size


class FailsOnce(CountingBlobs):
    fails_from: int | None = None

    async def read(self, key: str, start: int, length: int) -> bytes:
        if self.fails_from is not None and start >= self.fails_from:
            self.fails_from = None
            raise OSError("the disk does not answer")
        return await super().read(key, start, length)


async def test_a_reading_anew_that_fails_leaves_no_hole_in_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kept_curves, metric_files):
        monkeypatch.setattr(module, "READ_BYTES", 10 * RECORD.size)
    blobs, curve = FailsOnce(), curve_of()
    await blobs.add([(step, float(step), 0.5) for step in (*range(100), 50, *range(100, 150))])
    blobs.fails_from = 140 * RECORD.size
    with pytest.raises(OSError, match="does not answer"):
        await curve.follow(blobs)
    await curve.follow(blobs)
    assert curve.band.count == 150
