"""Shows the machines: their phases, what they cost, and what one printed that did not join."""

from simpletuner_fleet.http.api.machines.machines import (
    CHANGE,
    READ,
    MachinesQuery,
    get_machine,
    list_machines,
)
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages.names import MACHINE_ENDS, MACHINE_STATUSES, MACHINE_USES
from simpletuner_fleet.web.frame.page import page


async def machines(call: Call[None]) -> Reply:
    rows = (await list_machines(call)).machines
    return page(
        call,
        "machines/machines.html",
        rows=rows,
        query=call.query,
        may_change=call.principal.can(CHANGE),
        statuses=MACHINE_STATUSES,
        ends=MACHINE_ENDS,
        uses=MACHINE_USES,
    )


async def machine(call: Call[None]) -> Reply:
    one = await get_machine(call)
    return page(
        call,
        "machines/machine.html",
        one=one,
        may_change=call.principal.can(CHANGE),
        sees_worker=call.principal.can("admin.workers"),
        statuses=MACHINE_STATUSES,
        ends=MACHINE_ENDS,
        uses=MACHINE_USES,
    )


ROUTES = (
    Route("GET", "/machines", machines, READ, summary="Machines", query=MachinesQuery),
    Route("GET", "/machines/{id}", machine, READ, summary="One machine"),
)
