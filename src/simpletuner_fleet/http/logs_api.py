"""The log of a job: all of it, its tail, a piece of it, or as it grows."""

import codecs
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import Invalid, NotFound
from simpletuner_fleet.core.job import Attempt, Job
from simpletuner_fleet.http.deps import Deps, deps
from simpletuner_fleet.http.routes import Call, Route
from simpletuner_fleet.http.sse_response import EVENT_HEADERS, Chunks, RawHeaders
from simpletuner_fleet.orchestrator.report import log_key
from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.sse import encode_raw

CHUNK_BYTES = 128 * 1024
TAIL_BYTES = 16 * 1024 * 1024
LOOK_AGAIN_S = 1.0
QUIET_ROUNDS_PER_COMMENT = 15
COMMENT = b": \n\n"
Amount = Annotated[int, Meta(ge=0)]


class LogQuery(Struct, kw_only=True):
    tail: Amount | None = None
    """Only the last so many lines."""
    offset: Amount | None = None
    """Bytes to skip."""
    limit: Amount | None = None
    """Bytes to send at most."""
    attempt: Annotated[int, Meta(ge=1)] | None = None
    """Number of the try; the newest one unless told."""
    follow: bool = False


class Piece(Struct):
    """What to send: from `start`, and up to `end` unless the log is followed."""

    start: int
    end: int
    size: int


class LogText(Struct, kw_only=True):
    text: str
    offset: int
    """Of the byte after this text; the event's id says the same."""


class LogEnd(Struct, kw_only=True):
    attempt: int | None
    outcome: str | None


async def logs(call: Call[None]) -> Chunks:
    house, query, job_id = deps(call), call.query, call.path["id"]
    as_events = "text/event-stream" in call.headers.get("accept", "")
    if as_events and query.offset is None:
        query.offset = _resumed_at(call.headers.get("last-event-id"))
    _, attempt = await _look(house, job_id, query.attempt)
    if query.attempt is not None and attempt is None and not query.follow:
        raise NotFound(f"Job {job_id} has no attempt {query.attempt}.")
    piece = await _piece(house, attempt, query)
    chunks = _follow(house, job_id, query, piece.start) if query.follow else _read(house, attempt, piece)
    if as_events:
        return Chunks(_events(house, job_id, query.attempt, chunks, piece.start), headers=EVENT_HEADERS)
    return Chunks(chunks, headers=_text_headers(job_id, piece))


def _resumed_at(last_event_id: str | None) -> int | None:
    return int(last_event_id) if last_event_id and last_event_id.isdecimal() else None


async def _look(house: Deps, job_id: str, number: int | None) -> tuple[Job, Attempt | None]:
    """The job and the try that is meant, if there was one yet."""

    def look(view: View) -> tuple[Job, Attempt | None]:
        job = view.job(job_id)
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        tries = view.attempts_of_job(job_id)
        if number is None:
            return job, _newest_told(tries)
        return job, next((one for one in tries if one.number == number), None)

    job, attempt = await house.fleet.read(look)
    if number is not None and attempt is None and (job.terminal or number <= job.attempts):
        raise NotFound(f"Job {job_id} has no attempt {number}.")
    return job, attempt


def _newest_told(tries: list[Attempt]) -> Attempt | None:
    """An offer nobody took has no log to show while an earlier try has one."""
    accepted = [one for one in tries if one.accepted_at is not None]
    return accepted[-1] if accepted else tries[-1] if tries else None


async def _piece(house: Deps, attempt: Attempt | None, query: LogQuery) -> Piece:
    if query.tail is not None and query.offset is not None:
        raise Invalid("Give tail or offset, not both.", path="$.tail")
    size = await house.blobs.size(log_key(attempt.id)) if attempt else 0
    start = query.offset or 0
    if query.tail is not None and attempt:
        start = await _start_of_tail(house, attempt, size, query.tail)
    end = size if query.limit is None else min(size, start + query.limit)
    return Piece(start, end, size)


async def _start_of_tail(house: Deps, attempt: Attempt, size: int, lines: int) -> int:
    """Reads backwards; a tail is never longer than some megabytes."""
    floor = max(0, size - TAIL_BYTES)
    start, wanted = size, lines + 1
    if lines == 0:
        return size
    while start > floor:
        at = max(floor, start - CHUNK_BYTES)
        block = await house.blobs.read(log_key(attempt.id), at, start - at)
        if start == size:
            wanted -= not block.endswith(b"\n")
        while (cut := block.rfind(b"\n")) >= 0:
            wanted -= 1
            if wanted == 0:
                return at + cut + 1
            block = block[:cut]
        start = at
    return floor


async def _read(house: Deps, attempt: Attempt | None, piece: Piece) -> AsyncGenerator[bytes, None]:
    at = piece.start
    while attempt and at < piece.end:
        data = await house.blobs.read(log_key(attempt.id), at, min(CHUNK_BYTES, piece.end - at))
        if not data:
            return
        at += len(data)
        yield data


async def _follow(house: Deps, job_id: str, query: LogQuery, start: int) -> AsyncGenerator[bytes, None]:
    """Until the try has ended and all it left was sent. An empty chunk says: still here, nothing new."""
    at, number, quiet = start, query.attempt, 0
    while True:
        job, attempt = await _look(house, job_id, number)
        if attempt and attempt.accepted_at is not None:
            number = attempt.number
        over = job.terminal if attempt is None else not attempt.live and (number is not None or job.terminal)
        data = await house.blobs.read(log_key(attempt.id), at, CHUNK_BYTES) if attempt else b""
        if data:
            at, quiet = at + len(data), 0
            yield data
        elif over:
            return
        else:
            await house.log_bells.wait(job_id, LOOK_AGAIN_S)
            quiet += 1
            if quiet % QUIET_ROUNDS_PER_COMMENT == 0:
                yield b""


async def _events(
    house: Deps, job_id: str, number: int | None, chunks: AsyncGenerator[bytes, None], start: int
) -> AsyncGenerator[bytes, None]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    at = start
    async for chunk in chunks:
        at += len(chunk)
        text = decoder.decode(chunk)
        told = at - len(decoder.getstate()[0])
        yield (
            encode_raw("log", told, msgspec.json.encode(LogText(text=text, offset=told))) if text else COMMENT
        )
    _, attempt = await _look(house, job_id, number)
    end = LogEnd(attempt=attempt.number if attempt else None, outcome=attempt.outcome if attempt else None)
    yield encode_raw("end", at, msgspec.json.encode(end))


def _text_headers(job_id: str, piece: Piece) -> RawHeaders:
    return [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-disposition", f'attachment; filename="{job_id}.log"'.encode("ascii", "replace")),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-log-offset", b"%d" % piece.start),
        (b"x-log-size", b"%d" % piece.size),
    ]


ROUTES = [
    Route(
        "GET",
        "/api/jobs/{id}/logs",
        logs,
        "jobs.read",
        summary="What the trainer printed, as bytes; follow=1 streams it as it grows",
        query=LogQuery,
        tags=("jobs",),
        stream=True,
    )
]
