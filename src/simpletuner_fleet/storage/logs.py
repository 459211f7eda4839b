"""Stores logs as they arrive: bytes by offset, when each was seen, and how much was left out.

A log is three blobs: the bytes as they came, records of (offset, time), and one record of (offset, gap) if bytes were
left out. Times are written before the bytes they belong to: a repeat after a crash finds them and goes on.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.errors import TooLarge
from simpletuner_fleet.core.free_space import Use
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.storage.fenced import Appends, fenced_appends, unlost_attempt
from simpletuner_fleet.storage.storage import Storage

MARK = struct.Struct("<Qd")
GAP = struct.Struct("<QQ")
MAX_GAP = 2**62
LOGS = "logs"
MAX_LOG_BYTES = 64 * 2**30


class TimeMark(Struct, frozen=True):
    """Marks a place in a log: the bytes from `offset` on were seen at `at`."""

    offset: int
    at: float


class LogPiece(Struct, frozen=True, kw_only=True):
    """Holds a piece of a log that is about to be stored.

    `marks` have rising offsets within its bytes; without any, all were seen just now.
    """

    offset: int
    data: bytes
    rank: int = 0
    gap: int = 0
    marks: tuple[TimeMark, ...] = ()


def log_key(attempt_id: str, rank: int = 0) -> str:
    """Returns the key of the blob with one process's output; rank 0 is the main process."""
    return f"{LOGS}/{attempt_id}.r{rank}" if rank else f"{LOGS}/{attempt_id}"


def times_key(attempt_id: str, rank: int = 0) -> str:
    return f"{log_key(attempt_id, rank)}.times"


def gap_key(attempt_id: str, rank: int = 0) -> str:
    return f"{log_key(attempt_id, rank)}.gap"


async def append_log(storage: Storage, claim: Claim, piece: LogPiece) -> int:
    """Stores a piece, and returns how long the log is then. Repeats are harmless; after a gap nothing is written."""
    attempt = await storage.fleet.read_now(lambda view: unlost_attempt(view, claim))
    key = log_key(attempt.id, piece.rank)
    async with storage.locks.holding(key):
        size = await storage.blobs.size(key)
        if piece.offset > size or piece.offset + len(piece.data) <= size:
            return size
        _check_amount(piece)
        storage.space.check(Use.LOGS, len(piece.data))
        async with fenced_appends(storage.fleet, storage.blobs, unlost_attempt, claim) as appends:
            await _append_times(storage, appends, attempt.id, piece, size)
            await _append_gap(storage, appends, attempt.id, piece)
            return await appends.append(key, size, piece.data[size - piece.offset :])


def _check_amount(piece: LogPiece) -> None:
    """Raises TooLarge for a log that would fill the disk. Agents leave out the middle of a log long before that."""
    if piece.offset + len(piece.data) > MAX_LOG_BYTES:
        raise TooLarge(f"A log can have at most {MAX_LOG_BYTES} bytes.")


async def _append_gap(storage: Storage, appends: Appends, attempt_id: str, piece: LogPiece) -> None:
    key = gap_key(attempt_id, piece.rank)
    size = await storage.blobs.size(key) if piece.gap else GAP.size
    if size < GAP.size:
        await appends.append(key, size, GAP.pack(piece.offset, min(piece.gap, MAX_GAP))[size:])


async def _append_times(
    storage: Storage, appends: Appends, attempt_id: str, piece: LogPiece, log_size: int
) -> None:
    key = times_key(attempt_id, piece.rank)
    count = await storage.blobs.size(key) // MARK.size
    record = await storage.blobs.read(key, (count - 1) * MARK.size, MARK.size) if count else b""
    last = TimeMark(*MARK.unpack(record)) if len(record) == MARK.size else TimeMark(-1, 0.0)
    marks = piece.marks or (TimeMark(piece.offset, storage.fleet.clock.now()),)
    new_marks = _new_marks(marks, log_size, last)
    if new_marks:
        records = b"".join([MARK.pack(mark.offset, mark.at) for mark in new_marks])
        await appends.append(key, count * MARK.size, records)


def _new_marks(marks: Sequence[TimeMark], log_size: int, last: TimeMark) -> list[TimeMark]:
    """Returns the marks of bytes that are not stored yet, in order of offset and of time, whatever clocks did."""
    before = [mark for mark in marks if mark.offset <= log_size]
    candidates = [TimeMark(log_size, before[-1].at)] if before else []
    candidates += [mark for mark in marks if mark.offset > log_size]
    new_marks: list[TimeMark] = []
    for mark in candidates:
        if mark.offset > last.offset:
            last = TimeMark(mark.offset, max(mark.at, last.at))
            new_marks.append(last)
    return new_marks
