"""Shows what an hour of a GPU costs to everybody who sees jobs, and lets administrators set it."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.money.idle import IdleCost, idle_cost
from simpletuner_fleet.core.money.prices import PriceRule
from simpletuner_fleet.engine.memory.setting_documents import PRICE_PREFIX
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import prices
from simpletuner_fleet.orchestrator.organising.prices import NewPrice
from simpletuner_fleet.queries.explainer import Explainer

TAGS = ("money",)
PERMISSION = "admin.limits"
PRICES = "/api/prices"
SEEN_BY = "jobs.read"


class PricesView(Struct, kw_only=True):
    currency: str
    rules: list[PriceRule]
    """As they are asked: those that name more first, and of equals the one that was set last."""
    unreadable: list[str]
    """The ids of rules that cannot be read and are not in the list; while there is one no job starts."""


class NewPriceBody(NewPrice, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the price to add. A misspelt condition is an error, not ignored."""


class CurrencyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    currency: Annotated[str, Meta(max_length=3)]
    """Three letters, for example EUR."""


class IdleView(Struct, kw_only=True):
    currency: str
    now: IdleCost


async def list_prices(call: Call[Any]) -> PricesView:
    organisation = deps_of(call).fleet.organisation
    known, unreadable = organisation.prices, organisation.unreadable_ids(PRICE_PREFIX)
    return PricesView(currency=known.currency, rules=list(known.rules), unreadable=unreadable)


async def create_price(call: Call[NewPriceBody]) -> PriceRule:
    return await prices.create_price(deps_of(call).fleet, call.body, call.actor)


async def delete_price(call: Call[None]) -> Done:
    await prices.delete_price(deps_of(call).fleet, call.path["id"], call.actor)
    return Done(id=call.path["id"])


async def set_currency(call: Call[CurrencyBody]) -> PricesView:
    await prices.set_currency(deps_of(call).fleet, call.body.currency, call.actor)
    return await list_prices(call)


async def idle(call: Call[None]) -> IdleView:
    """Returns what the fleet costs while nobody uses it."""
    fleet = deps_of(call).fleet
    known, standing = fleet.organisation.prices, fleet.standing()
    roster = await fleet.read(lambda view: Explainer(view, standing).roster)
    return IdleView(
        currency=known.currency, now=idle_cost(known, list(roster.workers.values()), roster.occupancy)
    )


ROUTES = [
    Route("GET", PRICES, list_prices, SEEN_BY, answer=PricesView, summary="What GPUs cost", tags=TAGS),
    Route(
        "POST",
        PRICES,
        create_price,
        PERMISSION,
        NewPriceBody,
        PriceRule,
        "Say what an hour of a GPU costs: of a kind, with a label, or of all",
        status=201,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{PRICES}/{{id}}",
        delete_price,
        PERMISSION,
        answer=Done,
        summary="Delete a rule about prices",
        tags=TAGS,
    ),
    Route(
        "PUT",
        f"{PRICES}/currency",
        set_currency,
        PERMISSION,
        CurrencyBody,
        PricesView,
        "Choose the currency, before anything is counted in it",
        tags=TAGS,
    ),
    Route(
        "GET",
        f"{PRICES}/idle",
        idle,
        PERMISSION,
        answer=IdleView,
        summary="What GPUs cost now that nobody uses",
        tags=TAGS,
    ),
]
