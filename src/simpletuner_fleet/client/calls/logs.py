"""Reads a job's log line by line: all of it, its tail, or as it grows. Resumes a cut connection where it broke off."""

import codecs
from typing import Any, AnyStr, Generic

import httpx2
from msgspec import Struct

from simpletuner_fleet.client.calls.call import Give, Read, Received, Sleep, Steps
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.errors import TooBusy, UnreachableError, unreachable
from simpletuner_fleet.client.table import calls
from simpletuner_fleet.client.time_limits import Pace

OFFSET_HEADER, ATTEMPT_HEADER = "x-log-offset", "x-log-attempt"
RECONNECTS = 300
RECONNECT_S = 1.0
SILENT_S = 60.0
"""After so long the log is asked for again from where it is: a trainer may be silent, or the connection dead."""
LONGEST_LINE = 16 * 2**20
"""A longer line comes in pieces of so many characters or bytes: one that never ends would take all memory."""


class LogPart(Struct, kw_only=True):
    """Says which part of a log is wanted."""

    follow: bool = False
    tail: int | None = None
    since: str | None = None
    attempt: int | None = None
    rank: int | None = None


class LineSplitter(Generic[AnyStr]):
    """Splits what arrives cut anywhere into lines, and a line that is too long into several."""

    def __init__(self, end: AnyStr) -> None:
        self._end: AnyStr = end
        self._rest: list[AnyStr] = []
        """The pieces of a line whose end has not come: joined once, for it may be most of a long log."""
        self._rest_length = 0

    def feed(self, data: AnyStr) -> list[AnyStr]:
        parts: list[AnyStr] = data.split(self._end)
        rest = parts.pop()
        lines: list[AnyStr] = []
        for ended in parts:
            lines.extend(in_pieces(self._joined(ended)))
        if self._rest_length + len(rest) > LONGEST_LINE:
            lines.extend(in_pieces(self._joined(rest)))
            rest = lines.pop()
        if rest:
            self._rest.append(rest)
            self._rest_length += len(rest)
        return lines

    def last(self) -> list[AnyStr]:
        """Returns the line without an end, if there is one."""
        return [self._joined(self._end[:0])] if self._rest else []

    def _joined(self, rest: AnyStr) -> AnyStr:
        self._rest.append(rest)
        line: AnyStr = self._end[:0].join(self._rest)
        self._rest, self._rest_length = [], 0
        return line


def in_pieces(line: AnyStr) -> list[AnyStr]:
    """Cuts a line that is too long. The last piece is never empty, unless the line is."""
    return [line[begin : begin + LONGEST_LINE] for begin in range(0, len(line) or 1, LONGEST_LINE)]


class LineCutter:
    """Splits bytes that arrive cut anywhere into lines of text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = LineSplitter("\n")

    def feed(self, data: bytes, *, last: bool = False) -> list[str]:
        lines = self._lines.feed(self._decoder.decode(data, final=last))
        return lines + self._lines.last() if last else lines


def log_lines(caller: RouteCaller, job_id: str, part: LogPart) -> Steps[None]:
    """Gives the lines of the log without their line ends; a line longer than `LONGEST_LINE` as several."""
    cutter = LineCutter()
    place: dict[str, Any] = {"tail": part.tail, "since": part.since}
    offset: int | None = None
    left = RECONNECTS
    pace = None if part.follow else Pace()
    while True:
        query = {
            "follow": "true" if part.follow else None,
            **place,
            "attempt": part.attempt,
            "rank": part.rank,
        }
        try:
            received = yield from caller.open(
                calls.LOGS,
                path={"id": job_id},
                query=query,
                accept="text/plain",
                read_timeout_s=SILENT_S,
            )
            left = RECONNECTS
            offset = _offset(received, query)
            part.attempt = part.attempt or _number(received.headers.get(ATTEMPT_HEADER)) or None
            while (chunk := (yield from _read(caller, pace))) is not None:
                offset = None if offset is None else offset + len(chunk)
                for line in cutter.feed(chunk):
                    yield Give(line)
            may_go_on = part.follow and ATTEMPT_HEADER in received.headers and offset is not None
            if not may_go_on or (yield from _is_over(caller, job_id, part, offset or 0)):
                break
        except (httpx2.TransportError, UnreachableError, TooBusy) as error:
            left -= 1
            if not part.follow or offset is None or left <= 0:
                raise (
                    unreachable(error, caller.url) if isinstance(error, httpx2.TransportError) else error
                ) from None
        place = {"offset": offset}
        yield Sleep(RECONNECT_S)
    for line in cutter.feed(b"", last=True):
        yield Give(line)


def _read(caller: RouteCaller, pace: Pace | None) -> Steps[bytes | None]:
    """Reads the next piece. A log that is followed grows as slowly as its trainer writes; all else keeps a pace."""
    began_at = caller.monotonic()
    chunk: bytes | None = yield Read()
    if pace and chunk is not None:
        pace.moved(len(chunk), caller.monotonic() - began_at)
    return chunk


def _is_over(caller: RouteCaller, job_id: str, part: LogPart, offset: int) -> Steps[bool]:
    """Asks whether the log has ended: a server that shuts down ends its answers as if it had."""
    query = {"offset": offset, "lines": 1, "attempt": part.attempt, "rank": part.rank}
    page = yield from caller.call(calls.LOGS, path={"id": job_id}, query=query)
    return bool((page["ended"] or page["attempt"] is None) and page["size"] <= offset)


def _offset(received: Received, query: dict[str, Any]) -> int | None:
    text = received.headers.get(OFFSET_HEADER, "")
    if text.isdecimal():
        return int(text)
    cut = query.get("tail") is not None or query.get("since") is not None
    return None if cut else int(query.get("offset") or 0)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
