"""Reads, counts, exports and verifies the audit log."""

import csv
import io
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from simpletuner_fleet.core.audit import AuditEntry, Problem
from simpletuner_fleet.core.bounds import Count
from simpletuner_fleet.core.cells import harmless_cell
from simpletuner_fleet.core.events import SECURITY, SECURITY_EVENTS, EventType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.older.event_names import event_named
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.edge.streams import Chunks
from simpletuner_fleet.http.views.records import AuditEntryView, audit_view
from simpletuner_fleet.http.views.times import read_time
from simpletuner_fleet.ports import AuditFilter, View
from simpletuner_fleet.queries import audit_log as auditing

TAGS = ("audit",)
PERMISSION = "admin.audit"


COLUMNS = ("id", "at", "event_type", "actor", "actor_id", "ip", "target_type", "target_id", "details", "hash")


class AuditWhere(Struct, kw_only=True):
    event_type: str | None = None
    """One type, or `security` for all that tell who can get in and who may do more than before."""
    actor_id: str | None = None
    target_type: str | None = None
    target_id: str | None = None
    since: str | None = None
    until: str | None = None


class ExportQuery(AuditWhere, kw_only=True):
    format: Literal["jsonl", "csv"] = "jsonl"


class AuditQuery(AuditWhere, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Count = 0


class AuditPage(Struct, kw_only=True):
    entries: list[AuditEntryView]
    total: int


class AuditStats(Struct, kw_only=True):
    total: int
    by_type: dict[str, int]


class AuditTypes(Struct, kw_only=True):
    types: list[str]


class AuditVerification(Struct, kw_only=True):
    valid: bool
    checked: int
    problems: list[Problem]
    emptied: int
    """So many of the oldest entries were kept long enough and have their hash alone: the rest was checked from there."""


async def list_entries(call: Call[None]) -> AuditPage:
    query: AuditQuery = call.query
    where = wanted(query)

    def look(view: View) -> AuditPage:
        entries = view.audit_page(where, query.limit, query.offset)
        return AuditPage(entries=[audit_view(entry) for entry in entries], total=view.audit_count(where))

    return await deps_of(call).fleet.scan(look)


def wanted(query: AuditWhere) -> AuditFilter:
    security = query.event_type == SECURITY
    return AuditFilter(
        event_type=event_named(query.event_type) if query.event_type and not security else None,
        event_types=SECURITY_EVENTS if security else frozenset(),
        actor_id=query.actor_id,
        target_type=query.target_type,
        target_id=query.target_id,
        since=read_time(query.since, "$.since"),
        until=read_time(query.until, "$.until"),
    )


async def export(call: Call[None]) -> Chunks:
    """Streams all matching entries, oldest first, as fast as they are read."""
    query: ExportQuery = call.query
    fleet, where = deps_of(call).fleet, wanted(query)
    pieces = _as_csv(fleet, where) if query.format == "csv" else _as_lines(fleet, where)
    kind = b"text/csv; charset=utf-8" if query.format == "csv" else b"application/x-ndjson"
    return Chunks(
        pieces,
        headers=[
            (b"content-type", kind),
            (b"content-disposition", f'attachment; filename="audit.{query.format}"'.encode()),
            (b"cache-control", b"no-store"),
        ],
    )


async def _as_lines(fleet: Fleet, where: AuditFilter) -> AsyncGenerator[bytes, None]:
    async for entries in auditing.entries_in_order(fleet, where):
        yield b"".join(msgspec.json.encode(audit_view(entry)) + b"\n" for entry in entries)


async def _as_csv(fleet: Fleet, where: AuditFilter) -> AsyncGenerator[bytes, None]:
    yield _csv([COLUMNS])
    async for entries in auditing.entries_in_order(fleet, where):
        yield _csv([_cells(entry) for entry in entries])


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _cells(entry: AuditEntry) -> list[str]:
    cells = (
        str(entry.seq),
        rfc3339(entry.at) or "",
        entry.event_type,
        entry.actor_name,
        entry.actor_id,
        entry.ip,
        entry.target_type,
        entry.target_id,
        msgspec.json.encode(entry.details).decode(),
        entry.hash,
    )
    return [harmless_cell(cell) for cell in cells]


async def stats(call: Call[None]) -> AuditStats:
    by_type = await deps_of(call).fleet.read(lambda view: view.audit_stats())
    return AuditStats(total=sum(by_type.values()), by_type=by_type)


async def types(call: Call[None]) -> AuditTypes:
    return AuditTypes(types=[str(kind) for kind in EventType])


async def verify(call: Call[None]) -> AuditVerification:
    verdict = await auditing.verify(deps_of(call).fleet, deps_of(call).audit_heads)
    return AuditVerification(
        valid=not verdict.problems,
        checked=verdict.checked,
        problems=verdict.problems,
        emptied=verdict.emptied,
    )


ROUTES = [
    Route(
        "GET",
        "/api/audit",
        list_entries,
        PERMISSION,
        answer=AuditPage,
        summary="What happened, newest first",
        query=AuditQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/audit/export",
        export,
        PERMISSION,
        summary="All entries that fit, oldest first, as lines of JSON or as CSV",
        query=ExportQuery,
        tags=TAGS,
        stream=True,
    ),
    Route(
        "GET",
        "/api/audit/stats",
        stats,
        PERMISSION,
        answer=AuditStats,
        summary="Entries per event type",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/audit/types",
        types,
        PERMISSION,
        answer=AuditTypes,
        summary="Every event type there is",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/audit/verify",
        verify,
        PERMISSION,
        answer=AuditVerification,
        summary="Whether the log is whole: no entry changed, missing or cut off",
        tags=TAGS,
    ),
]
