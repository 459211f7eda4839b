"""Reads TensorBoard's event files while they are written, without TensorBoard: only the scalars, each record once.

A file is a row of records: length, checksum of the length, content, checksum of the content. The content is an Event in
protobuf's wire format, of which a handful of fields matter here.
"""

import logging
import os
import re
import struct
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from simpletuner_fleet.agent.metrics.metric_files import MOST_BYTES, FollowedFile, PointBatch, tail_at
from simpletuner_fleet.core.training.metrics import LATEST_AT, MAX_KEYS, MAX_STEP, Point, values_of

log = logging.getLogger(__name__)

MOST_RECORD_BYTES = 64 * 1024
"""Longer ones hold images or graphs: they are passed over unread."""
PIECE_BYTES = 64 * 1024
"""A piece of lines may be far longer: these bytes are looked at one by one."""
MOST_FILES = 64
MOST_ENTRIES = 20_000
MOST_DEPTH = 6
SCAN_SHARE = 20.0
"""A folder with many files is looked through seldom: once in twenty times as long as it takes."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_NAME = ".tfevents."
_CHECKPOINT = re.compile(r"checkpoint-\d", re.ASCII)
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C = _table()


def masked_crc32c(data: bytes) -> int:
    """Rotates and shifts the checksum, so that the one of data that holds checksums is no simple one."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + _MASK) & 0xFFFFFFFF


class EventFile(FollowedFile):
    """Follows a TensorBoard event file as MetricFile follows lines.

    A file that was cut or written anew is read from its start again.
    """

    def __init__(self, path: Path, name: str, since: int = 0) -> None:
        """Ignores events of steps before `since`, which are not this attempt's."""
        super().__init__(path, name)
        self._since = since
        self._read_bytes = 0
        """Images are not read: with them a file may be far longer."""

    def peek(self, most: int) -> PointBatch | None:
        file = self._opened()
        if file is None:
            return None
        with file:
            offset = self.offset if self._is_same(file) else 0
            points: list[Point] = []
            read_bytes, more = 0, False
            for record in records(file, offset):
                more = read_bytes >= PIECE_BYTES or len(points) >= most
                if more:
                    break
                offset = record.end
                read_bytes += record.read_bytes
                point = read_event(record.content) if record.content else None
                if point and point.step >= self._since:
                    _add(points, point)
            return PointBatch(points, 0, array("q"), offset, tail_at(file, offset), more, read_bytes)

    def take(self, piece: PointBatch) -> None:
        self.offset, self.tail = piece.offset, piece.tail
        self._read_bytes += piece.read_bytes

    def rewind(self) -> None:
        self.offset, self.tail = 0, b""
        self._read_bytes = 0

    def restore(self, offset: int, tail: bytes) -> None:
        """Goes on from where a process before this one was, if the file is still what it was."""
        if 0 <= len(tail) <= offset:
            self.offset, self.tail = offset, tail

    def _has_too_much(self) -> bool:
        return self._read_bytes >= MOST_BYTES


class EventFolder:
    """Finds the event files beneath a folder as they appear."""

    def __init__(
        self, folder: Path | None, since: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._since, self._clock = folder, since, clock
        self._next_scan = 0.0
        self._known: dict[str, EventFile] = {}

    @property
    def known(self) -> list[EventFile]:
        return list(self._known.values())

    def look(self, *, at_once: bool = False) -> list[EventFile]:
        """Returns the files that are new."""
        began = self._clock()
        if self._folder is None or (began < self._next_scan and not at_once):
            return []
        file_ids = {path.relative_to(self._folder).as_posix(): id for path, id in _event_paths(self._folder)}
        # Only ids that are in use now: a new file may have that of one that was removed.
        known_ids = {id for name, id in file_ids.items() if name in self._known}
        new = []
        for name, id in file_ids.items():
            if name not in self._known and id not in known_ids and len(self._known) < MOST_FILES:
                self._known[name] = EventFile(self._folder / name, _as_text(name), self._since)
                new.append(self._known[name])
                known_ids.add(id)
        self._next_scan = self._clock() + (self._clock() - began) * SCAN_SHARE
        return new


def _as_text(name: str) -> str:
    """Returns a name that can be written down: any bytes may name a folder of a job."""
    return name.encode("utf-8", "backslashreplace").decode()


FileId = tuple[int, int]
"""Device and inode: a file is one file, however many names it has."""


def _event_paths(folder: Path) -> list[tuple[Path, FileId]]:
    """Returns them in the order of their names, which hold when they were begun."""
    paths: list[tuple[Path, FileId]] = []
    left = MOST_ENTRIES
    waiting = [(folder, 0)]
    while waiting and left > 0:
        place, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        if depth < MOST_DEPTH and not _CHECKPOINT.match(entry.name):
                            waiting.append((Path(entry.path), depth + 1))
                    elif _NAME in entry.name and entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        paths.append((Path(entry.path), (facts.st_dev, facts.st_ino)))
        except OSError:
            continue
    return sorted(paths)


class _Record(NamedTuple):
    end: int
    content: bytes
    """None of one that is too long or damaged."""
    read_bytes: int


def records(file: BinaryIO, start: int) -> Iterator[_Record]:
    """Yields each whole record.

    A length that does not fit its checksum ends it: nobody knows where the next record begins. If the file was only
    looked at too early, the next look finds it whole.
    """
    size = os.fstat(file.fileno()).st_size
    at = start
    while size - at >= _HEADER.size + _CHECKSUM.size:
        file.seek(at)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        length, checksum = _HEADER.unpack(header)
        end = at + _HEADER.size + length + _CHECKSUM.size
        if masked_crc32c(header[:8]) != checksum or end > size:
            return
        content, read_bytes = b"", _HEADER.size
        if length <= MOST_RECORD_BYTES:
            body = file.read(length + _CHECKSUM.size)
            if len(body) < length + _CHECKSUM.size:
                return
            content, read_bytes = body[:length], _HEADER.size + len(body)
            if masked_crc32c(content) != _CHECKSUM.unpack(body[length:])[0]:
                log.debug("a damaged record at byte %d of %s is passed over", at, file.name)
                content = b""
        yield _Record(end, content, read_bytes)
        at = end


def _add(points: list[Point], point: Point) -> None:
    """Adds a point. Writers make an event of each number: those of one step become one point."""
    last = points[-1] if points else None
    if last is None or last.step != point.step or len(last.values) + len(point.values) > MAX_KEYS:
        points.append(point)
    elif last.values.keys().isdisjoint(point.values):
        points[-1] = Point(step=last.step, values={**last.values, **point.values}, at=last.at)
    else:
        points.append(point)


# Protobuf

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}


class _Unreadable(Exception):
    """The bytes are not a protobuf message."""


class _Field(NamedTuple):
    number: int
    kind: int
    value: int
    content: bytes


class _Numbers(NamedTuple):
    """Tells how a tensor's type is encoded: its `struct` letter, and the field that may hold its values instead."""

    letter: str
    field: int


_TENSOR_TYPES = {1: _Numbers("f", 5), 2: _Numbers("d", 6), 3: _Numbers("i", 7), 9: _Numbers("q", 10)}
"""float, double, int32, int64."""


def read_event(content: bytes) -> Point | None:
    """Returns the scalars of an Event; None where it has none."""
    step, at = 0, None
    named: dict[str, float] = {}
    try:
        for field in _fields(content):
            if (field.number, field.kind) == (1, FIXED64):
                at = struct.unpack("<d", field.content)[0]
            elif (field.number, field.kind) == (2, VARINT):
                step = _signed(field.value)
            elif (field.number, field.kind) == (5, BYTES):
                for value in _fields(field.content):
                    if (value.number, value.kind) == (1, BYTES):
                        named.update(_scalar(value.content))
    except (_Unreadable, struct.error):
        return None
    values = values_of(named)
    if not values or not 0 <= step <= MAX_STEP:
        return None
    return Point(step=step, values=values, at=at if at is not None and 0 <= at <= LATEST_AT else None)


def _scalar(content: bytes) -> dict[str, float]:
    tag, number = "", None
    for field in _fields(content):
        if (field.number, field.kind) == (1, BYTES):
            tag = field.content.decode("utf-8", "replace")
        elif (field.number, field.kind) == (2, FIXED32):
            number = struct.unpack("<f", field.content)[0]
        elif (field.number, field.kind) == (8, BYTES):
            number = _tensor_scalar(field.content)
    return {tag: number} if tag and number is not None else {}


def _tensor_scalar(content: bytes) -> float | None:
    """Returns None where the tensor has a shape, or no number in it."""
    fields = list(_fields(content))
    kind = next((field.value for field in fields if (field.number, field.kind) == (1, VARINT)), 0)
    numbers = _TENSOR_TYPES.get(kind)
    shapes = [field.content for field in fields if (field.number, field.kind) == (2, BYTES)]
    if numbers is None or any(True for shape in shapes for dim in _fields(shape) if dim.number == 2):
        return None
    width = struct.calcsize(f"<{numbers.letter}")
    for field in fields:
        if (field.number, field.kind) == (4, BYTES) and len(field.content) == width:
            return float(struct.unpack(f"<{numbers.letter}", field.content)[0])
        if field.number == numbers.field:
            return _listed(field, numbers.letter)
    return None


def _listed(field: _Field, letter: str) -> float | None:
    """Returns the one value of a repeated field, packed or not."""
    if letter in "fd":
        width = struct.calcsize(f"<{letter}")
        return float(struct.unpack(f"<{letter}", field.content)[0]) if len(field.content) == width else None
    if field.kind == VARINT:
        return float(_signed(field.value))
    value, end = _varint(field.content, 0)
    return float(_signed(value)) if end == len(field.content) else None


def _fields(content: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(content, at)
            yield _Field(number, kind, value, b"")
            continue
        length = _WIDTHS.get(kind)
        if kind == BYTES:
            length, at = _varint(content, at)
        if length is None or at + length > len(content):
            raise _Unreadable
        yield _Field(number, kind, 0, content[at : at + length])
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise _Unreadable


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
