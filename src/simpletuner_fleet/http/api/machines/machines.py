"""Machines that pools have brought."""

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.machines import MachinesView, MachineView, machine_view
from simpletuner_fleet.orchestrator.machines import pools
from simpletuner_fleet.orchestrator.machines.rounds import since_when

TAGS = ("machines",)
READ, CHANGE = "machines.read", "admin.machines"
MANY = 1000


class MachinesQuery(Struct, kw_only=True):
    pool: Name | None = None
    gone: bool = False
    """Those too that went this month."""


class EndMachineBody(Struct, kw_only=True, forbid_unknown_fields=True):
    now: bool = False
    """Destroy it at once, whatever runs there."""


async def list_machines(call: Call[None]) -> MachinesView:
    fleet, query = deps_of(call).fleet, call.query
    now, currency = fleet.clock.now(), fleet.organisation.prices.currency
    gone_after = since_when(now) if query.gone else float("inf")
    rows = await fleet.read(lambda view: view.machines_since(gone_after))
    chosen = [machine for machine in rows if query.pool in (None, machine.pool)]
    return MachinesView(
        machines=[machine_view(machine, now, currency) for machine in reversed(chosen[-MANY:])]
    )


async def get_machine(call: Call[None]) -> MachineView:
    fleet = deps_of(call).fleet
    machine = await fleet.read(lambda view: pools.existing_machine(view, call.path["id"]))
    return machine_view(machine, fleet.clock.now(), fleet.organisation.prices.currency)


async def end_machine(call: Call[EndMachineBody | None]) -> MachineView:
    deps = deps_of(call)
    at_once = call.body is not None and call.body.now
    machine = await pools.end_machine(deps.fleet, call.path["id"], call.actor, now=at_once)
    if deps.provisioner is not None:
        deps.provisioner.wake()
    return machine_view(machine, deps.fleet.clock.now(), deps.fleet.organisation.prices.currency)


ROUTES = [
    Route(
        "GET",
        "/api/machines",
        list_machines,
        READ,
        answer=MachinesView,
        summary="Machines that pools have brought, the newest first",
        query=MachinesQuery,
        tags=TAGS,
    ),
    Route(
        "GET", "/api/machines/{id}", get_machine, READ, answer=MachineView, summary="One machine", tags=TAGS
    ),
    Route(
        "POST",
        "/api/machines/{id}/end",
        end_machine,
        CHANGE,
        EndMachineBody,
        MachineView,
        "Let a machine finish its jobs and destroy it, or destroy it at once",
        body_required=False,
        tags=TAGS,
    ),
]
