"""Lets leads and administrators change teams. Each act is one transaction with its audit entry."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Amount
from simpletuner_fleet.core.errors import Conflict, Invalid, NameTaken, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.teams import (
    MAX_MEMBERS,
    TEAM_PREFIX,
    Membership,
    Team,
    TeamRole,
    TeamRules,
    checked_rules,
    checked_team_name,
    checked_weight,
)
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.unreadable import delete_if_unreadable
from simpletuner_fleet.orchestrator.people.accounts import drop_keys_of_leads
from simpletuner_fleet.ports import View

MAX_TEAMS = 1_000


class TeamChange(Struct, frozen=True, kw_only=True):
    """Describes a change of a team. What is left out stays as it is."""

    name: str | UnsetType = UNSET
    weight: Amount | UnsetType = UNSET
    rules: TeamRules | UnsetType = UNSET
    visibility: Visibility | UnsetType | None = UNSET


async def create_team(fleet: Fleet, name: str, change: TeamChange, actor: Actor) -> Team:
    def step(transaction: Transaction) -> Team:
        if len(transaction.organisation.teams) >= MAX_TEAMS:
            raise Conflict(f"There are {MAX_TEAMS} teams already, and no more are kept.")
        team = Team(id=transaction.ids.new("tm"), name=checked_team_name(name), created_at=transaction.now)
        _refuse_known_name(transaction, team)
        return _save(transaction, _changed(team, change), EventType.TEAM_CREATED, actor)

    return await fleet.act(step)


async def change_team(fleet: Fleet, team_id: str, change: TeamChange, actor: Actor) -> Team:
    def step(transaction: Transaction) -> Team:
        before = existing_team(transaction, team_id)
        after = _changed(before, change)
        _refuse_known_name(transaction, after)
        if after == before:
            return before
        was = {
            field: msgspec.to_builtins(getattr(before, field))
            for field in ("name", "weight", "rules", "visibility")
            if getattr(before, field) != getattr(after, field)
        }
        return _save(transaction, after, EventType.TEAM_CHANGED, actor, was=was)

    return await fleet.act(step)


async def delete_team(fleet: Fleet, team_id: str, actor: Actor) -> Team:
    """Deletes a team. What belonged to it stays with its owners, and nobody else sees it through the team any more."""

    def step(transaction: Transaction) -> Team:
        team = existing_team(transaction, team_id)
        transaction.tx.delete_setting(TEAM_PREFIX + team.id)
        transaction.organisation_changed()
        transaction.record(_event(EventType.TEAM_DELETED, team, actor, members=len(team.members)))
        return team

    return await fleet.act(step)


async def delete_unreadable_team(fleet: Fleet, team_id: str, actor: Actor) -> bool:
    """Deletes the team if it cannot be read, and tells whether it did. Nobody belonged to it any more."""
    return await fleet.act(
        lambda transaction: delete_if_unreadable(
            transaction, TEAM_PREFIX, team_id, EventType.TEAM_DELETED, "team", actor
        )
    )


async def set_member(fleet: Fleet, team_id: str, who: str, role: TeamRole | None, actor: Actor) -> Team:
    """Gives a user a role in the team; None takes them out of it."""

    def step(transaction: Transaction) -> Team:
        team = existing_team(transaction, team_id)
        user_id = _user_id(transaction.tx, who) if role else _member_id(transaction.tx, team, who)
        return give_role(transaction, team, user_id, role, actor)

    return await fleet.act(step)


def give_role(
    transaction: Transaction, team: Team, user_id: str, role: TeamRole | None, actor: Actor
) -> Team:
    return give_roles(transaction, team, {user_id: role}, actor)


def give_roles(
    transaction: Transaction, team: Team, roles: Mapping[str, TeamRole | None], actor: Actor
) -> Team:
    """Gives users roles in the team, which is saved once, however many of them change.

    Whoever comes to lead it holds more: a link ends that was made for them by somebody who holds less.
    """
    members, events = dict(team.members), []
    for user_id, role in roles.items():
        known = members.pop(user_id, None)
        if role:
            members[user_id] = Membership(role, known.since if known else transaction.now)
        was = known.role if known else None
        if was is not role:
            about = {"user": user_id, "role": role, "was": was}
            events.append(_event(EventType.TEAM_MEMBER_SET, team, actor, **about))
    if not events:
        return team
    if len(members) > max(MAX_MEMBERS, len(team.members)):
        raise Conflict(f"A team has at most {MAX_MEMBERS} members.")
    after = replace(team, members=members)
    transaction.tx.put_setting(TEAM_PREFIX + team.id, msgspec.json.encode(after).decode())
    transaction.organisation_changed()
    for event in events:
        transaction.record(event)
    if leads := [
        one for one, role in roles.items() if role is TeamRole.LEAD and role is not _role(team, one)
    ]:
        drop_keys_of_leads(transaction, leads)
    return after


def _role(team: Team, user_id: str) -> TeamRole | None:
    known = team.members.get(user_id)
    return known.role if known else None


def existing_team(transaction: Transaction, team_id: str) -> Team:
    team = transaction.organisation.teams.get(team_id)
    if team is None:
        raise NotFound(f"There is no team {team_id}.", next_step="See them with 'simpletuner teams list'.")
    return team


def _changed(team: Team, change: TeamChange) -> Team:
    checks: dict[str, Callable[[Any], Any]] = {
        "name": checked_team_name,
        "weight": checked_weight,
        "rules": checked_rules,
        "visibility": lambda visibility: visibility,
    }
    asked = {field: getattr(change, field) for field in checks if getattr(change, field) is not UNSET}
    return replace(team, **{field: checks[field](value) for field, value in asked.items()})


def _refuse_known_name(transaction: Transaction, team: Team) -> None:
    others = (one for one in transaction.organisation.teams.values() if one.id != team.id)
    if any(one.name.casefold() == team.name.casefold() for one in others):
        raise NameTaken(f"Another team has the name '{team.name}'.", next_step="Choose another name.")


def _user_id(view: View, who: str) -> str:
    user = view.user(who) or view.user_by_name(who)
    if user is None:
        raise Invalid(f"There is no user '{who[:100]}'.", path="$.user")
    return user.id


def _member_id(view: View, team: Team, who: str) -> str:
    if who in team.members:
        return who
    user = view.user_by_name(who)
    if user is None or user.id not in team.members:
        raise NotFound(f"'{who[:100]}' does not belong to the team '{team.name}'.")
    return user.id


def _save(transaction: Transaction, team: Team, kind: EventType, actor: Actor, **details: Any) -> Team:
    transaction.tx.put_setting(TEAM_PREFIX + team.id, msgspec.json.encode(team).decode())
    transaction.organisation_changed()
    transaction.record(_event(kind, team, actor, **details))
    return team


def _event(kind: EventType, team: Team, actor: Actor, **details: Any) -> Event:
    shown = {"name": team.name, **{name: value for name, value in details.items() if value is not None}}
    return Event(type=kind, actor=actor, target_type="team", target_id=team.id, details=shown)
