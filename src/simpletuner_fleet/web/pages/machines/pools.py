"""Shows the pools: where machines come from and what they cost, a form for them, and the provider's offers."""

from typing import Any

from simpletuner_fleet.core.provisioning.pool import PoolRequest
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.machines.machines import MANY
from simpletuner_fleet.http.api.machines.pools import CHANGE, READ, get_pool, list_pools
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.http.views.machines import MachineView, machine_view
from simpletuner_fleet.languages import N_
from simpletuner_fleet.languages.names import MACHINE_ENDS, MACHINE_STATUSES, MACHINE_USES
from simpletuner_fleet.orchestrator.keyring import list_secrets
from simpletuner_fleet.ports import View
from simpletuner_fleet.providers.registry import kinds
from simpletuner_fleet.queries.machine_use import useless_machines
from simpletuner_fleet.web.frame.page import page

MARKETS = {"on_demand": N_("On demand"), "spot": N_("Spot only"), "spot_first": N_("Spot first")}
OVER_BUDGET = {
    "stop": N_("Checkpoint running jobs and stop them"),
    "finish": N_("Let running jobs finish"),
}


async def pools(call: Call[None]) -> Reply:
    listed = await list_pools(call)
    return page(
        call,
        "machines/pools.html",
        rows=listed.pools,
        hands_off=listed.hands_off,
        **await _for_the_form(call),
    )


async def pool(call: Call[None]) -> Reply:
    fleet = deps_of(call).fleet
    one, now = await get_pool(call), fleet.clock.now()

    def read(view: View) -> list[MachineView]:
        rows = [row for row in view.machines_since(float("inf")) if row.pool == one.name][-MANY:]
        idlers = useless_machines(view, rows, now)
        return [machine_view(row, now, one.currency, idlers.get(row.id)) for row in reversed(rows)]

    return page(
        call,
        "machines/pool.html",
        one=one,
        machines=await fleet.read(read),
        statuses=MACHINE_STATUSES,
        ends=MACHINE_ENDS,
        uses=MACHINE_USES,
        **await _for_the_form(call),
    )


async def _for_the_form(call: Call[None]) -> dict[str, Any]:
    fleet, principal = deps_of(call).fleet, call.principal
    may_change = principal.can(CHANGE)
    names = (await list_secrets(fleet)).secrets if may_change and principal.can("secrets.read") else {}
    return {
        "may_change": may_change,
        "may_write_secrets": may_change and principal.can("secrets.write") and fleet.vault is not None,
        "usual": PoolRequest(provider=""),
        "currency": fleet.organisation.prices.currency,
        "providers": sorted(kinds()),
        "secrets": sorted(names),
        "markets": MARKETS,
        "over_budget": OVER_BUDGET,
    }


ROUTES = (
    Route("GET", "/machines/pools", pools, READ, summary="Pools"),
    Route("GET", "/machines/pools/{name}", pool, READ, summary="One pool"),
)
