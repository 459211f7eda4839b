"""Shows what waits for the user's approval, what one's own jobs wait for, and the rules that require approval."""

from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.people.approvals import DAY_S, MAX_APPROVERS, MAX_RULE_NAME_CHARS
from simpletuner_fleet.http.api.admin.approval_links import looked_at
from simpletuner_fleet.http.api.admin.approvals import PERMISSION, list_approvals, list_rules
from simpletuner_fleet.http.api.admin.teams import known_teams
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Call, Reply, Route
from simpletuner_fleet.web.frame.page import page, spoken
from simpletuner_fleet.web.parts.approval_rules import APPROVERS, EXPIRIES, rule_draft, rule_row


class ApprovePageQuery(Struct, kw_only=True):
    k: Annotated[str, Meta(max_length=2_000)] = ""
    done: Annotated[str, Meta(max_length=3)] = ""


class ApprovalsPageQuery(Struct, kw_only=True):
    rule: Annotated[str, Meta(max_length=64)] = ""


async def approvals(call: Call[None]) -> Reply:
    waiting = (await list_approvals(call)).approvals
    may_manage = call.principal.can(PERMISSION)
    listed = await list_rules(call)
    rules = listed.rules if may_manage else []
    organisation = deps_of(call).fleet.organisation
    currency = organisation.prices.currency
    chosen = next((one for one in rules if one.id == call.query.rule), None)
    with spoken(call):
        return page(
            call,
            "access/approvals.html",
            yours=[one for one in waiting if one.yours_to_decide],
            others=[one for one in waiting if not one.yours_to_decide],
            unreadable=listed.unreadable,
            rules=[rule_row(rule, organisation.names, currency) for rule in rules],
            chosen=rule_draft(chosen, organisation.names) if chosen else None,
            may_manage=may_manage,
            teams=[team.name for team in known_teams(call)],
            approvers={by.value: name for by, name in APPROVERS.items()},
            expiries=EXPIRIES,
            usual_expiry=DAY_S,
            most_approvers=MAX_APPROVERS,
            most_name_chars=MAX_RULE_NAME_CHARS,
            currency=currency,
        )


async def approve(call: Call[None]) -> Reply:
    """Shows the link's page. That does not use the link up, since programs that scan mail open links, too."""
    asked = None
    if call.query.k:
        with suppress(FleetError):
            asked = await looked_at(call, call.query.k)
    with spoken(call):
        return page(call, "access/approve.html", asked=asked, key=call.query.k, done=call.query.done)


ROUTES = (
    Route("GET", "/approvals", approvals, ANY_USER, summary="Approvals", query=ApprovalsPageQuery),
    Route("GET", "/approve", approve, PUBLIC, summary="Approve by a link", query=ApprovePageQuery),
)
