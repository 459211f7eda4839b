"""Shows who has used how much and at what cost, budgets and their forecast, and what GPUs cost."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.money.reports import NOT_SHOWN, UsedBy
from simpletuner_fleet.core.people.quotas import KIND_NAMES
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.money.budgets import budgets_seen
from simpletuner_fleet.http.api.money.prices import PERMISSION, SEEN_BY, idle, list_prices
from simpletuner_fleet.http.api.money.usage import UsageQuery, bounds_of, usage_seen, usage_view
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.charts.usage import usage_chart

BY_NAMES = {
    UsedBy.PERSON: N_("Person"),
    UsedBy.TEAM: N_("Team"),
    UsedBy.CONFIG: N_("Config"),
    UsedBy.GPU: N_("Kind of GPU"),
    UsedBy.DAY: N_("Day"),
}
SPANS = {"": N_("This month"), "7d": N_("7 days"), "30d": N_("30 days"), "90d": N_("90 days")}


class PageLink(Struct, frozen=True, kw_only=True):
    name: str
    href: str
    is_current: bool


async def usage(call: Call[None]) -> Reply:
    query: UsageQuery = call.query
    fleet = deps_of(call).fleet
    bounds_of(query, fleet.clock.now())
    seen, by_day = await usage_seen(call, query, UsedBy.DAY)
    may_manage = call.principal.can(PERMISSION)
    budgets = await budgets_seen(call)
    prices = await list_prices(call)
    unused = (await idle(call)).now if may_manage else None
    with spoken(call):
        return page(
            call,
            "access/usage.html",
            report=usage_view(seen, prices.currency),
            chart=usage_chart(by_day.report.lines, by_day.report.since, by_day.report.until),
            by_name=BY_NAMES[query.by],
            ways=[_link(query, name, by=one) for one, name in BY_NAMES.items()],
            spans=[_link(query, name, since=span or None, until=None) for span, name in SPANS.items()],
            export=with_query("/api/usage/export", by=query.by, since=query.since, until=query.until),
            kinds={kind.value: name for kind, name in KIND_NAMES.items()},
            budgets=budgets,
            prices=prices,
            currency=prices.currency,
            idle=unused,
            may_manage=may_manage,
            not_shown=NOT_SHOWN,
        )


def _link(query: UsageQuery, name: str, **change: Any) -> PageLink:
    changed = replace(query, **change)
    return PageLink(
        name=name,
        href=with_query("/usage", by=changed.by, since=changed.since, until=changed.until),
        is_current=changed == query,
    )


ROUTES = (Route("GET", "/usage", usage, SEEN_BY, summary="Usage", query=UsageQuery),)
