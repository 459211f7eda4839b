"""Reads logs by offset, by line from either end, or by time."""

import math
from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.logs import GAP, MARK, TimeMark, gap_key, log_key, times_key

BLOCK_BYTES = 128 * 1024
MAX_BACK_BYTES = 16 * 1024 * 1024
"""A tail or a page of lines is never longer."""
MAX_LINE_BYTES = 64 * 1024
"""What is longer is shown as several lines."""
MARKS_AT_ONCE = 4096


class LogLine(Struct, frozen=True):
    offset: int
    data: bytes
    """The bytes without their newline."""
    whole: bool
    """Whether its end is there."""

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data) + self.whole


class StoredLog:
    """Reads the output of one process of one attempt."""

    def __init__(self, blobs: Blobs, attempt_id: str, rank: int = 0) -> None:
        self._blobs = blobs
        self._key = log_key(attempt_id, rank)
        self._times = times_key(attempt_id, rank)
        self._gap = gap_key(attempt_id, rank)

    async def size(self) -> int:
        return await self._blobs.size(self._key)

    async def read(self, start: int, length: int) -> bytes:
        return await self._blobs.read(self._key, start, length)

    async def gap(self) -> int:
        """Returns how many bytes of the output were left out."""
        record = await self._blobs.read(self._gap, 0, GAP.size)
        return int(GAP.unpack(record)[1]) if len(record) == GAP.size else 0

    async def start_of_lines_before(self, end: int, lines: int) -> int:
        """Returns where the last `lines` lines before `end` begin. It reads backwards, up to a limit."""
        floor = max(0, end - MAX_BACK_BYTES)
        start, newlines_left = end, lines + 1
        if lines == 0:
            return end
        while start > floor:
            at = max(floor, start - BLOCK_BYTES)
            block = await self.read(at, start - at)
            if start == end:
                newlines_left -= not block.endswith(b"\n")
            if (newlines := block.count(b"\n")) >= newlines_left:
                return at + _nth_last_newline(block, newlines_left) + 1
            newlines_left -= newlines
            start = at
        return floor

    async def line_start(self, offset: int) -> int:
        """Returns where the line of this byte begins, looking back no further than the longest line."""
        floor = max(0, offset - MAX_LINE_BYTES)
        before = await self.read(floor, offset - floor)
        return floor + before.rfind(b"\n") + 1

    async def lines(self, start: int, end: int, most: int) -> list[LogLine]:
        """Returns lines from `start` on, which is where a line begins; none of them goes beyond `end`."""
        lines: list[LogLine] = []
        at, limit = start, start + MAX_BACK_BYTES
        rest = b""
        while len(lines) < most and at < min(end, limit):
            block = await self.read(at, min(BLOCK_BYTES, end - at))
            if not block:
                break
            at += len(block)
            rest = self._cut(rest + block, at, most, lines)
        if rest and len(lines) < most:
            lines.append(LogLine(at - len(rest), rest, whole=False))
        return lines

    @staticmethod
    def _cut(data: bytes, end: int, most: int, lines: list[LogLine]) -> bytes:
        """Adds the whole lines of the data to `lines`, and returns the rest, which has no line end yet."""
        begin = end - len(data)
        at = 0
        while len(lines) < most:
            cut = data.find(b"\n", at, at + MAX_LINE_BYTES + 1)
            if cut >= 0:
                lines.append(LogLine(begin + at, data[at:cut], whole=True))
                at = cut + 1
            elif len(data) - at > MAX_LINE_BYTES:
                lines.append(LogLine(begin + at, data[at : at + MAX_LINE_BYTES], whole=False))
                at += MAX_LINE_BYTES
            else:
                break
        return data[at:]

    async def times_of(self, offsets: Sequence[int]) -> list[float | None]:
        """Returns when the byte at each of these rising offsets was seen."""
        if not offsets:
            return []
        count = await self._blobs.size(self._times) // MARK.size
        at = await self._mark_before(offsets[0], count)
        marks = await self._marks(at, count)
        times: list[float | None] = []
        place = 0
        current: float | None = None
        for offset in offsets:
            while True:
                while place < len(marks) and marks[place].offset <= offset:
                    current, place = marks[place].at, place + 1
                if place < len(marks) or not marks or at + len(marks) >= count:
                    break  # there may be none where there were some: the log was deleted meanwhile
                at, place = at + len(marks), 0
                marks = await self._marks(at, count)
            times.append(current)
        return times

    async def offset_since(self, at: float) -> int:
        """Returns the offset of the first byte seen at this time or later; the log's end where there is none."""
        low, high = 0, await self._blobs.size(self._times) // MARK.size
        count = high
        while low < high:
            middle = (low + high) // 2
            if (await self._mark(middle)).at < at:
                low = middle + 1
            else:
                high = middle
        return (await self._mark(low)).offset if low < count else await self.size()

    async def _mark_before(self, offset: int, count: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if (await self._mark(middle)).offset <= offset:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    async def _mark(self, index: int) -> TimeMark:
        """Returns a mark beyond everything where it is gone: the log was deleted, or bytes of it were taken back."""
        marks = await self._marks(index, index + 1)
        return marks[0] if marks else TimeMark(await self.size(), math.inf)

    async def _marks(self, index: int, end: int) -> list[TimeMark]:
        count = min(MARKS_AT_ONCE, end - index)
        data = await self._blobs.read(self._times, index * MARK.size, count * MARK.size)
        return [TimeMark(*fields) for fields in MARK.iter_unpack(data[: len(data) // MARK.size * MARK.size])]


def _nth_last_newline(block: bytes, n: int) -> int:
    cut = len(block)
    for _ in range(n):
        cut = block.rfind(b"\n", 0, cut)
    return cut
