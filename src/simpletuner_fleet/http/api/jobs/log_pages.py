"""Shows a log as text with times before its lines, or as a page of lines for programs."""

from collections.abc import AsyncGenerator, Sequence

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.storage.log_reading import MAX_LINE_BYTES, LogLine, StoredLog

MAX_TEXT_CHARS = 16_000
NO_TIME = "-" * 24


class Block(Struct, frozen=True):
    """Holds a block of bytes of a log. Without bytes it says that the log is still followed and nothing is new."""

    offset: int
    data: bytes
    log: StoredLog | None


class LineTold(Struct, kw_only=True):
    offset: int
    at: str | None
    """When its first byte was seen by the worker."""
    text: str
    """What a terminal would show of it: of a progress line its last state."""
    partial: bool = False
    """Its end has not come yet."""


class LogPage(Struct, kw_only=True):
    attempt: int | None
    rank: int
    start: int
    end: int
    size: int
    gap_bytes: int
    ended: bool
    """The attempt is over; nothing more will come."""
    lines: list[LineTold]


async def page_of(
    log: StoredLog | None, attempt: Attempt | None, rank: int, start: int, end: int, size: int, most: int
) -> LogPage:
    lines = await log.lines(start, end, most) if log else []
    return LogPage(
        attempt=attempt.number if attempt else None,
        rank=rank,
        start=start,
        end=lines[-1].next_offset if lines else start,
        size=size,
        gap_bytes=await log.gap() if log else 0,
        ended=attempt is not None and not attempt.live,
        lines=await _told(log, lines) if log else [],
    )


async def _told(log: StoredLog, lines: Sequence[LogLine]) -> list[LineTold]:
    times = await log.times_of([line.offset for line in lines])
    return [
        LineTold(
            offset=line.offset,
            at=rfc3339(at),
            text=shown(line.data),
            partial=not line.whole and len(line.data) < MAX_LINE_BYTES,
        )
        for line, at in zip(lines, times, strict=True)
    ]


def shown(line: bytes) -> str:
    """Returns the line as a terminal shows it: after a carriage return it is overwritten."""
    states = [state for state in line.split(b"\r") if state]
    return states[-1].decode("utf-8", "replace")[:MAX_TEXT_CHARS] if states else ""


async def stamped(blocks: AsyncGenerator[Block, None]) -> AsyncGenerator[bytes, None]:
    """Yields every line with its time before it; a line is sent when it is whole, or will not become so."""
    rest, at, log, within = b"", 0, None, False
    async for block in blocks:
        if not block.data:
            yield b""
            continue
        log, at = block.log, block.offset + len(block.data)
        whole, newline, rest_of = (rest + block.data).rpartition(b"\n")
        if not newline and len(rest_of) <= MAX_LINE_BYTES:
            rest = rest_of
            continue
        line = whole + newline if newline else rest_of
        rest = rest_of if newline else b""
        yield await _stamp(log, line, at - len(rest) - len(line), within=within)
        within = not newline
    if rest:
        yield await _stamp(log, rest, at - len(rest), within=within)


async def _stamp(log: StoredLog | None, data: bytes, offset: int, *, within: bool) -> bytes:
    """Returns the lines with their times; `within` says that the first is the rest of one that has its time already."""
    lines = _split(data)
    offsets = [offset]
    for line in lines[:-1]:
        offsets.append(offsets[-1] + len(line))
    times = await log.times_of(offsets) if log else [None] * len(lines)
    stamps = [f"{rfc3339(at) or NO_TIME} ".encode() for at in times]
    if within:
        stamps[0] = b""
    return b"".join([stamp + line for stamp, line in zip(stamps, lines, strict=True)])


def _split(data: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
