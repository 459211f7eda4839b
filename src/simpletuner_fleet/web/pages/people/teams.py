"""Shows the user's teams with their members and rules; to administrators, all teams."""

from simpletuner_fleet.http.api.admin.teams import PERMISSION, known_teams, team_view, unreadable_teams
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Reply, Route
from simpletuner_fleet.languages.names import TEAM_ROLES, VISIBILITIES
from simpletuner_fleet.web.frame.page import page, spoken


async def teams(call: Call[None]) -> Reply:
    rows = [await team_view(call, team) for team in known_teams(call)]
    with spoken(call):
        return page(
            call,
            "access/teams.html",
            rows=rows,
            unreadable=unreadable_teams(call),
            may_manage=call.principal.can(PERMISSION),
            roles=TEAM_ROLES,
            visibilities=VISIBILITIES,
        )


ROUTES = (Route("GET", "/teams", teams, ANY_USER, summary="Teams"),)
