"""Shows Administration → Users → Sign-in: the providers that people log in with, beside passwords."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.permissions import EVERYTHING
from simpletuner_fleet.core.people.sign_in.stored import MAX_LEEWAY_S
from simpletuner_fleet.core.people.teams import TeamRole
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.sign_in.administration import PERMISSION, list_providers
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import current
from simpletuner_fleet.languages.names import TEAM_ROLES, TRIAL_NAMES, TRIAL_STATES, role_name
from simpletuner_fleet.web.frame.page import page, spoken

USUAL_SCOPES = ("openid", "profile", "email")


class SignInPageQuery(Struct, kw_only=True):
    provider: Annotated[str, Meta(max_length=64)] = ""


async def sign_in(call: Call[None]) -> Reply:
    rows, organisation = (await list_providers(call)).providers, deps_of(call).fleet.organisation
    ways = deps_of(call).sign_in
    added = [one for one in rows if one.source == "added"]
    chosen = next((one for one in added if one.id == call.query.provider), None)
    teams = {team.name for team in organisation.teams.values()} | set(chosen.teams if chosen else ())
    with spoken(call):
        return page(
            call,
            "access/sign_in.html",
            rows=rows,
            chosen=chosen,
            may_change=EVERYTHING in call.principal.permissions,
            directories=[one.settings.title for one in ways.directories],
            proxy=ways.proxy.title if ways.proxy else "",
            roles=[(role.value, role_name(current(), role)) for role in Role],
            own_roles=sorted({*organisation.own_roles, *(chosen.roles.own if chosen else ())}),
            teams=sorted(teams, key=str.casefold),
            team_roles=[(role.value, TEAM_ROLES[role]) for role in reversed(TeamRole)],
            usual_scopes=USUAL_SCOPES,
            most_leeway_s=MAX_LEEWAY_S,
            trial_names=TRIAL_NAMES,
            trial_states=TRIAL_STATES,
        )


ROUTES = (
    Route("GET", "/admin/users/sign-in", sign_in, PERMISSION, summary="Sign-in", query=SignInPageQuery),
)
