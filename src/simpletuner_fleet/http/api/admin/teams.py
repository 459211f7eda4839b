"""Manages teams: all of them for administrators, their own for others."""

from collections.abc import Collection
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.errors import Forbidden, StoreUnavailable
from simpletuner_fleet.core.people.teams import (
    LEAD_PERMISSIONS,
    TEAM_PREFIX,
    Team,
    TeamRole,
    TeamRules,
    named_team,
    role_in,
)
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import teams
from simpletuner_fleet.orchestrator.organising.teams import TeamChange
from simpletuner_fleet.orchestrator.people.accounts import credentials_of

TAGS = ("teams",)
PERMISSION = "admin.teams"
TEAMS = "/api/teams"


class MemberView(Struct, kw_only=True):
    id: str
    name: str
    role: str
    since: str | None


class TeamView(Struct, kw_only=True):
    id: str
    name: str
    created_at: str | None
    your_role: str | None
    """Null for an administrator who does not belong to it."""
    weight: float
    visibility: str | None
    """Of what its members make; null: as the server's setting says."""
    rules: TeamRules
    members: list[MemberView]


class TeamsView(Struct):
    teams: list[TeamView]
    unreadable: list[str]
    """For administrators, the ids of teams that cannot be read and are not in the list; their jobs start nowhere."""


class CreateTeamBody(TeamChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name


class ChangeTeamBody(TeamChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a team. What is left out stays as it is."""

    name: Name | UnsetType = UNSET
    visibility: Visibility | UnsetType | None = UNSET


class MemberBody(Struct, kw_only=True, forbid_unknown_fields=True):
    role: TeamRole


async def list_teams(call: Call[None]) -> TeamsView:
    known = [await team_view(call, team) for team in known_teams(call)]
    return TeamsView(known, unreadable=unreadable_teams(call))


def unreadable_teams(call: Call[Any]) -> list[str]:
    """Returns the ids of teams that cannot be read, for whoever may delete them."""
    may_delete = call.principal.can(PERMISSION)
    return deps_of(call).fleet.organisation.unreadable_ids(TEAM_PREFIX) if may_delete else []


async def get_team(call: Call[None]) -> TeamView:
    return await team_view(call, _team(call))


async def create_team(call: Call[CreateTeamBody]) -> TeamView:
    team = await teams.create_team(deps_of(call).fleet, call.body.name, call.body, call.actor)
    return await team_view(call, team)


async def change_team(call: Call[ChangeTeamBody]) -> TeamView:
    """Changes a team. A lead sets the visibility; name, share and rules are for administrators."""
    team = _team(call)
    if call.body != ChangeTeamBody(visibility=call.body.visibility):
        call.require(PERMISSION)
    _require_lead(call, team)
    return await team_view(call, await teams.change_team(deps_of(call).fleet, team.id, call.body, call.actor))


async def delete_team(call: Call[None]) -> Done:
    fleet, named = deps_of(call).fleet, call.path["id"]
    if await teams.delete_unreadable_team(fleet, named, call.actor):
        return Done(id=named)
    team = await teams.delete_team(fleet, _team(call).id, call.actor)
    await _forget(call, team.members)
    return Done(id=team.id)


async def set_member(call: Call[MemberBody]) -> TeamView:
    return await _set_member(call, call.body.role)


async def remove_member(call: Call[None]) -> TeamView:
    return await _set_member(call, None)


async def _set_member(call: Call[Any], role: TeamRole | None) -> TeamView:
    team = _team(call)
    _require_lead(call, team)
    after = await teams.set_member(deps_of(call).fleet, team.id, call.path["user"], role, call.actor)
    everybody = team.members.keys() | after.members.keys()
    await _forget(call, {one for one in everybody if team.members.get(one) != after.members.get(one)})
    return await team_view(call, after)


async def _forget(call: Call[Any], user_ids: Collection[str]) -> None:
    """Forgets the users' credentials and ends their streams, since what they may do has changed."""
    deps = deps_of(call)
    try:
        hashes = await deps.fleet.read(
            lambda view: [token_hash for user_id in user_ids for token_hash in credentials_of(view, user_id)]
        )
    except StoreUnavailable:  # it has changed all the same, and said again it changes nothing more
        deps.credentials.forget_all()
        raise
    deps.revoke(hashes)


def known_teams(call: Call[Any]) -> list[Team]:
    """Returns the teams that the caller may know of, by name."""
    scope, everything = visibility_scope_of(call), call.principal.can(PERMISSION)
    known = (
        team
        for team in deps_of(call).fleet.organisation.teams.values()
        if everything or scope.above or team.id in scope.teams
    )
    return sorted(known, key=lambda team: team.name.casefold())


def _team(call: Call[Any]) -> Team:
    return named_team({team.id: team for team in known_teams(call)}, call.path["id"], (), above=True)


def _require_lead(call: Call[Any], team: Team) -> None:
    """Raises unless the caller leads the team, or manages them all; a lead's token must hold what a lead holds."""
    leads = role_in(team, _ids(call)) is TeamRole.LEAD
    leads = leads and all(map(call.principal.can, LEAD_PERMISSIONS))
    if not leads and not call.principal.can(PERMISSION):
        raise Forbidden(PERMISSION)


def _ids(call: Call[Any]) -> tuple[str, ...]:
    """Returns the ids by which the caller belongs to teams, without a look at each team."""
    return call.principal.id, call.principal.owner_id


async def team_view(call: Call[Any], team: Team) -> TeamView:
    names = deps_of(call).fleet.organisation.names
    role = role_in(team, _ids(call))
    members = [
        MemberView(id=one, name=names.get(one, one), role=membership.role, since=rfc3339(membership.since))
        for one, membership in team.members.items()
    ]
    return TeamView(
        id=team.id,
        name=team.name,
        created_at=rfc3339(team.created_at),
        your_role=role,
        weight=team.weight,
        visibility=team.visibility,
        rules=team.rules,
        members=sorted(members, key=lambda member: member.name.casefold()),
    )


ROUTES = [
    Route(
        "GET", TEAMS, list_teams, ANY_USER, answer=TeamsView, summary="The teams one belongs to", tags=TAGS
    ),
    Route(
        "POST",
        TEAMS,
        create_team,
        PERMISSION,
        CreateTeamBody,
        TeamView,
        "Create a team",
        status=201,
        tags=TAGS,
    ),
    Route("GET", f"{TEAMS}/{{id}}", get_team, ANY_USER, answer=TeamView, summary="One team", tags=TAGS),
    Route(
        "PATCH",
        f"{TEAMS}/{{id}}",
        change_team,
        ANY_USER,
        ChangeTeamBody,
        TeamView,
        "Change a team's name, share, rules, and who sees what it makes",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{TEAMS}/{{id}}",
        delete_team,
        PERMISSION,
        answer=Done,
        summary="Delete a team; what was its stays with its owners",
        tags=TAGS,
    ),
    Route(
        "PUT",
        f"{TEAMS}/{{id}}/members/{{user}}",
        set_member,
        ANY_USER,
        MemberBody,
        TeamView,
        "Give a user a role in a team",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{TEAMS}/{{id}}/members/{{user}}",
        remove_member,
        ANY_USER,
        answer=TeamView,
        summary="Take a user out of a team",
        tags=TAGS,
    ),
]
