"""The audit log: read, counted, verified."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.audit import Problem
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.http.deps import deps
from simpletuner_fleet.http.routes import Call, Route
from simpletuner_fleet.http.times import read_time
from simpletuner_fleet.http.views import AuditView, audit_view
from simpletuner_fleet.orchestrator import auditing
from simpletuner_fleet.ports import AuditFilter, View

TAGS = ("audit",)
PERMISSION = "admin.audit"


class AuditQuery(Struct, kw_only=True):
    event_type: str | None = None
    actor_id: str | None = None
    target_type: str | None = None
    target_id: str | None = None
    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0


class AuditPage(Struct, kw_only=True):
    entries: list[AuditView]
    total: int


class AuditStats(Struct, kw_only=True):
    total: int
    by_type: dict[str, int]


class AuditTypes(Struct, kw_only=True):
    types: list[str]


class Verified(Struct, kw_only=True):
    valid: bool
    checked: int
    problems: list[Problem]


async def list_entries(call: Call[None]) -> AuditPage:
    query: AuditQuery = call.query
    where = AuditFilter(
        event_type=query.event_type,
        actor_id=query.actor_id,
        target_type=query.target_type,
        target_id=query.target_id,
        since=read_time(query.since, "$.since"),
        until=read_time(query.until, "$.until"),
    )

    def look(view: View) -> AuditPage:
        entries = view.audit_page(where, query.limit, query.offset)
        return AuditPage(entries=[audit_view(entry) for entry in entries], total=view.audit_count(where))

    return await deps(call).fleet.read(look)


async def stats(call: Call[None]) -> AuditStats:
    by_type = await deps(call).fleet.read(lambda view: view.audit_stats())
    return AuditStats(total=sum(by_type.values()), by_type=by_type)


async def types(call: Call[None]) -> AuditTypes:
    return AuditTypes(types=[str(kind) for kind in EventType])


async def verify(call: Call[None]) -> Verified:
    checked, problems = await auditing.verify(deps(call).fleet)
    return Verified(valid=not problems, checked=checked, problems=problems)


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
        answer=Verified,
        summary="Whether the log is whole: no entry changed, missing or cut off",
        tags=TAGS,
    ),
]
