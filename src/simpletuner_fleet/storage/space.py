"""Watches the disk of the blobs and the database, so that no upload takes the space that the database needs."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from simpletuner_fleet.core.errors import StorageLow
from simpletuner_fleet.core.free_space import MIB, Marks, Use, check_room, marks_for

log = logging.getLogger(__name__)

MEASURED_FOR_S = 1.0
MEASURED_FOR_BYTES = 64 * MIB
LOOK_EVERY_S = 2.0
RESERVE_BYTES = 64 * MIB
RELEASED_BELOW_BYTES = 32 * MIB
"""With less than this free a database cannot be sure of its next commits."""
Measure = Callable[[Path], tuple[int, int]]


def disk_of(folder: Path) -> tuple[int, int]:
    """Returns the bytes that are free to us, and the size of the disk."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


class SpaceWatch:
    """Tells whether the disk has room for more. Without a folder nothing is refused."""

    def __init__(
        self,
        folder: Path | None = None,
        least_free_bytes: int | None = None,
        measure: Measure = disk_of,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._least_free_bytes = least_free_bytes
        self._measure = measure
        self._monotonic = monotonic
        self._measured_at = float("-inf")
        self._written_bytes = 0
        self._free_bytes = self._total_bytes = 0
        self.is_kept = False
        """A keeper measures the disk all the time. Nobody else does then: a disk may not answer, and who asks here is the
        event loop."""
        self._marks = Marks(uploads=0, logs=0)

    def check(self, use: Use, more_bytes: int) -> None:
        """Raises StorageLow where there is no room for so many more bytes.

        A disk that cannot be measured refuses nothing.
        """
        if self._folder is None:
            return
        self._written_bytes += more_bytes
        now = self._monotonic()
        is_old = now - self._measured_at > MEASURED_FOR_S or self._written_bytes > MEASURED_FOR_BYTES
        if is_old and not (self.is_kept and self._measured_at > float("-inf")):
            self.look()
            self._written_bytes = more_bytes
        check_room(use, self._free_bytes, self._written_bytes, self._marks)

    def is_low(self) -> bool:
        try:
            self.check(Use.UPLOADS, 0)
        except StorageLow:
            return True
        return False

    def disk(self) -> tuple[int, int] | None:
        """Returns the free bytes and the size of the disk; None where there is no folder, or it cannot be measured."""
        if self._folder is None:
            return None
        self.is_low()  # It measures the disk where that was not done just now.
        return (self._free_bytes, self._total_bytes) if self._total_bytes else None

    def left_free_bytes(self) -> int | None:
        """Returns how many bytes uploads leave free; None where nothing is refused."""
        if self._folder is None:
            return None
        self.is_low()  # It measures the disk where that was not done just now.
        return self._marks.uploads

    def look(self) -> None:
        """Measures the disk, however long that takes."""
        if self._folder is None:
            return
        written_bytes, now = self._written_bytes, self._monotonic()
        try:
            self._free_bytes, self._total_bytes = self._measure(self._folder)
        except OSError as error:
            log.warning("the free space of %s cannot be told: %s", self._folder, error)
            self._free_bytes, self._total_bytes = 2**63, 0
        self._marks = marks_for(self._total_bytes, self._least_free_bytes)
        self._measured_at = now
        self._written_bytes -= written_bytes


class Reserve:
    """Keeps a file that takes up space which only the database may have.

    It is deleted when the disk is full all the same, whoever has filled it, so that jobs can still be cancelled and
    data deleted.
    """

    def __init__(self, folder: Path, size: int = RESERVE_BYTES, measure: Measure = disk_of) -> None:
        self._file = folder / "reserve"
        self._size = size
        self._measure = measure
        self._told = False

    def look_once(self) -> None:
        free, _ = self._measure(self._file.parent)
        held = self._held()
        if held and free < RELEASED_BELOW_BYTES:
            self._file.unlink(missing_ok=True)
            log.critical("the disk of %s is full: the database's reserve was given up", self._file.parent)
        elif not held and free > RELEASED_BELOW_BYTES + 4 * self._size:
            self._take()

    def _held(self) -> bool:
        with suppress(OSError):
            return self._file.stat().st_blocks * 512 >= self._size
        return False

    def _take(self) -> None:
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size)
        except OSError as error:
            self._file.unlink(missing_ok=True)
            if not self._told:
                log.warning("no reserve can be kept for the database in %s: %s", self._file.parent, error)
            self._told = True
        finally:
            os.close(descriptor)


class SpaceKeeper:
    """Checks the disk periodically: it logs when space becomes scarce, and keeps the reserve."""

    def __init__(self, watch: SpaceWatch, reserve: Reserve | None) -> None:
        self._watch = watch
        self._reserve = reserve
        self._low = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch.is_kept = True
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._watch.is_kept = False
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def look_once(self) -> None:
        self._watch.look()
        low = self._watch.is_low()
        if low != self._low:
            self._low = low
            log.log(
                logging.ERROR if low else logging.INFO,
                "the disk is nearly full: uploads wait" if low else "the disk has room again: uploads go on",
            )
        if self._reserve:
            self._reserve.look_once()

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.look_once)
            except OSError as error:
                log.warning("the disk cannot be looked at: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)
