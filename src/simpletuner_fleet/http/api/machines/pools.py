"""Manages pools: where machines come from, and what they may cost."""

from msgspec import Struct

from simpletuner_fleet.core.errors import Forbidden, ProviderUnavailable
from simpletuner_fleet.core.provisioning.offers import is_eligible
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest, check_pool
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.http.views.machines import (
    OffersView,
    PoolCheckView,
    PoolsView,
    PoolView,
    offer_view,
    pool_view,
)
from simpletuner_fleet.orchestrator.machines import pools
from simpletuner_fleet.orchestrator.machines.rounds import since_when

TAGS = ("machines",)
READ, CHANGE = "machines.read", "admin.machines"
SECRETS, UNSAVED = "secrets.write", "new"


class SavePoolQuery(Struct, kw_only=True):
    new: bool = False
    """Refuse where there is a pool of this name."""


async def list_pools(call: Call[None]) -> PoolsView:
    fleet = deps_of(call).fleet
    now = fleet.clock.now()
    rows, machines, hands_off = await fleet.read(
        lambda view: (view.pools(), view.machines_since(since_when(now)), view.setting(HANDS_OFF))
    )
    return PoolsView(
        pools=[pool_view(pool, machines, now, fleet.organisation) for pool in rows],
        hands_off=hands_off is not None and bool(rows),
    )


async def get_pool(call: Call[None]) -> PoolView:
    fleet = deps_of(call).fleet
    return await _view(
        deps_of(call), await fleet.read(lambda view: pools.existing_pool(view, call.path["name"]))
    )


async def save_pool(call: Call[PoolRequest]) -> PoolView:
    require_fresh_login(call)
    _insist_on_own_address(call)
    deps, provisioner = deps_of(call), deps_of(call).provisioning
    pool = await pools.save_pool(
        deps.fleet,
        call.path["name"],
        call.body,
        call.actor,
        await provisioner.settings_check(),
        new=call.query.new,
    )
    provisioner.wake()
    return await _view(deps, pool)


async def delete_pool(call: Call[None]) -> Done:
    deps = deps_of(call)
    await pools.delete_pool(deps.fleet, call.path["name"], call.actor)
    if deps.provisioner is not None:
        deps.provisioner.wake()
    return Done(id=call.path["name"])


async def take_in_hand(call: Call[None]) -> Done:
    deps = deps_of(call)
    await pools.take_in_hand(deps.fleet, call.actor)
    if deps.provisioner is not None:
        deps.provisioner.wake()
    return Done(id="pools")


async def list_offers(call: Call[None]) -> OffersView:
    deps, name = deps_of(call), call.path["name"]
    return await _offers(deps, await deps.fleet.read(lambda view: pools.existing_pool(view, name)))


async def preview_offers(call: Call[PoolRequest]) -> OffersView:
    """Returns what a pool would be offered before it is saved, so that whoever fills in the form sees prices."""
    require_fresh_login(call)
    _insist_on_own_address(call)
    deps = deps_of(call)
    check_pool(UNSAVED, call.body)
    pool = MachinePool(
        name=UNSAVED, request=call.body, created_at=deps.fleet.clock.now(), created_by=call.actor.id
    )
    (await deps.provisioning.settings_check())(pool)
    return await _offers(deps, pool, saved=False)


async def check_pool_now(call: Call[None]) -> PoolCheckView:
    """Asks the provider for its list and its offers. Only making a machine shows whether the key may also do that."""
    deps, name = deps_of(call), call.path["name"]
    pool = await deps.fleet.read(lambda view: pools.existing_pool(view, name))
    currency = deps.fleet.organisation.prices.currency
    try:
        machines, offers = await deps.provisioning.check(pool)
    except Exception as error:  # anybody's code, and anybody's network
        return PoolCheckView(ok=False, trouble=str(error) or type(error).__name__, currency=currency)
    fitting = [one.hourly_micros for one in offers if is_eligible(pool, one)]
    return PoolCheckView(
        ok=True,
        machines=len(machines),
        offers=len(offers),
        eligible=len(fitting),
        cheapest_micros=min(fitting, default=None),
        currency=currency,
    )


def _insist_on_own_address(call: Call[PoolRequest]) -> None:
    """Raises Forbidden where somebody who may not store secrets names an address, since the secret is sent to it."""
    if "api_url" in call.body.settings and not call.principal.can(SECRETS):
        raise Forbidden(SECRETS)


async def _offers(deps: Deps, pool: MachinePool, *, saved: bool = True) -> OffersView:
    try:
        offers = await deps.provisioning.offers(pool, saved=saved)
    except Exception as error:  # anybody's code, and anybody's network
        raise ProviderUnavailable(
            f"The provider of the pool {pool.name} cannot be asked: {str(error) or type(error).__name__}."
        ) from error
    offers.sort(key=lambda offer: (offer.hourly_micros, offer.id))
    currency = deps.fleet.organisation.prices.currency
    return OffersView(
        offers=[offer_view(pool, one, currency, eligible=is_eligible(pool, one)) for one in offers]
    )


async def _view(deps: Deps, pool: MachinePool) -> PoolView:
    now = deps.fleet.clock.now()
    machines = await deps.fleet.read(lambda view: view.machines_since(since_when(now)))
    return pool_view(pool, machines, now, deps.fleet.organisation)


ROUTES = [
    Route(
        "GET",
        "/api/pools",
        list_pools,
        READ,
        answer=PoolsView,
        summary="All pools, what they have and what they cost",
        tags=TAGS,
    ),
    Route("GET", "/api/pools/{name}", get_pool, READ, answer=PoolView, summary="One pool", tags=TAGS),
    Route(
        "PUT",
        "/api/pools/{name}",
        save_pool,
        CHANGE,
        PoolRequest,
        PoolView,
        "Make a pool, or change it for the machines to come",
        query=SavePoolQuery,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/pools/{name}",
        delete_pool,
        CHANGE,
        answer=Done,
        summary="Delete a pool; its machines finish their jobs and are destroyed",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/pools/take-in-hand",
        take_in_hand,
        CHANGE,
        answer=Done,
        summary="After a restore: manage machines again",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/pools/offers",
        preview_offers,
        CHANGE,
        PoolRequest,
        OffersView,
        "What a pool would be offered that is not saved yet",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/pools/{name}/check",
        check_pool_now,
        CHANGE,
        answer=PoolCheckView,
        summary="Try a pool's key: ask its provider for machines and offers",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/pools/{name}/offers",
        list_offers,
        CHANGE,
        answer=OffersView,
        summary="What the pool's provider has now, the cheapest first",
        tags=TAGS,
    ),
]
