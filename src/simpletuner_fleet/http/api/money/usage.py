"""Reports use: the caller's own and their teams', and for administrators everybody's."""

import csv
import io
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from simpletuner_fleet.core.cells import harmless_cell
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import plain_amount
from simpletuner_fleet.core.money.reports import MAX_SPAN_S, UsageLine, UsageReport, UsedBy, reports
from simpletuner_fleet.core.placement.usage import month_of
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route, rfc3339
from simpletuner_fleet.http.views.fields import Time
from simpletuner_fleet.http.views.times import read_moment
from simpletuner_fleet.ports import View

TAGS = ("money",)
USAGE = "/api/usage"
SEEN_BY = "jobs.read"
COLUMNS = ("key", "name", "attempts", "gpu_hours", "cost", "currency", "at_least", "unpriced_gpu_hours")
HOUR_S = 3600.0
Word = Annotated[str, Meta(max_length=40)]


class UsageQuery(Struct, kw_only=True):
    by: UsedBy = UsedBy.PERSON
    since: Word | None = None
    """A time, or so long ago, as 30d; the first of this month where it is left out."""
    until: Word | None = None


class ExportUsageQuery(UsageQuery, kw_only=True):
    format: Literal["csv"] = "csv"


class UsageLineView(Struct, kw_only=True):
    key: str
    name: str
    """How it is called; empty: nobody's, no team's, or not known. `*`: what one may not see."""
    attempts: int
    gpu_hours: float
    cost_micros: int
    """In millionths of the currency's unit."""
    at_least: bool
    """Some of it was used at a price that nobody knows, and is not in the cost."""
    unpriced_gpu_hours: float


class UsageView(Struct, kw_only=True):
    by: str
    since: Time
    until: Time
    currency: str
    total: UsageLineView
    lines: list[UsageLineView]


class UsageSeen(Struct, frozen=True, kw_only=True):
    report: UsageReport
    names: dict[str, str]
    """Of the people and teams in it, by id."""


async def usage(call: Call[None]) -> UsageView:
    [seen] = await usage_seen(call, call.query)
    return usage_view(seen, deps_of(call).fleet.organisation.prices.currency)


async def export(call: Call[None]) -> Reply:
    [seen] = await usage_seen(call, call.query)
    shown = usage_view(seen, deps_of(call).fleet.organisation.prices.currency)
    text = io.StringIO()
    csv.writer(text).writerows([COLUMNS, *(_cells(line, shown.currency) for line in shown.lines)])
    return Reply(
        body=text.getvalue().encode("utf-8", "replace"),
        content_type="text/csv; charset=utf-8",
        headers={
            "content-disposition": f'attachment; filename="usage-by-{shown.by}.csv"',
            "cache-control": "no-store",
        },
    )


async def usage_seen(call: Call[Any], query: UsageQuery, *more: UsedBy) -> list[UsageSeen]:
    """Returns the use that the caller may know of: their own, their teams', or everything.

    The first report is grouped as the query says, and there is one for each of `more`.
    """
    fleet = deps_of(call).fleet
    now, teams = fleet.clock.now(), fleet.organisation.names
    since, until = bounds_of(query, now)

    def look(view: View) -> list[UsageSeen]:
        made = reports(view.attempts_used(since, until), (query.by, *more), since, until, now)
        return [UsageSeen(report=one, names=_names(view, one, teams)) for one in made]

    return await fleet.scan(look)


def bounds_of(query: UsageQuery, now: float) -> tuple[float, float]:
    since = read_moment(query.since, "$.since", now)
    until = read_moment(query.until, "$.until", now)
    begin, end = month_of(now)[0] if since is None else since, now if until is None else until
    if not begin < end or end - begin > MAX_SPAN_S:
        raise Invalid(
            "A report is about a time of at most 400 days, which ends after it begins.", path="$.since"
        )
    return begin, end


def usage_view(seen: UsageSeen, currency: str) -> UsageView:
    made = seen.report
    return UsageView(
        by=made.by,
        since=rfc3339(made.since),
        until=rfc3339(made.until),
        currency=currency,
        total=_line(made.total, made.by, seen.names),
        lines=[_line(line, made.by, seen.names) for line in made.lines],
    )


def sees_everything(call: Call[Any]) -> bool:
    return visibility_scope_of(call).above


def _names(view: View, made: UsageReport, teams: Mapping[str, str]) -> dict[str, str]:
    if made.by is UsedBy.TEAM:
        return {line.key: teams.get(line.key, line.key) for line in made.lines}
    if made.by is UsedBy.PERSON:
        return {line.key: name_of(view, line.key) for line in made.lines}
    return {}


def _line(line: UsageLine, by: UsedBy, names: dict[str, str]) -> UsageLineView:
    day = (rfc3339(float(line.key)) or "")[:10] if by is UsedBy.DAY and line.key else ""
    return UsageLineView(
        key=day or line.key,
        name=day or names.get(line.key, line.key),
        attempts=line.attempts,
        gpu_hours=round(line.gpu_seconds / HOUR_S, 4),
        cost_micros=line.micros,
        at_least=line.unpriced_gpu_seconds > 0,
        unpriced_gpu_hours=round(line.unpriced_gpu_seconds / HOUR_S, 4),
    )


def _cells(line: UsageLineView, currency: str) -> list[str]:
    """Returns the cells of a line. An unknown cost is left empty: 0 would be wrong."""
    known = line.gpu_hours == 0 or line.unpriced_gpu_hours < line.gpu_hours
    cells = (
        line.key,
        line.name,
        str(line.attempts),
        f"{line.gpu_hours:.4f}",
        plain_amount(line.cost_micros) if known else "",
        currency if known else "",
        "yes" if line.at_least else "no",
        f"{line.unpriced_gpu_hours:.4f}",
    )
    return [harmless_cell(cell) for cell in cells]


ROUTES = [
    Route(
        "GET",
        USAGE,
        usage,
        SEEN_BY,
        answer=UsageView,
        summary="Who has used how much, and at what cost, by person, team, config, kind of GPU or day",
        query=UsageQuery,
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{USAGE}/export",
        export,
        SEEN_BY,
        summary="The same as CSV",
        query=ExportUsageQuery,
        tags=TAGS,
    ),
]
