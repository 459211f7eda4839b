"""Approvals: what waits for one's word, with a yes, a no and a note; and what one's own jobs wait for."""

from simpletuner_fleet.http.api.admin.approvals import PERMISSION, list_rules, pending
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Reply, Route
from simpletuner_fleet.web.frame.page import page, spoken


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


ROUTES = (Route("GET", "/approvals", approvals, ANY_USER, summary="Approvals"),)
