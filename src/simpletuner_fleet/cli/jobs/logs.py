"""Prints a job's log: it reads bytes from the server and writes text that is harmless for the terminal."""

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
from msgspec import Struct

from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.cli.frame.text import COLOUR, TerminalLogText
from simpletuner_fleet.cli.jobs.finishing_notes import FinishingNotes
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import CONTENT_TIMEOUT_S, Api, will_pass
from simpletuner_fleet.client.answers import TEXT
from simpletuner_fleet.client.calls.logs import LONGEST_LINE, LineSplitter
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.client.time_limits import Pace, pieces
from simpletuner_fleet.client.troubles import of_connection_error
from simpletuner_fleet.core.jobs.states import TERMINAL
from simpletuner_fleet.languages import _

OFFSET_HEADER = "x-log-offset"
"""Where in the attempt's log the first byte of an answer lies."""
ATTEMPT_HEADER = "x-log-attempt"
"""Which attempt it is of; 0 while there is none."""
RECONNECTS = 300
RECONNECT_S = 1.0
SILENT_S = 60.0
"""After so long the log is asked for again from where it is: a trainer may be silent, or the connection dead."""
PAGE_LINES = 5000
SHORT_BYTES = 8 * 1024
"""A page of lines has the whole text of those that are no longer, and perhaps not of others."""
NO_TIME = "-" * 24


class LogRequest(Struct, kw_only=True):
    """Says which part of the log is read, and how it is shown."""

    follow: bool = False
    tail: int | None = None
    since: str | None = None
    attempt: int | None = None
    rank: int | None = None
    grep: str | None = None
    timestamps: bool = False
    raw: bool = False
    colours: bool = True
    """Those of the trainer, on a terminal."""

    @property
    def where(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "rank": self.rank}


def show(api: Api, job_id: str, request: LogRequest) -> None:
    """Prints the log to its end, or to the attempt's end if followed. Resumes a cut connection where it broke off."""
    if request.follow:
        with FinishingNotes(api, job_id):
            _print_all(api, job_id, request)
    else:
        _print_all(api, job_id, request)


def _print_all(api: Api, job_id: str, request: LogRequest) -> None:
    path = f"/api/jobs/{segment(job_id)}/logs"
    printer = Printer(request)
    if request.timestamps:
        for at, line in _lines(api, job_id, path, request):
            printer.line(at, line)
    else:
        for chunk in _chunks(api, path, request):
            printer.chunk(chunk)
    printer.end()


class Printer:
    def __init__(self, request: LogRequest) -> None:
        self._raw = request.raw
        self._grep = _pattern(request.grep) if request.grep is not None else None
        self._colours = request.colours and not request.raw and sys.stdout.isatty()
        self._text = TerminalLogText(colours=self._colours)
        self._lines = LineSplitter(b"\n")

    def chunk(self, chunk: bytes) -> None:
        if self._grep:
            chunk = b"".join([line + b"\n" for line in self._lines.feed(chunk) if self._fits(line)])
        self._show(chunk)

    def line(self, at: str, line: bytes) -> None:
        if self._fits(line):
            self._show(f"{at} ".encode() + line + b"\n")

    def end(self) -> None:
        for line in filter(self._fits, self._lines.last()):
            self._show(line + b"\n")
        if not self._raw:
            _write(self._text.feed(b"", last=True) + ("\x1b[0m" if self._colours else ""))

    def _fits(self, line: bytes) -> bool:
        return self._grep is None or bool(self._grep.search(COLOUR.sub("", line.decode("utf-8", "replace"))))

    def _show(self, data: bytes) -> None:
        if self._raw:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            _write(self._text.feed(data))


def _chunks(api: Api, path: str, request: LogRequest) -> Iterator[bytes]:
    """Yields the log, over several connections if need be; a server that restarts is waited for."""
    place: dict[str, Any] = {"tail": request.tail, "since": request.since}
    offset: int | None = None
    left = RECONNECTS
    pace = None if request.follow else Pace()  # a log that is followed grows as slowly as its trainer writes
    while True:
        query = {"follow": 1 if request.follow else None, **place, **request.where}
        try:
            with api.stream(path, query, read_timeout_s=SILENT_S, kind=TEXT) as answer:
                left = RECONNECTS
                offset = _offset(answer, query)
                request.attempt = request.attempt or _number(answer.headers.get(ATTEMPT_HEADER)) or None
                for chunk in pieces(answer.iter_bytes(), SILENT_S, pace):
                    yield chunk
                    offset = None if offset is None else offset + len(chunk)
                may_go_on = request.follow and ATTEMPT_HEADER in answer.headers and offset is not None
            if not may_go_on or _is_over(api, path, request, offset or 0):
                return
        except (httpx2.TransportError, CliError) as error:
            left -= 1
            if not request.follow or offset is None or left <= 0 or not _may_return(error):
                raise _failure(api, error) from None
            was_silent = isinstance(error, httpx2.ReadTimeout)
        else:
            was_silent = False
        place = {"offset": offset}
        if was_silent:
            continue
        if left in (RECONNECTS, RECONNECTS - 1):
            api.note(_("the connection was interrupted; resuming where it broke off …"))
        time.sleep(RECONNECT_S)


def _may_return(error: httpx2.TransportError | CliError) -> bool:
    return will_pass(error) if isinstance(error, CliError) else True


def _failure(api: Api, error: httpx2.TransportError | CliError) -> CliError:
    return error if isinstance(error, CliError) else CliError(of_connection_error(error, api.where.url))


def _is_over(api: Api, path: str, request: LogRequest, offset: int) -> bool:
    """Asks whether the log has ended: a server that shuts down ends its answers as if it had."""
    try:
        page = api.get(path, {"offset": offset, "lines": 1, **request.where})
    except CliError as error:
        if will_pass(error):
            return False
        raise
    return bool((page["ended"] or page["attempt"] is None) and page["size"] <= offset)


class LineJoiner:
    """Puts lines together again that the server shows in pieces, because they are long.

    Of a progress line that comes in several pieces, each shows the last state that is whole. A line that grows without
    one is shown in parts.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._at = ""
        self._was_shown = False
        """Whether a state of the line whose end has not come was shown."""

    @property
    def is_waiting(self) -> bool:
        """Tells whether a line has begun whose end has not come."""
        return bool(self._pieces) or self._was_shown

    def feed(self, at: str, data: bytes, *, ends: bool) -> Iterator[tuple[str, bytes]]:
        if not self._pieces:
            self._at = at
        self._pieces.append(data)
        if not ends and b"\r" not in data:
            if sum(map(len, self._pieces)) > LONGEST_LINE:
                yield self._at, b"".join(self._pieces)
                self._pieces, self._was_shown = [], True
            return
        *states, rest = b"".join(self._pieces).split(b"\r")
        self._pieces = [] if ends or not rest else [rest]
        whole = [state for state in (*states, rest if ends else b"") if state]
        if whole or (ends and not self._was_shown):
            yield self._at, whole[-1] if whole else b""
        self._was_shown = not ends
        self._at = at


def _lines(api: Api, job_id: str, path: str, request: LogRequest) -> Iterator[tuple[str, bytes]]:
    """Yields every line with its time, reading a page of them at a time."""
    place: dict[str, Any] = {"tail": request.tail, "since": request.since}
    if request.tail is None and request.since is None:
        place = {"offset": 0}
    joiner = LineJoiner()
    left = RECONNECTS
    while True:
        try:
            page = _page(api, path, request, place)
            content = _content_of(api, path, request, page, joiner)
            is_followed = request.follow and not _has_ended(api, job_id, page)
        except CliError as error:
            left -= 1
            if not request.follow or not will_pass(error) or left <= 0:
                raise
            time.sleep(RECONNECT_S)
            continue
        left = RECONNECTS
        at_end = page["end"] >= page["size"]
        over = at_end and not is_followed
        place = {"offset": page["end"]}
        for line, data in zip(page["lines"], content, strict=True):
            if line["partial"] and not over:
                place = {"offset": line["offset"]}
                break
            yield from joiner.feed(line["at"] or NO_TIME, data.removesuffix(b"\n"), ends=data.endswith(b"\n"))
        if over:
            if joiner.is_waiting:
                yield from joiner.feed(NO_TIME, b"", ends=True)
            return
        if at_end:
            time.sleep(RECONNECT_S)


def _has_ended(api: Api, job_id: str, page: dict[str, Any]) -> bool:
    """Tells whether nothing more will come: the attempt is over, or the job before it had one."""
    if page["attempt"] is None:
        job = lookup.job(api, job_id)
        return job["status"] in TERMINAL and not job.get("attempt")
    return bool(page["ended"])


def _page(api: Api, path: str, request: LogRequest, place: dict[str, Any]) -> dict[str, Any]:
    if (place.get("tail") or 0) > PAGE_LINES:
        place = {"offset": _tail_begins_at(api, path, request)}
    lines = None if place.get("tail") is not None else PAGE_LINES
    page: dict[str, Any] = api.get(path, {**place, "lines": lines, **request.where})
    request.attempt = request.attempt or page["attempt"]
    return page


def _tail_begins_at(api: Api, path: str, request: LogRequest) -> int:
    """Asks where so many of the last lines begin: a page has fewer than a text may have."""
    try:
        with api.stream(
            path, {"tail": request.tail, **request.where}, read_timeout_s=CONTENT_TIMEOUT_S, kind=TEXT
        ) as answer:
            return _number(answer.headers.get(OFFSET_HEADER))
    except httpx2.TransportError as error:
        raise _failure(api, error) from None


def _content_of(
    api: Api, path: str, request: LogRequest, page: dict[str, Any], joiner: LineJoiner
) -> list[bytes]:
    """Returns the bytes of each line of a page with their line end. They are read where one may be longer than its text."""
    begins = [line["offset"] for line in page["lines"]]
    if not begins:
        return []
    ends = [*begins[1:], page["end"]]
    if not joiner.is_waiting and all(
        end - begin <= SHORT_BYTES for begin, end in zip(begins, ends, strict=True)
    ):
        return [
            line["text"].encode("utf-8", "replace") + (b"" if line["partial"] else b"\n")
            for line in page["lines"]
        ]
    first = begins[0]
    where = {"offset": first, "limit": page["end"] - first, **request.where}
    content = api.content(path, where, kind=TEXT)
    return [content[begin - first : end - first] for begin, end in zip(begins, ends, strict=True)]


def _offset(answer: httpx2.Response, query: dict[str, Any]) -> int | None:
    text = answer.headers.get(OFFSET_HEADER, "")
    if text.isdecimal():
        return int(text)
    cut = query.get("tail") is not None or query.get("since") is not None
    return None if cut else int(query.get("offset") or 0)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise usage(
            _("--grep is not a valid pattern"),
            _("Python's re says: %(problem)s", problem=error),
            _("quote special characters with a backslash"),
        ) from None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
