"""Searches the log of a job, a second's worth at a time."""

from typing import Annotated

from msgspec import Meta, Struct, field

from simpletuner_fleet.core.bounds import Count, Version
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.api.jobs.log_pages import MAX_TEXT_CHARS
from simpletuner_fleet.http.api.jobs.log_search import SearchResult, search_pattern, search_text
from simpletuner_fleet.http.api.jobs.logs import Rank, look, stored_log
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.storage.log_reading import StoredLog

MAX_QUERY_CHARS = 500
MAX_MATCHES = 1000


class SearchQuery(Struct, kw_only=True):
    q: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARS)]
    regex: bool = False
    """`q` is a pattern as Python's `re` has them, for bytes; otherwise plain text."""
    attempt: Version | None = None
    rank: Rank = 0
    start: Count = field(default=0, name="from")
    """The offset to go on at: `next` of the answer before."""
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES)] = 100
    """Matches at most."""


class Match(Struct, kw_only=True):
    offset: int
    """The offset of the line's first byte."""
    line_text: str
    at: str | None


class Matches(Struct, kw_only=True):
    attempt: int | None
    rank: int
    matches: list[Match]
    next: int
    """The offset to go on at, unless `done`."""
    scanned: int
    """Bytes that this call has looked at."""
    size: int
    done: bool


async def _search(deps: Deps, log: StoredLog, query: SearchQuery) -> SearchResult:
    if not query.regex:
        return await search_text(log, query.q, query.start, query.limit)
    async with deps.log_searches:
        return await search_pattern(log, query.q, query.start, query.limit)


async def search(call: Call[None]) -> Matches:
    """Searches for about a second, then says how far it came."""
    deps, query = deps_of(call), call.query
    _, attempt = await look(deps, call.path["id"], query.attempt)
    log = stored_log(deps, attempt, query.rank)
    if "\n" in query.q:
        raise Invalid("The search works line by line, so it cannot contain a newline.", path="$.q")
    if log is None:
        return Matches(attempt=None, rank=query.rank, matches=[], next=0, scanned=0, size=0, done=True)
    with deps.searching.one_more(call.principal.id, call.ip):
        result = await _search(deps, log, query)
    size = await log.size()
    times = await log.times_of([hit.offset for hit in result.hits])
    return Matches(
        attempt=attempt.number if attempt else None,
        rank=query.rank,
        matches=[
            Match(
                offset=hit.offset,
                line_text=hit.line.decode("utf-8", "replace")[:MAX_TEXT_CHARS],
                at=rfc3339(at),
            )
            for hit, at in zip(result.hits, times, strict=True)
        ],
        next=result.next,
        scanned=result.next - query.start,
        size=size,
        done=result.next >= size,
    )


ROUTES = [
    Route(
        "GET",
        "/api/jobs/{id}/logs/search",
        search,
        "jobs.read",
        answer=Matches,
        summary="Lines of a job's log that hold a text or match a pattern; looks for about a second, `next` goes on",
        query=SearchQuery,
        tags=("jobs",),
    )
]
