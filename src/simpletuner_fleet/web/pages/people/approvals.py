"""Approvals: what waits for one's word, with a yes, a no and a note; and what one's own jobs wait for."""

from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.http.api.admin.approval_links import looked_at
from simpletuner_fleet.http.api.admin.approvals import PERMISSION, list_rules, pending
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Call, Reply, Route
from simpletuner_fleet.web.frame.page import page, spoken


class ApprovePageQuery(Struct, kw_only=True):
    k: Annotated[str, Meta(max_length=2_000)] = ""
    done: Annotated[str, Meta(max_length=3)] = ""


async def approvals(call: Call[None]) -> Reply:
    waiting = await pending(call)
    may_manage = call.principal.can(PERMISSION)
    rules = (await list_rules(call)).rules if may_manage else []
    with spoken(call):
        return page(
            call,
            "access/approvals.html",
            yours=[one for one in waiting if one.yours_to_decide],
            others=[one for one in waiting if not one.yours_to_decide],
            rules=rules,
            may_manage=may_manage,
        )


async def approve(call: Call[None]) -> Reply:
    """Looking does not use the link up, whoever looks: programs that scan mails for bad links do."""
    asked = None
    if call.query.k:
        with suppress(FleetError):
            asked = await looked_at(call, call.query.k)
    with spoken(call):
        return page(call, "access/approve.html", asked=asked, key=call.query.k, done=call.query.done)


ROUTES = (
    Route("GET", "/approvals", approvals, ANY_USER, summary="Approvals"),
    Route("GET", "/approve", approve, PUBLIC, summary="Approve by a link", query=ApprovePageQuery),
)
