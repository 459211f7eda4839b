"""Reads one stream of output from its files, and gives in chunks, from any offset on, what is to be sent."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from simpletuner_fleet.agent.ship.hole_punching import punch_hole
from simpletuner_fleet.agent.ship.logs.log_fold import ByteRange, Fold
from simpletuner_fleet.agent.ship.logs.log_heads import COMPARED_BYTES, LogHeads, end_at
from simpletuner_fleet.agent.ship.logs.log_journal import MOST_SOURCES, Journal, NotRecorded, Record
from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask
from simpletuner_fleet.agent.state_dir import write_whole
from simpletuner_fleet.trainers.job_files import open_job_file

MIB = 1024 * 1024
CHUNK_BYTES = MIB
READ_BYTES = MIB
BLOCKS_PER_SCAN = 8
MARK_EVERY_S = 0.1
MAX_MARKS = 256
"""In one chunk: they travel in a header."""
PUNCH_BYTES = 8 * MIB
"""Less is not worth a call."""
LONGEST_RANGE = 2**47
"""A job may claim by a hole that it has printed as much as a file can have: also that takes few records."""
DEFAULT_LOG_BYTES = 1024 * MIB
TAIL_BYTES = 8 * MIB
NO_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""There is nothing to read at that path: nothing at all, a link that leads nowhere, or a socket."""
_BLANK_LINES = b" " * 255 + b"\n"


class LogLimits(Struct, frozen=True):
    """Limits what is kept of one attempt: the first `head_bytes`, and once it has ended the last `tail_bytes`."""

    head_bytes: int = DEFAULT_LOG_BYTES - TAIL_BYTES
    tail_bytes: int = TAIL_BYTES

    @classmethod
    def of(cls, most_bytes: int) -> "LogLimits":
        tail = min(TAIL_BYTES, most_bytes // 4)
        return cls(most_bytes - tail, tail)


class Withheld(Struct, frozen=True):
    """Says from which byte on nothing was sent, and how many bytes were not."""

    offset: int
    gap: int


def left_out(gap: int, why: str = "") -> bytes:
    """Returns a line of its own, whatever was cut before it."""
    return f"\n… {gap:,} bytes left out{why} …\n".encode()


def lost(length: int) -> bytes:
    """Returns so many bytes in place of as many that were noted and are there no more: where each byte goes is decided."""
    said = b"\n[%d bytes lost: gone from this output before they were sent]" % length
    return (said[: length - 1] + _BLANK_LINES * (length // len(_BLANK_LINES) + 1))[: length - 1] + b"\n"


class LogStream:
    """Reads one stream of a trainer's output, which is sent in chunks.

    All of its state is in its files and its journal: a later process can go on with it.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        journal: Path,
        limits: LogLimits | None = None,
        mask: Mask = NO_MASK,
        *,
        grows: bool = False,
        boot: str | None = None,
    ) -> None:
        """`grows` says that more files may be offered later: which is which is written down beside the journal.

        `boot` is the machine's own where it is None.
        """
        self._sources = list(sources[:MOST_SOURCES])
        self._offered = tuple(sources)
        self._names = journal.with_suffix(".log-files") if grows else None
        self._limits = limits or LogLimits()
        self._mask = mask
        self._journal = Journal(journal)
        self._withheld_file = journal.with_suffix(".withheld")
        self._freed = 0
        """Up to here the middle of the file was given back."""
        self._mask_bytes = max((len(value) for value in mask.values), default=0)
        self._taken_up = False
        self._recorded = [ByteRange(0, 0, 0.0, False) for _ in self._sources]
        """The newest bytes of each file that the journal has."""
        self._ends = [(0, b"") for _ in self._sources]
        """Up to where each file was read by this process, and the last bytes before."""
        self._emptied_at = [0 for _ in self._sources]
        """Of what is sent: what the journal has of each file before this place is of its former content."""
        self._heads = LogHeads(journal.with_suffix(".log-heads"), len(self._sources), boot)
        self._folds = [Fold() for _ in self._sources]
        self._wall_offset_s = 0.0
        """What to add to the time of a fold for that of a clock on the wall."""
        self._unread: list[OSError] = []

    @property
    def resumed(self) -> bool:
        """Returns whether an earlier process has begun to send it, as far as that is known yet."""
        return self._journal.resumed

    @property
    def files_passed_over(self) -> int:
        """Returns how many files are not read, because there are too many."""
        return max(0, len({*self._sources, *self._offered}) - MOST_SOURCES)

    def offer(self, files: Sequence[Path]) -> None:
        """Tells all files that there are now; the next scan reads those that are new, after the others."""
        self._offered = tuple(files)

    def close(self) -> None:
        self._journal.close()

    def printed(self) -> int:
        """Returns how many bytes the output has, sent or not."""
        return sum(path.stat().st_size for path in self._sources if path.exists())

    def withheld(self, stored: int) -> Withheld:
        """Returns what is not sent though it was printed: as an earlier process has said it already, if one has."""
        try:
            return msgspec.json.decode(self._withheld_file.read_bytes(), type=Withheld)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            withheld = Withheld(stored, max(0, self.printed() - stored))
        with suppress(OSError):  # a next process says it again, then
            write_whole(self._withheld_file, msgspec.json.encode(withheld))
        return withheld

    def scan(self, now: float, wall: float, *, ended: bool) -> bool:
        """Decides on what was written since the last time; returns whether there may be more at once.

        `now` is of a clock that nobody sets; `wall` is the same moment as people know it, which is what they are told.
        Raises OSError where that cannot be recorded, and at the end where a file cannot be read: it may be called again.
        """
        self._wall_offset_s = wall - now
        self._take_up(now)
        self._take_in()
        self._unread.clear()
        self._heads.write()
        more = [self._scan(source, now, ended) for source in range(len(self._sources))]
        if ended and self._unread and not any(more):
            raise self._unread[0]
        return any(more)

    def _take_up(self, now: float) -> None:
        """Goes on where an earlier process ended, whatever was done to the clock since."""
        if self._taken_up:
            return
        known = _names_in(self._names) if self._names else []
        if known:
            self._sources = known
            self._recorded = [ByteRange(0, 0, 0.0, False) for _ in known]
            self._folds = [Fold() for _ in known]
            self._ends = [(0, b"") for _ in known]
            self._emptied_at = [0 for _ in known]
        elif self._names:
            _write_names(self._names, self._sources)
        self._journal.open()
        noted = self._journal.newest_contents()
        self._heads.take_up(len(self._sources), noted)
        for source, record in self._journal.newest_by_source().items():
            if source >= len(self._sources):
                continue
            content, begins = noted[source]
            if self._heads.content(source) > content:  # nothing is noted of what came after it was emptied
                self._emptied_at[source] = self._journal.size
                continue
            self._emptied_at[source] = begins
            at, folding = min(now, record.at - self._wall_offset_s), bool(record.folding)
            self._recorded[source] = ByteRange(record.raw, record.raw + record.length, at, folding)
            self._go_back(source)
        self._taken_up = True

    def _take_in(self) -> None:
        """Adds the files that are new. Records name a file by its number, so each keeps its own in every later process."""
        known, room = set(self._sources), MOST_SOURCES - len(self._sources)
        new = [path for path in self._offered if path not in known][:room]
        if not new or self._names is None:
            return
        _write_names(self._names, [*self._sources, *new])
        self._recorded += [ByteRange(0, 0, 0.0, False) for _ in new]
        self._folds += [Fold() for _ in new]
        self._ends += [(0, b"") for _ in new]
        self._emptied_at += [0 for _ in new]
        self._heads.grow(len(new))
        self._sources += new

    def _go_back(self, source: int) -> None:
        _, end, at, folding = self._recorded[source]
        self._folds[source] = Fold(end, folding, at)

    def _add(self, source: int, kept: list[ByteRange]) -> None:
        offset_s = self._wall_offset_s
        try:
            self._journal.add(source, [one._replace(at=one.at + offset_s) for one in kept])
        except NotRecorded:
            self._go_back(source)  # the fold has already handed them out
            raise
        if kept:
            self._recorded[source] = kept[-1]

    def _begin_anew_if_emptied(self, source: int, file: BinaryIO, now: float) -> None:
        """Reads a file from its beginning that was emptied: a script has written `> /dev/stdout`.

        It is shorter than before then, or something else stands by now where its end was; where that was not read by
        this process, where its beginning was.
        """
        if self._holds_what_was_read(source, file):
            return
        self._heads.emptied(source)
        self._recorded[source] = ByteRange(0, 0, now, False)
        self._folds[source] = Fold(0, False, now)
        self._emptied_at[source] = self._journal.size
        self._freed = 0

    def _holds_what_was_read(self, source: int, file: BinaryIO) -> bool:
        reached, (end, seen) = self._folds[source].reached, self._ends[source]
        if os.fstat(file.fileno()).st_size < reached:
            return self._heads.was_cut_short(source, file)
        return end_at(file, reached) == seen if end == reached else self._heads.is_of(source, file)

    def _scan(self, source: int, now: float, ended: bool) -> bool:
        blocks = 0
        try:
            with open_job_file(self._sources[source]) as file:
                self._begin_anew_if_emptied(source, file, now)
                fold = self._folds[source]
                while blocks < BLOCKS_PER_SCAN:
                    data = self._mask.read(file, fold.reached, READ_BYTES, ended=ended)
                    if not data:
                        break
                    self._add(source, fold.feed(data, now))
                    blocks += 1
                if blocks:
                    self._ends[source] = fold.reached, end_at(file, fold.reached)
                    self._heads.read(source, file, fold.reached)
        except NotRecorded:
            raise
        except OSError as error:
            if error.errno not in NO_FILE:
                self._unread.append(error)
            return False
        self._give_back_middle(source)
        if blocks == BLOCKS_PER_SCAN:
            self._pass_over(source, now)
            return True
        self._add(source, fold.finish() if ended else fold.tick(now))
        return False

    def _pass_over(self, source: int, now: float) -> None:
        """Skips a flood of output that nobody will ever see: it counts as printed, and only its end is looked at."""
        fold = self._folds[source]
        keep = max(self._limits.tail_bytes, READ_BYTES) * 4
        target = self._sources[source].stat().st_size - keep
        if self._journal.size <= self._limits.head_bytes or target - fold.reached < keep:
            return
        at = fold.reached
        self._add(source, fold.finish())
        while at < target:
            end = min(target, at + LONGEST_RANGE)
            self._add(source, [ByteRange(at, end, now, False)])
            at = end
        self._folds[source] = Fold(target, False, now)

    def _give_back_middle(self, source: int) -> None:
        """Frees what is neither of the beginning nor of the end that are sent: a flood must not fill the worker's disk."""
        head, tail, size = self._limits.head_bytes, self._limits.tail_bytes, self._journal.size
        head = max(head, self._emptied_at[source])
        if len(self._sources) > 1 or size - head - tail < PUNCH_BYTES:
            return
        start = next(record.raw + record.length for record in self._journal.records_at(head))
        end_of_hole = max(head, size - 2 * tail)
        end = next(record.raw for record in self._journal.records_at(end_of_hole)) - self._mask_bytes
        start = max(start, self._freed, COMPARED_BYTES)
        if end - start >= PUNCH_BYTES:
            punch_hole(self._sources[source], start, end)
            self._freed = end
            self._ends[source] = 0, b""  # with short ends the hole may reach into it

    def read_chunk(self, offset: int, *, ended: bool) -> Chunk | None:
        """Returns the next chunk from `offset` on, or None while there is none.

        `ended` says that all was scanned and nothing will come.
        """
        head, tail, size = self._limits.head_bytes, self._limits.tail_bytes, self._journal.size
        gap = max(0, size - head - tail)
        if not gap or offset < head:
            return self._chunk(offset, offset, size if ended and not gap else min(size, head))
        if not ended:
            return None
        marker = left_out(gap)
        if offset < head + len(marker):
            return Chunk(offset, marker[offset - head :], gap)
        return self._chunk(offset, size - tail + (offset - head - len(marker)), size)

    def _chunk(self, offset: int, start: int, end: int) -> Chunk | None:
        """Returns bytes `start` to `end` of what is sent, or as many as fit.

        The orchestrator gets them as from `offset` on.
        """
        if start >= end:
            return None
        end = min(end, start + CHUNK_BYTES)
        parts: list[Record] = []
        marks: list[tuple[int, float]] = []
        for record in self._journal.records_at(start):
            if record.sent >= end:
                break
            if not marks or record.at - marks[-1][1] >= MARK_EVERY_S:
                if len(marks) == MAX_MARKS:
                    break
                marks.append((offset + max(0, record.sent - start), record.at))
            parts.append(_within(record, start, end))
        return Chunk(offset, self._read(parts), times=tuple(marks))

    def _read(self, parts: Sequence[Record]) -> bytes:
        files: dict[int, _Window] = {}
        try:
            for part in parts:
                if part.source not in files:
                    files[part.source] = _Window(open_job_file(self._sources[part.source]), self._mask)
            return b"".join(self._filled(files, parts))
        finally:
            for window in files.values():
                window.file.close()

    def _filled(self, files: Mapping[int, "_Window"], parts: Sequence[Record]) -> Iterator[bytes]:
        """Yields the bytes of the parts, and something else of the same length where they are lost."""
        missing = 0
        for part in parts:
            is_former = part.sent < self._emptied_at[part.source]
            data = b"" if is_former else files[part.source].read(part.raw, part.length)
            if data and missing:
                yield lost(missing)
                missing = 0
            yield data
            missing += part.length - len(data)
        if missing:
            yield lost(missing)


def _names_in(file: Path) -> list[Path]:
    try:
        names = msgspec.json.decode(file.read_bytes(), type=list[str])
        return [Path(os.fsdecode(bytes.fromhex(name))) for name in names[:MOST_SOURCES]]
    except (FileNotFoundError, ValueError, msgspec.MsgspecError):
        return []


def _write_names(file: Path, paths: Sequence[Path]) -> None:
    """Writes the bytes of each, which need not be text."""
    write_whole(file, msgspec.json.encode([os.fsencode(path).hex() for path in paths]))


class _Window:
    """Reads many small pieces that follow one another as one block.

    It serves one chunk only: what is masked in the block depends on what had been written when it was read.
    """

    def __init__(self, file: BinaryIO, mask: Mask) -> None:
        self.file = file
        self._mask = mask
        self._start, self._block = 0, b""

    def read(self, start: int, length: int) -> bytes:
        if not self._start <= start <= start + length <= self._start + len(self._block):
            self._start = start
            self._block = self._mask.read(self.file, start, max(READ_BYTES, length), ended=True)
        return self._block[start - self._start : start - self._start + length]


def _within(record: Record, start: int, end: int) -> Record:
    skipped = max(0, start - record.sent)
    over = max(0, record.sent + record.length - end)
    return record._replace(
        raw=record.raw + skipped, sent=record.sent + skipped, length=record.length - skipped - over
    )
