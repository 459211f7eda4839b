"""Takes logs from workers: raw bytes, or base64 in JSON from older agents."""

import base64
import binascii
from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Count, Whole
from simpletuner_fleet.core.errors import Invalid, TooLarge
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.api.workers.uploads import claim_of
from simpletuner_fleet.http.edge.routes import KIB, UPLOAD, Call, Route
from simpletuner_fleet.protocol.messages import LOG_AGES_HEADER, LogAnswer, LogChunk
from simpletuner_fleet.storage.logs import MAX_GAP, LogPiece, TimeMark, append_log

MAX_LOG_BYTES = 2 * 1024 * KIB * KIB
MAX_PIECE_BYTES = KIB * KIB
MAX_MARKS = 1024
MAX_RANK = 1023
TAGS = ("workers",)


class PieceQuery(Struct, kw_only=True):
    epoch: Whole
    offset: Count
    """The offset of the first byte of this piece."""
    gap: Annotated[int, Meta(ge=0, le=MAX_GAP)] = 0
    """Bytes that were left out just before it."""
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] = 0


async def put_log(call: Call[bytes | None]) -> LogAnswer:
    deps, query = deps_of(call), call.query
    data = call.body or b""
    marks = _marks(call.headers.get(LOG_AGES_HEADER, ""), query.offset, len(data), deps.fleet.clock.now())
    piece = LogPiece(offset=query.offset, data=data, rank=query.rank, gap=query.gap, marks=marks)
    return await _take(deps, call, query.epoch, piece)


async def post_log(call: Call[LogChunk]) -> LogAnswer:
    chunk = call.body
    try:
        data = base64.b64decode(chunk.data, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid("data is base64.", path="$.data") from None
    if chunk.offset < 0:
        raise Invalid("offset is 0 or more.", path="$.offset")
    piece = LogPiece(offset=chunk.offset, data=data, gap=max(0, chunk.gap))
    return await _take(deps_of(call), call, chunk.epoch, piece)


async def _take(deps: Deps, call: Call[Any], epoch: int, piece: LogPiece) -> LogAnswer:
    claim = claim_of(call, epoch)
    if piece.offset + len(piece.data) > MAX_LOG_BYTES:
        raise TooLarge(f"The log of one attempt may have at most {MAX_LOG_BYTES} bytes.")
    size = await append_log(deps.storage, claim, piece)
    deps.log_wakeups.wake(claim.job_id)
    return LogAnswer(next_offset=size)


def _marks(header: str, start: int, length: int, now: float) -> tuple[TimeMark, ...]:
    """Reads `offset:milliseconds ago,…`; offsets must rise and be within the piece."""
    marks: list[TimeMark] = []
    words = header.split(",") if header else []
    if len(words) > MAX_MARKS:
        raise Invalid(f"{LOG_AGES_HEADER} has at most {MAX_MARKS} entries.", path=LOG_AGES_HEADER)
    for word in words:
        offset, _, age_ms = word.partition(":")
        fits = offset.isascii() and offset.isdecimal() and age_ms.isascii() and age_ms.isdecimal()
        if not fits or len(word) > 40 or not start <= int(offset) <= start + length:
            raise Invalid(
                f"{LOG_AGES_HEADER} is offset:milliseconds,… within the piece.", path=LOG_AGES_HEADER
            )
        if marks and int(offset) <= marks[-1].offset:
            raise Invalid(f"The offsets of {LOG_AGES_HEADER} rise.", path=LOG_AGES_HEADER)
        marks.append(TimeMark(int(offset), max(0.0, now - int(age_ms) / 1000)))
    return tuple(marks)


ROUTES = [
    Route(
        "PUT",
        "/api/workers/job/{id}/logs",
        put_log,
        UPLOAD,
        bytes,
        LogAnswer,
        "Append bytes to the log of an attempt, resumable by offset; none asks how much is there",
        max_body_bytes=MAX_PIECE_BYTES,
        body_required=False,
        query=PieceQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/logs",
        post_log,
        UPLOAD,
        LogChunk,
        LogAnswer,
        "The same in JSON, from older agents",
        max_body_bytes=2 * KIB * KIB,
        tags=TAGS,
    ),
]
