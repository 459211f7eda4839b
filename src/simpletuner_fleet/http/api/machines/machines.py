"""Lists and ends the machines of pools."""

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.machines import MachinesView, MachineView, machine_view
from simpletuner_fleet.orchestrator.machines import pools
from simpletuner_fleet.orchestrator.machines.rounds import since_when
from simpletuner_fleet.ports import View
from simpletuner_fleet.queries.machine_use import useless_machines

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

    def read(view: View) -> list[MachineView]:
        rows = [one for one in view.machines_since(gone_after) if query.pool in (None, one.pool)][-MANY:]
        idlers = useless_machines(view, rows, now)
        return [machine_view(one, now, currency, idlers.get(one.id)) for one in reversed(rows)]

    return MachinesView(machines=await fleet.read(read))


async def get_machine(call: Call[None]) -> MachineView:
    fleet = deps_of(call).fleet
    now = fleet.clock.now()
    currency = fleet.organisation.prices.currency

    def read(view: View) -> MachineView:
        machine = pools.existing_machine(view, call.path["id"])
        return machine_view(machine, now, currency, useless_machines(view, [machine], now).get(machine.id))

    return await fleet.read(read)


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
