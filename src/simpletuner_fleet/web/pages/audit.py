"""Shows Administration → Audit: who did what and when.

Filters are part of the address; the log can be verified and exported.
"""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import SECURITY, SECURITY_EVENTS, EventType
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.http.views.times import read_time
from simpletuner_fleet.languages import N_, current
from simpletuner_fleet.languages.names import event_name
from simpletuner_fleet.ports import AuditFilter, View
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.audit_rows import audit_row, refused_groups
from simpletuner_fleet.web.parts.names import all_names, id_of

PAGE_SIZE = 100
PATH = "/admin/audit"
REFUSALS_SINCE_S = 7 * 86_400.0
REFUSALS_READ = 500
GROUPS_SHOWN = 10
EVENT_GROUPS = {
    "worker": N_("Workers"),
    "job": N_("Jobs"),
    "machine": N_("Machines"),
    "pool": N_("Pools"),
    "config": N_("Configs"),
    "dataset": N_("Datasets"),
    "secret": N_("Secrets"),
    "token": N_("API tokens"),
    "user": N_("Users"),
    "sign_in": N_("Sign-in"),
    "scim": "SCIM",
    "role": N_("Roles"),
    "team": N_("Teams"),
    "quota": N_("Quotas"),
    "price": N_("Prices"),
    "currency": N_("Currency"),
    "approval_rule": N_("Approvals"),
    "notification": N_("Notifications"),
    "limits": N_("Limits"),
    "server": N_("Server"),
}
Word = Annotated[str, Meta(max_length=200)]


class AuditPageQuery(Struct, kw_only=True):
    event: Word = ""
    actor: Word = ""
    """A name or an id."""
    target: Word = ""
    since: Word = ""
    until: Word = ""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1


class Seen(Struct, frozen=True, kw_only=True):
    where: AuditFilter
    entries: list[AuditEntry]
    total: int
    refusals: list[AuditEntry]
    names: dict[str, str]
    """Of users, tokens and workers, by id."""


async def audit(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    since, until = read_time(query.since or None, "$.since"), read_time(query.until or None, "$.until")
    now = deps.fleet.clock.now()
    result = await deps.fleet.scan(lambda view: _look(view, query, since, until, now))
    with spoken(call):
        return page(
            call,
            "access/audit.html",
            query=query,
            filtered=any((query.event, query.actor, query.target, query.since, query.until)),
            rows=[audit_row(entry, result.names) for entry in result.entries],
            total=result.total,
            refused=refused_groups(result.refusals, result.names)[:GROUPS_SHOWN],
            kinds=event_choices(),
            security=SECURITY,
            people=sorted(set(result.names.values()), key=str.casefold)[:PAGE_SIZE],
            before=_turned(query, -1) if query.page > 1 else None,
            after=_turned(query, 1) if result.total > query.page * PAGE_SIZE else None,
            as_lines=_export(result.where, query, "jsonl"),
            as_csv=_export(result.where, query, "csv"),
            with_query=with_query,
        )


def _look(view: View, query: AuditPageQuery, since: float | None, until: float | None, now: float) -> Seen:
    names = all_names(view)
    security = query.event == SECURITY
    where = AuditFilter(
        event_type=query.event if query.event and not security else None,
        event_types=SECURITY_EVENTS if security else frozenset(),
        actor_id=id_of(query.actor, names),
        target_id=id_of(query.target, names),
        since=since,
        until=until,
    )
    failed = AuditFilter(event_type=EventType.WORKER_REGISTRATION_FAILED, since=now - REFUSALS_SINCE_S)
    asks_for_all = not (query.actor or query.target or query.since or query.until) and query.page == 1
    wants_refusals = asks_for_all and query.event in ("", EventType.WORKER_REGISTRATION_FAILED)
    return Seen(
        where=where,
        entries=view.audit_page(where, PAGE_SIZE, (query.page - 1) * PAGE_SIZE),
        total=view.audit_count(where),
        refusals=view.audit_page(failed, REFUSALS_READ, 0) if wants_refusals else [],
        names=names,
    )


def event_choices() -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns every type of event with its name, grouped by what it is about."""
    words = current()
    return [
        (title, [(str(kind), event_name(words, kind)) for kind in EventType if kind.startswith(f"{about}.")])
        for about, title in EVENT_GROUPS.items()
    ]


def _export(where: AuditFilter, query: AuditPageQuery, form: str) -> str:
    return with_query(
        "/api/audit/export",
        format=form,
        event_type=query.event or None,
        actor_id=where.actor_id,
        target_id=where.target_id,
        since=query.since,
        until=query.until,
    )


def _turned(query: AuditPageQuery, by: int) -> str:
    return with_query(
        PATH,
        event=query.event,
        actor=query.actor,
        target=query.target,
        since=query.since,
        until=query.until,
        page=query.page + by,
    )


ROUTES = (Route("GET", PATH, audit, "admin.audit", summary="Audit log", query=AuditPageQuery),)
