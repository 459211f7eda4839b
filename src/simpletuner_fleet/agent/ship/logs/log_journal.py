"""Records which bytes of a trainer's output are sent, and when they were seen, in a file that only grows.

The output itself stays as it is; a record names bytes of it and their place in what is sent. So a later process goes
on where an earlier one was killed, and memory does not grow with the output.
"""

import contextlib
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.agent.ship.hole_punching import reserve
from simpletuner_fleet.agent.ship.logs.log_fold import ByteRange

_FORMAT = struct.Struct("<BBHIQQd")
_LOW_BITS = 32
"""Of a length: older workers wrote no more of it, and zeros for the rest."""
_BATCH = 1024
_AHEAD_BYTES = 16 * 1024
"""Reserved for the next records: a job that has filled the disk must have its end noted, or nothing of it could go."""
MOST_SOURCES = 256
"""A record has one byte for its file."""


class NotRecorded(OSError):
    """A record could not be written: what it names counts as never seen."""


class Record(NamedTuple):
    source: int
    """Which of the stream's files."""
    folding: bool
    length: int
    raw: int
    """Where in that file."""
    sent: int
    """Where in what is sent."""
    at: float


class NotedContent(NamedTuple):
    number: int
    """Which content of its file, counted from 1."""
    begins: int
    """Where in what is sent."""


class Journal:
    """Records what of a trainer's output is sent.

    It has one writer, and is read by offsets of what is sent.
    """

    def __init__(self, path: Path) -> None:
        """It is empty until it is opened."""
        self._path = path
        self._file = -1
        self._count = 0
        self._reserved = 0
        """Up to here there is room for records, or was asked for."""
        self.resumed = False
        """An earlier process has begun it."""
        self.size = 0
        """Bytes to send, as far as that is decided."""

    def open(self) -> None:
        """Goes on where an earlier process ended. Raises OSError, and may then be called again.

        What follows a record that a disk has spoiled (zeros, after a power cut) counts as never noted.
        """
        if self._file >= 0:
            return
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(self._file).st_size
            self._count = size // _FORMAT.size
            self._count = self._sound()
            if size != self._count * _FORMAT.size:  # which gives up what is reserved
                os.ftruncate(self._file, self._count * _FORMAT.size)
            self._reserve_ahead()
            last = self._record(self._count - 1) if self._count else None
        except BaseException:
            self._count = 0
            self.close()
            raise
        self.resumed = last is not None
        # Last, because another thread reads what lies below it.
        self.size = last.sent + last.length if last else 0

    def _sound(self) -> int:
        """Returns how many records follow one another from the first."""
        count = sent = 0
        for record in self._from(0):
            if record.sent != sent or record.length <= 0 or not math.isfinite(record.at):
                break
            count, sent = count + 1, sent + record.length
        return count

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def add(self, source: int, kept: list[ByteRange]) -> None:
        """Raises NotRecorded where there is no room for all of it, and keeps none then."""
        records, size = [], self.size
        for start, end, at, folding in kept:
            high, low = divmod(end - start, 1 << _LOW_BITS)
            records.append(_FORMAT.pack(source, folding, high, low, start, size, at))
            size += end - start
        try:
            self._write(memoryview(b"".join(records)))
        except OSError as error:
            with contextlib.suppress(OSError):  # or a next process would read them after those of a later try
                os.ftruncate(self._file, self._count * _FORMAT.size)
            raise NotRecorded(error.errno, error.strerror) from error
        self._count += len(records)
        self.size = size
        self._reserve_ahead()

    def _reserve_ahead(self) -> None:
        end = self._count * _FORMAT.size
        if self._reserved - end < _AHEAD_BYTES // 2:
            self._reserved = end + _AHEAD_BYTES
            reserve(self._file, end, self._reserved)

    def _write(self, data: memoryview) -> None:
        place = self._count * _FORMAT.size
        while data:
            written = os.pwrite(self._file, data, place)
            place, data = place + written, data[written:]

    def newest_by_source(self) -> dict[int, Record]:
        return {record.source: record for record in self._from(0)}

    def newest_contents(self) -> dict[int, NotedContent]:
        """Returns the newest content of each file of which anything is noted: one that was emptied has had several."""
        newest: dict[int, NotedContent] = {}
        for record in self._from(0):
            before = newest.get(record.source)
            if record.raw == 0 or before is None:
                newest[record.source] = NotedContent(before.number + 1 if before else 1, record.sent)
        return newest

    def records_at(self, sent: int) -> Iterator[Record]:
        """Yields records from the one that holds this byte on."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._record(middle).sent <= sent:
                low = middle + 1
            else:
                high = middle
        yield from self._from(max(0, low - 1))

    def _from(self, index: int) -> Iterator[Record]:
        while index < self._count:
            count = min(_BATCH, self._count - index)
            data = os.pread(self._file, count * _FORMAT.size, index * _FORMAT.size)
            for fields in _FORMAT.iter_unpack(data):
                yield _record_of(*fields)
            index += count

    def _record(self, index: int) -> Record:
        return _record_of(*_FORMAT.unpack(os.pread(self._file, _FORMAT.size, index * _FORMAT.size)))


def _record_of(source: int, folding: int, high: int, low: int, raw: int, sent: int, at: float) -> Record:
    return Record(source, bool(folding), (high << _LOW_BITS) + low, raw, sent, at)
