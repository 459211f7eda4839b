"""Shows budgets, which are quotas of money, and forecasts them for the end of their day or month."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.people.quotas import OF_MONEY, Quota, QuotaBook, QuotaStanding, whose
from simpletuner_fleet.core.placement.usage import UseLedger, person, team
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.views.fields import Time, view_of

TAGS = ("money",)
BUDGETS = "/api/budgets"
SEEN_BY = "jobs.read"
SETS_THEM = "admin.limits"


class BudgetView(Struct, kw_only=True):
    quota: str
    """The id of the quota that it is."""
    kind: str
    whose: str
    """As the quota says it."""
    account: str
    """Whose spending it is: the name of the person or the team; empty for all together."""
    ceiling_micros: int
    spent_micros: int
    left_micros: int
    at_least: bool
    """Some was used at a price that nobody knows, and is not in what was spent."""
    action: str
    """What happens to jobs at the ceiling."""
    forecast_micros: int
    """Spent by the end of the day or month, if it goes on as it has since that began."""
    forecast_is_rough: bool
    """Not a tenth of the day or month is over."""
    hourly_micros: int
    """What runs now costs so much an hour, as far as its price is known."""
    reached_at: Time
    """When the ceiling is reached if what runs now runs on; null: not before the end."""
    ends_at: Time
    """When it begins anew."""


class BudgetsView(Struct, kw_only=True):
    currency: str
    budgets: list[BudgetView]


async def budgets(call: Call[None]) -> BudgetsView:
    fleet = deps_of(call).fleet
    return BudgetsView(currency=fleet.organisation.prices.currency, budgets=await budgets_seen(call))


async def budgets_seen(call: Call[Any]) -> list[BudgetView]:
    """Returns the budgets that the caller's and their teams' jobs count in; for whoever sets them, all of them."""
    fleet = deps_of(call).fleet
    quotas = [quota for quota in fleet.organisation.quotas if quota.kind in OF_MONEY]
    if not quotas:
        return []
    # Within a step: who is counted changes while the writer works.
    standings = await fleet.act(lambda transaction: _standings(call, fleet, transaction.index.roster.book))
    return [_shown(fleet, one) for one in standings]


def _standings(call: Call[Any], fleet: Fleet, book: QuotaBook | None) -> list[QuotaStanding]:
    book, now = book or QuotaBook((), {}, {}, UseLedger()), fleet.clock.now()
    pairs = (
        [(quota, account) for quota in book.quotas for account in book.accounts_of(quota)]
        if call.principal.can(SETS_THEM) and visibility_scope_of(call).above
        else _own(call, book)
    )
    return [book.standing(quota, account, now) for quota, account in pairs if quota.kind in OF_MONEY]


def _own(call: Call[Any], book: QuotaBook) -> list[tuple[Quota, str]]:
    owner = call.principal.owns_as
    concerned = {
        (quota.id, account): (quota, account)
        for team_id in ("", *sorted(visibility_scope_of(call).teams))
        for quota, account in book.concerning(owner, team_id)
    }
    return list(concerned.values())


def _shown(fleet: Fleet, one: QuotaStanding) -> BudgetView:
    names, quota, forecast = fleet.organisation.names, one.quota, one.forecast
    id_ = one.account.removeprefix(person("")).removeprefix(team(""))
    return view_of(
        BudgetView,
        quota,
        quota=quota.id,
        whose=whose(quota, names),
        account="" if one.account == "all" else names.get(id_, id_),
        ceiling_micros=int(quota.ceiling),
        spent_micros=int(one.used),
        left_micros=int(one.left),
        at_least=one.at_least,
        forecast_micros=forecast.micros if forecast else int(one.used),
        forecast_is_rough=forecast.rough if forecast else True,
        hourly_micros=forecast.hourly_micros if forecast else 0,
        reached_at=rfc3339(forecast.reached_at if forecast else None),
        ends_at=rfc3339(one.frees_at),
    )


ROUTES = [
    Route(
        "GET",
        BUDGETS,
        budgets,
        SEEN_BY,
        answer=BudgetsView,
        summary="Budgets: what was spent, what is left, and where it is going",
        tags=TAGS,
    )
]
