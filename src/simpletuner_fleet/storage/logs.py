"""Logs as they arrive: bytes by offset, beside them when each was seen, and how much was left out.

A log is three blobs: the bytes as they came, records of (offset, time), and one record of (offset, gap) where there is one.
Times are written before the bytes they belong to: a repeat after a crash finds them and goes on.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.fencing import Writer
from simpletuner_fleet.storage.fenced import Appends, fenced_appends, unlost_attempt
from simpletuner_fleet.storage.storage import Storage

MARK = struct.Struct("<Qd")
GAP = struct.Struct("<QQ")
MAX_GAP = 2**62


class Mark(Struct, frozen=True):
    """The bytes from `offset` on were seen at `at`."""

    offset: int
    at: float


class Arriving(Struct, frozen=True, kw_only=True):
    """A piece of a log. `marks` have rising offsets within it; none: it was seen just now."""

    offset: int
    data: bytes
    rank: int = 0
    gap: int = 0
    marks: tuple[Mark, ...] = ()


def log_key(attempt_id: str, rank: int = 0) -> str:
    """Rank 0 is the main output."""
    return f"logs/{attempt_id}.r{rank}" if rank else f"logs/{attempt_id}"


def times_key(attempt_id: str, rank: int = 0) -> str:
    return f"{log_key(attempt_id, rank)}.times"


def gap_key(attempt_id: str, rank: int = 0) -> str:
    return f"{log_key(attempt_id, rank)}.gap"


async def append_log(storage: Storage, writer: Writer, piece: Arriving) -> int:
    """Returns how much of the log is there then. Repeats are harmless; beyond a hole nothing is written."""
    attempt = await storage.fleet.glance(lambda view: unlost_attempt(view, writer))
    key = log_key(attempt.id, piece.rank)
    async with storage.holding(key):
        size = await storage.blobs.size(key)
        if piece.offset > size or piece.offset + len(piece.data) <= size:
            return size
        async with fenced_appends(storage.fleet, storage.blobs, unlost_attempt, writer) as appends:
            await _append_times(storage, appends, attempt.id, piece, size)
            await _append_gap(storage, appends, attempt.id, piece)
            return await appends.append(key, size, piece.data[size - piece.offset :])


async def _append_gap(storage: Storage, appends: Appends, attempt_id: str, piece: Arriving) -> None:
    key = gap_key(attempt_id, piece.rank)
    held = await storage.blobs.size(key) if piece.gap else GAP.size
    if held < GAP.size:
        await appends.append(key, held, GAP.pack(piece.offset, min(piece.gap, MAX_GAP))[held:])


async def _append_times(
    storage: Storage, appends: Appends, attempt_id: str, piece: Arriving, size: int
) -> None:
    key = times_key(attempt_id, piece.rank)
    written = await storage.blobs.size(key) // MARK.size
    last = await storage.blobs.read(key, (written - 1) * MARK.size, MARK.size) if written else b""
    known = Mark(*MARK.unpack(last)) if len(last) == MARK.size else Mark(-1, 0.0)
    marks = piece.marks or (Mark(piece.offset, storage.fleet.clock.now()),)
    fresh = _fresh(marks, size, known)
    if fresh:
        records = b"".join([MARK.pack(mark.offset, mark.at) for mark in fresh])
        await appends.append(key, written * MARK.size, records)


def _fresh(marks: Sequence[Mark], size: int, known: Mark) -> list[Mark]:
    """Those of bytes that are not there yet, in order of offset and of time whatever clocks did."""
    begun = [mark for mark in marks if mark.offset <= size]
    wanted = [Mark(size, begun[-1].at)] if begun else []
    wanted += [mark for mark in marks if mark.offset > size]
    found, latest = [], known
    for mark in wanted:
        if mark.offset > latest.offset:
            latest = Mark(mark.offset, max(mark.at, latest.at))
            found.append(latest)
    return found
