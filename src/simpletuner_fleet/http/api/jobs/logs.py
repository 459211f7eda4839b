"""Serves the log of a job: all of it, its tail, a range, a page of lines, or as it grows."""

import codecs
import re
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Count, Version
from simpletuner_fleet.core.errors import Invalid, InvalidToken, NotFound, no_such_job
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.api.jobs.log_pages import Block, LogPage, page_of, stamped
from simpletuner_fleet.http.edge.exchange import RawHeaders
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.edge.streams import EVENT_HEADERS, Chunks
from simpletuner_fleet.http.views.times import read_time
from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.sse import encode_raw
from simpletuner_fleet.storage.log_reading import StoredLog

CHUNK_BYTES = 128 * 1024
LOOK_AGAIN_S = 1.0
QUIET_ROUNDS_PER_COMMENT = 15
COMMENT = b": \n\n"
PAGE_LINES = 1000
MAX_LINES = 10_000
OFFSET = re.compile(r"\d{1,15}", re.ASCII)
"""What we have ever sent as the id of an event; anything else is somebody else's."""
SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)
Rank = Annotated[int, Meta(ge=0, le=1023)]


class LogQuery(Struct, kw_only=True):
    tail: Count | None = None
    """Sends only the last so many lines."""
    offset: Count | None = None
    """How many bytes to skip."""
    since: str | None = None
    """Sends only what was seen since a time in RFC 3339, or since so many seconds ago."""
    before: Count | None = None
    """Sends only lines before this offset: the last so many as `lines` says."""
    limit: Count | None = None
    """How many bytes to send at most."""
    lines: Annotated[int, Meta(ge=1, le=MAX_LINES)] | None = None
    """How many lines to send at most; a page of JSON has 1,000 by default."""
    attempt: Version | None = None
    """The number of the attempt; by default the newest one."""
    rank: Rank = 0
    """The process whose own output is meant, where the launcher writes it; 0 is the main output."""
    follow: bool = False
    timestamps: bool = False
    """Puts the time before each line of text."""


class LogRange(Struct):
    """Describes the range of a log to send: from `start`, and up to `end` unless the log is followed."""

    start: int
    end: int
    size: int


class LogTextEvent(Struct, kw_only=True):
    text: str
    offset: int
    """The offset of the byte after this text; the event's id says the same."""
    at: str | None = None
    """When its first byte was seen by the worker."""


class LogEndEvent(Struct, kw_only=True):
    attempt: int | None
    outcome: str | None


async def logs(call: Call[None]) -> Chunks | LogPage:
    deps, query, job_id = deps_of(call), call.query, call.path["id"]
    accepts = call.headers.get("accept", "")
    as_events, as_page = "text/event-stream" in accepts, "application/json" in accepts and not query.follow
    if as_events:
        query.offset = _resumed_at(call.headers.get("last-event-id"), query.offset)
    _, attempt = await look(deps, job_id, query.attempt)
    if query.attempt is not None and attempt is None and not query.follow:
        raise NotFound(f"Job {job_id} has no attempt {query.attempt}.")
    log = stored_log(deps, attempt, query.rank)
    if as_page and query.offset is None and query.since is None and query.before is None:
        query.tail = min(query.tail or query.lines or PAGE_LINES, MAX_LINES)
    piece = await _piece(deps, log, query)
    if as_page:
        most = query.lines or query.tail or PAGE_LINES
        return await page_of(log, attempt, query.rank, piece.start, piece.end, piece.size, most)
    blocks = _follow(call, piece.start) if query.follow else _read(log, piece)
    headers = EVENT_HEADERS if as_events else _text_headers(job_id, attempt, piece)
    if as_events:
        chunks = _events(deps, job_id, query.attempt, blocks, piece.start)
    else:
        chunks = stamped(blocks) if query.timestamps else _bytes(blocks)
    if not query.follow:
        return Chunks(chunks, headers=headers)
    caller, ip = call.principal.id, call.ip
    deps.following.enter(caller, ip)
    return Chunks(chunks, headers=headers, on_close=lambda: deps.following.leave(caller, ip))


def _resumed_at(last_event_id: str | None, asked: int | None) -> int | None:
    """Returns where to go on: a browser that reconnects repeats its query, and says in the header how far it got."""
    return int(last_event_id) if last_event_id and OFFSET.fullmatch(last_event_id) else asked


def stored_log(deps: Deps, attempt: Attempt | None, rank: int) -> StoredLog | None:
    return StoredLog(deps.blobs, attempt.id, rank) if attempt else None


async def look(deps: Deps, job_id: str, number: int | None) -> tuple[Job, Attempt | None]:
    """Returns the job and the attempt that is meant, if there was one yet."""

    def seen(view: View) -> tuple[Job, Attempt | None]:
        job = view.job(job_id)
        if job is None:
            raise no_such_job(job_id)
        tries = view.attempts_of_job(job_id)
        if number is None:
            return job, _newest_with_log(tries)
        return job, next((one for one in tries if one.number == number), None)

    job, attempt = await deps.fleet.read(seen)
    if number is not None and attempt is None and (job.terminal or number <= job.attempts):
        raise NotFound(f"Job {job_id} has no attempt {number}.")
    return job, attempt


def _newest_with_log(tries: list[Attempt]) -> Attempt | None:
    """Returns the newest accepted attempt, or else the newest.

    An offer that nobody accepted has no log to show while an earlier attempt has one.
    """
    accepted = [one for one in tries if one.accepted_at is not None]
    return accepted[-1] if accepted else tries[-1] if tries else None


async def _piece(deps: Deps, log: StoredLog | None, query: LogQuery) -> LogRange:
    given = [name for name in ("tail", "offset", "since", "before") if getattr(query, name) is not None]
    if len(given) > 1:
        raise Invalid(f"Set {given[0]} or {given[1]}, not both.", path=f"$.{given[0]}")
    since = _since(query.since, deps.fleet.clock.now())
    if log is None:
        return LogRange(query.offset or 0, 0, 0)
    size = end = await log.size()
    start = query.offset or 0
    if query.tail is not None:
        start = await log.start_of_lines_before(size, query.tail)
    elif query.before is not None:
        end = min(size, query.before)
        start = await log.start_of_lines_before(end, query.lines or PAGE_LINES)
    elif since is not None:
        start = await log.line_start(await log.offset_since(since))
    if query.limit is not None:
        end = min(end, start + query.limit)
    return LogRange(start, end, size)


def _since(text: str | None, now: float) -> float | None:
    return now - float(text) if text and SECONDS.fullmatch(text) else read_time(text, "$.since")


async def _read(log: StoredLog | None, piece: LogRange) -> AsyncGenerator[Block, None]:
    at = piece.start
    while log and at < piece.end:
        data = await log.read(at, min(CHUNK_BYTES, piece.end - at))
        if not data:
            return
        yield Block(at, data, log)
        at += len(data)


async def _follow(call: Call[None], start: int) -> AsyncGenerator[Block, None]:
    """Yields blocks until the attempt has ended and all of its log was sent.

    An empty block says that there is nothing new. Raises InvalidToken once the caller's token or session has expired.
    """
    deps, query, job_id = deps_of(call), call.query, call.path["id"]
    at, number, quiet = start, query.attempt, 0
    while not call.has_expired(deps.fleet.clock.now()):
        job, attempt = await look(deps, job_id, number)
        if attempt and attempt.accepted_at is not None:
            number = attempt.number
        over = job.terminal if attempt is None else not attempt.live and (number is not None or job.terminal)
        log = stored_log(deps, attempt, query.rank)
        data = await log.read(at, CHUNK_BYTES) if log else b""
        if data:
            yield Block(at, data, log)
            at, quiet = at + len(data), 0
        elif over:
            return
        else:
            await deps.log_wakeups.wait(job_id, LOOK_AGAIN_S)
            quiet += 1
            if quiet % QUIET_ROUNDS_PER_COMMENT == 0:
                yield Block(at, b"", log)
    raise InvalidToken


async def _bytes(blocks: AsyncGenerator[Block, None]) -> AsyncGenerator[bytes, None]:
    async for block in blocks:
        yield block.data


async def _events(
    deps: Deps, job_id: str, number: int | None, blocks: AsyncGenerator[Block, None], start: int
) -> AsyncGenerator[bytes, None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    at = start
    async for block in blocks:
        unfinished_bytes = len(decoder.getstate()[0])
        text = decoder.decode(block.data)
        at = block.offset + len(block.data)
        if not text:
            yield COMMENT
            continue
        text_end = at - len(decoder.getstate()[0])
        times = await block.log.times_of([block.offset - unfinished_bytes]) if block.log else [None]
        event = LogTextEvent(text=text, offset=text_end, at=rfc3339(times[0]))
        yield encode_raw("log", text_end, msgspec.json.encode(event))
    _, attempt = await look(deps, job_id, number)
    end = LogEndEvent(
        attempt=attempt.number if attempt else None, outcome=attempt.outcome if attempt else None
    )
    yield encode_raw("end", at, msgspec.json.encode(end))


def _text_headers(job_id: str, attempt: Attempt | None, piece: LogRange) -> RawHeaders:
    number = attempt.number if attempt and attempt.accepted_at is not None else 0
    return [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-disposition", f'attachment; filename="{job_id}.log"'.encode("ascii", "replace")),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-log-offset", b"%d" % piece.start),
        (b"x-log-size", b"%d" % piece.size),
        (b"x-log-attempt", b"%d" % number),
    ]


ROUTES = [
    Route(
        "GET",
        "/api/jobs/{id}/logs",
        logs,
        "jobs.read",
        summary="What the trainer printed: bytes, or a page of lines for who accepts JSON; follow=1 streams it as it grows",
        query=LogQuery,
        tags=("jobs",),
        stream=True,
    )
]
