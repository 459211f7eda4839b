"""Reads the files of a trainer's numbers while it writes them, and recognises what was read before."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from simpletuner_fleet.core.training.metrics import MAX_LINE_CHARS, Bar, Point, last_bar, read_point
from simpletuner_fleet.trainers.job_files import open_job_file

TAIL_BYTES = 64
MOST_BYTES = 4 * 1024 * 1024
LATEST_BYTES = 16 * 1024


class PointBatch(NamedTuple):
    """Holds the next points of a file, and the place after them. Nothing moves until the batch is taken."""

    points: list[Point]
    kept: int
    """Lines read before that are still there, unchanged."""
    fresh: list[int]
    """What the new lines are known by."""
    offset: int
    tail: bytes


class MetricFile:
    """Reads a file of metrics while a trainer writes it.

    A file that was cut or written anew is read from its start; the lines that stayed the same are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.offset = 0
        self.tail = b""
        self._lines = array("q")

    def peek(self, most: int) -> PointBatch | None:
        """Returns at most `most` points, from whole lines only; None where there is no file."""
        file = opened(self.path)
        if file is None:
            return None
        with file:
            file.seek(self.offset - len(self.tail))
            if file.read(len(self.tail)) == self.tail:
                kept, start = len(self._lines), self.offset
            else:
                kept, start = self._unchanged(file)
            file.seek(start)
            points: list[Point] = []
            fresh: list[int] = []
            offset = start
            while len(points) < most and offset - start < MOST_BYTES and (line := _line(file)):
                offset += len(line)
                fresh.append(hash(line))
                point = read_point(line)
                if point:
                    points.append(point)
            tail_bytes = min(TAIL_BYTES, offset)
            file.seek(offset - tail_bytes)
            return PointBatch(points, kept, fresh, offset, file.read(tail_bytes))

    def take(self, piece: PointBatch) -> None:
        del self._lines[piece.kept :]
        self._lines.extend(piece.fresh)
        self.offset, self.tail = piece.offset, piece.tail

    def rewind(self) -> None:
        self.offset, self.tail = 0, b""
        self._lines = array("q")

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
            while file.tell() < offset and (line := _line(file)):
                self._lines.append(hash(line))
            self.offset, self.tail = offset, tail

    def _unchanged(self, file: BinaryIO) -> tuple[int, int]:
        file.seek(0)
        offset = 0
        for at, known in enumerate(self._lines):
            line = _line(file)
            if not line or hash(line) != known:
                return at, offset
            offset += len(line)
        return len(self._lines), offset


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
