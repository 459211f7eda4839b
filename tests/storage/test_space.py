"""Room on the disk: who waits first, and what is kept for the database."""

import threading
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StorageLow
from simpletuner_fleet.core.free_space import GIB, MIB, Marks, Use, check_room, marks_for
from simpletuner_fleet.storage.space import RELEASED_BELOW_BYTES, Reserve, SpaceKeeper, SpaceWatch
from tests.delivery.receivers import until


class Disk:
    def __init__(self, free: int, total: int = 1000 * GIB) -> None:
        self.free, self.total, self.looks = free, total, 0

    def __call__(self, folder: Path) -> tuple[int, int]:
        self.looks += 1
        return self.free, self.total


class Ticks:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_uploads_stop_before_logs_and_both_before_the_disk_is_full() -> None:
    marks = marks_for(1000 * GIB)
    assert marks == Marks(uploads=10 * GIB, logs=2 * GIB)
    assert marks_for(100 * MIB) == Marks(uploads=5 * MIB, logs=MIB)
    assert marks_for(1000 * GIB, 3 * GIB).uploads == 3 * GIB
    check_room(Use.UPLOADS, 10 * GIB, 0, marks)
    with pytest.raises(StorageLow, match="uploads are paused"):
        check_room(Use.UPLOADS, 10 * GIB, 1, marks)
    check_room(Use.LOGS, 10 * GIB - 1, 0, marks)
    with pytest.raises(StorageLow):
        check_room(Use.LOGS, 2 * GIB - 1, 0, marks)


def test_what_is_written_between_two_looks_is_counted() -> None:
    disk, ticks = Disk(10 * GIB + 100 * MIB), Ticks()
    watch = SpaceWatch(Path(), measure=disk, monotonic=ticks)
    watch.check(Use.UPLOADS, 60 * MIB)
    disk.free -= 60 * MIB
    watch.check(Use.UPLOADS, 40 * MIB)
    with pytest.raises(StorageLow):
        watch.check(Use.UPLOADS, 1 * MIB)
    assert disk.looks == 2, "it is not measured for each piece"
    disk.free, ticks.at = 50 * GIB, 2.0
    watch.check(Use.UPLOADS, 1 * MIB)


def test_without_a_folder_or_a_measure_nothing_is_refused(tmp_path: Path) -> None:
    SpaceWatch().check(Use.UPLOADS, 2**60)
    SpaceWatch(tmp_path / "nowhere").check(Use.UPLOADS, 1)


def test_the_reserve_is_given_up_when_the_disk_is_full_and_taken_back_later(tmp_path: Path) -> None:
    disk = Disk(10 * GIB)
    reserve = Reserve(tmp_path, 1 * MIB, disk)
    reserve.look_once()
    held = tmp_path / "reserve"
    assert held.stat().st_blocks * 512 >= 1 * MIB
    disk.free = RELEASED_BELOW_BYTES - 1
    reserve.look_once()
    assert not held.exists()
    reserve.look_once()
    assert not held.exists()
    disk.free = 10 * GIB
    reserve.look_once()
    assert held.exists()


def test_it_is_told_once_when_room_becomes_scarce(caplog: pytest.LogCaptureFixture) -> None:
    disk, ticks = Disk(1 * GIB), Ticks()
    keeper = SpaceKeeper(SpaceWatch(Path(), measure=disk, monotonic=ticks), None)
    for _ in range(3):
        ticks.at += 2
        keeper.look_once()
    assert caplog.text.count("nearly full") == 1


async def test_a_disk_that_does_not_answer_stops_nobody_who_asks_for_room() -> None:
    over, asked = threading.Event(), threading.Event()
    disk, ticks = Disk(100 * GIB), Ticks()

    def measure(folder: Path) -> tuple[int, int]:
        if ticks.at > 0:
            asked.set()
            over.wait(10)
        return disk(folder)

    watch = SpaceWatch(Path(), measure=measure, monotonic=ticks)
    watch.check(Use.UPLOADS, 1)
    keeper = SpaceKeeper(watch, None)
    ticks.at = 100.0
    keeper.start()
    try:
        await until(asked.is_set)
        began = threading.Timer(
            5.0, over.set
        )  # so that a server that asks the disk itself is stopped for a while
        began.start()
        watch.check(Use.UPLOADS, 100 * MIB)
        assert not watch.is_low()
        assert watch.disk() == (100 * GIB, 1000 * GIB)
        assert not over.is_set()
        began.cancel()
        with pytest.raises(StorageLow):
            watch.check(Use.UPLOADS, 90 * GIB)
    finally:
        over.set()
        await keeper.stop()
