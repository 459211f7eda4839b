"""Logs as they arrive: bytes by offset, beside them when each was seen, and how much was left out.

A log is three blobs: the bytes as they came, records of (offset, time), and one record of (offset, gap) where there is one.
Times are written before the bytes they belong to: a repeat after a crash finds them and goes on.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.errors import StaleAttempt
from simpletuner_fleet.core.job import Attempt, Outcome
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.storage.artifacts import Shelf

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


async def append_log(shelf: Shelf, worker_id: str, job_id: str, epoch: int, piece: Arriving) -> int:
    """How much of the log is there then. Repeats are harmless; beyond a hole nothing is written."""
    attempt = await _attempt(shelf.fleet, worker_id, job_id, epoch)
    key = log_key(attempt.id, piece.rank)
    async with shelf.holding(key):
        size = await shelf.blobs.size(key)
        if piece.offset > size or piece.offset + len(piece.data) <= size:
            return size
        await _note_times(shelf, attempt.id, piece, size)
        if piece.gap:
            record = GAP.pack(piece.offset, min(piece.gap, MAX_GAP))
            await shelf.blobs.append(gap_key(attempt.id, piece.rank), 0, record)
        return await shelf.blobs.append(key, piece.offset, piece.data)


async def _attempt(fleet: Fleet, worker_id: str, job_id: str, epoch: int) -> Attempt:
    attempt = await fleet.read(lambda view: view.attempt_by_epoch(job_id, epoch))
    if (
        attempt is None
        or attempt.worker_id != worker_id
        or attempt.outcome in (Outcome.LOST, Outcome.RELEASED)
    ):
        raise StaleAttempt
    return attempt


async def _note_times(shelf: Shelf, attempt_id: str, piece: Arriving, size: int) -> None:
    key = times_key(attempt_id, piece.rank)
    written = await shelf.blobs.size(key) // MARK.size
    last = await shelf.blobs.read(key, (written - 1) * MARK.size, MARK.size) if written else b""
    known = Mark(*MARK.unpack(last)) if len(last) == MARK.size else Mark(-1, 0.0)
    marks = piece.marks or (Mark(piece.offset, shelf.fleet.clock.now()),)
    fresh = _fresh(marks, size, known)
    if fresh:
        records = b"".join([MARK.pack(mark.offset, mark.at) for mark in fresh])
        await shelf.blobs.append(key, written * MARK.size, records)


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
