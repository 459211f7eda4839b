"""Reads the files of a trainer's numbers while it writes them, and recognises what was read before."""

import logging
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from simpletuner_fleet.agent.ship.sendable import is_hollow
from simpletuner_fleet.core.training.metrics import MAX_LINE_CHARS, Bar, Point, last_bar, read_point
from simpletuner_fleet.trainers.job_files import open_job_file

log = logging.getLogger(__name__)

TAIL_BYTES = 64
PIECE_BYTES = 1024 * 1024
PIECE_LINES = 20_000
MOST_BYTES = 256 * 2**20
"""A file is read so far and no further. A hundred thousand steps are some ten MiB."""
MOST_LINES = 4_000_000
"""Each costs eight bytes of memory for as long as its attempt is followed."""
LATEST_BYTES = 16 * 1024


class PointBatch(NamedTuple):
    """Holds the next points of a file, and the place after them. Nothing moves until the batch is taken."""

    points: list[Point]
    kept: int
    """Lines read before that are still there, unchanged."""
    fresh: "array[int]"
    """What the new lines are known by."""
    offset: int
    tail: bytes
    more: bool
    """Whether the file may go on after it."""
    read_bytes: int


class FollowedFile(ABC):
    """Knows how far a file was read that a trainer writes, and gives up one that nobody could read to its end."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.offset = 0
        self.tail = b""
        self.given_up = False

    def _opened(self) -> BinaryIO | None:
        file = None if self.given_up else opened(self.path)
        if file is not None and (self._has_too_much() or is_hollow(os.fstat(file.fileno()))):
            file.close()
            self.given_up = True
            log.warning("no more numbers are read from %a: there is too much in it", str(self.path))
            return None
        return file

    @abstractmethod
    def _has_too_much(self) -> bool:
        """Tells whether more was read of it than anybody needs."""

    def _is_same(self, file: BinaryIO) -> bool:
        """Tells whether what was read last still stands there."""
        file.seek(self.offset - len(self.tail))
        return file.read(len(self.tail)) == self.tail


class MetricFile(FollowedFile):
    """Reads a file of metrics while a trainer writes it.

    A file that was cut or written anew is read from its start; the lines that stayed the same are skipped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, path.name)
        self._lines = array("q")
        self._passed = 0
        """How many of the lines stand before the offset: all, but while a file that was written anew is compared."""

    def peek(self, most: int) -> PointBatch | None:
        """Returns at most `most` points, from whole lines only; None where there is no file, or it was given up."""
        file = self._opened()
        if file is None:
            return None
        with file:
            kept, start = (self._passed, self.offset) if self._is_same(file) else (0, 0)
            file.seek(start)
            points: list[Point] = []
            fresh = array("q")
            lines, offset, more = 0, start, True
            while len(points) < most and offset - start < PIECE_BYTES and lines < PIECE_LINES:
                line = _line(file)
                if not line:
                    more = False
                    break
                offset += len(line)
                lines += 1
                known = hash(line)
                if not fresh and kept < len(self._lines) and self._lines[kept] == known:
                    kept += 1
                    continue
                fresh.append(known)
                point = read_point(line)
                if point:
                    points.append(point)
            return PointBatch(points, kept, fresh, offset, tail_at(file, offset), more, offset - start)

    def take(self, piece: PointBatch) -> None:
        if piece.fresh:
            del self._lines[piece.kept :]
            self._lines.extend(piece.fresh)
        self._passed = piece.kept + len(piece.fresh)
        self.offset, self.tail = piece.offset, piece.tail

    def rewind(self) -> None:
        self.offset, self.tail = 0, b""
        self._lines = array("q")
        self._passed = 0

    def restore(self, offset: int, tail: bytes) -> None:
        """Goes on from where a process before this one was, if the file is still what it was."""
        file = opened(self.path)
        if file is None:
            return
        with file:
            file.seek(max(0, offset - len(tail)))
            if len(tail) > offset or file.read(len(tail)) != tail:
                return
            file.seek(0)
            left = min(offset, MOST_BYTES)
            while left > 0 and (line := _line(file)):
                self._lines.append(hash(line))
                left -= len(line)
            self._passed = len(self._lines)
            self.offset, self.tail = offset, tail

    def _has_too_much(self) -> bool:
        return self.offset >= MOST_BYTES or len(self._lines) >= MOST_LINES


def tail_at(file: BinaryIO, offset: int) -> bytes:
    """Returns the last bytes before a place, by which a file is recognised."""
    tail_bytes = min(TAIL_BYTES, offset)
    file.seek(offset - tail_bytes)
    return file.read(tail_bytes)


def latest_points(path: Path) -> list[Point]:
    """Returns the last few, without reading the rest."""
    points = (read_point(line) for line in end_of(path).split(b"\n")[:-1])
    return [point for point in points if point]


def latest_bar(path: Path, within: int = LATEST_BYTES) -> Bar | None:
    return last_bar(end_of(path, within).decode("utf-8", "replace"))


def end_of(path: Path, within: int = LATEST_BYTES) -> bytes:
    file = opened(path)
    if file is None:
        return b""
    with file:
        file.seek(max(0, file.seek(0, 2) - within))
        return file.read(within)


def newest(files: Sequence[Path]) -> list[Point]:
    """Returns the last points of the file that is furthest on."""
    return furthest([latest_points(path) for path in files])


def furthest(readings: Sequence[list[Point]]) -> list[Point]:
    return max((points for points in readings if points), key=lambda points: points[-1].step, default=[])


def opened(path: Path) -> BinaryIO | None:
    """Returns None where there is no such file of the job's own."""
    try:
        return open_job_file(path)
    except OSError:
        return None


def _line(file: BinaryIO) -> bytes:
    """Reads a whole line; one without an end is taken in pieces, none of which can be read as a point."""
    line = file.readline(MAX_LINE_CHARS + 1)
    return line if line.endswith(b"\n") or len(line) > MAX_LINE_CHARS else b""
