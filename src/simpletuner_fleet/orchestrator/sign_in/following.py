"""Updates users to what their provider says of them: role, places in teams, and whether they may log in at all."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.people.scim.resources import ScimKind, ScimSource, ScimUser
from simpletuner_fleet.core.people.sign_in.admitting import after_sign_in
from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups
from simpletuner_fleet.core.people.sign_in.stored import StoredProvider
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.teams import give_roles
from simpletuner_fleet.orchestrator.people.accounts import credentials_of, drop_keys, end_sessions, user_event
from simpletuner_fleet.ports import View

Groups = frozenset[str] | None
"""None: the provider says that somebody does not come in, whatever groups they are in."""


class IdentitySource(Struct, frozen=True, kw_only=True):
    """Describes one way in which people log in, and the roles and teams that it gives them."""

    id: str
    issuer: str
    roles: RoleRules
    new_users: bool
    teams: dict[str, TeamGroups] = {}
    """By the name of the team."""
    scim: ScimSource | None = None
    """None: the provider says nothing of its users but when they log in."""
    stored: StoredProvider | None = None
    """As it was when somebody came; None: it is not one that could change while the server runs."""

    @property
    def group_names(self) -> frozenset[str]:
        """Returns the groups that a role or a place in a team depends on."""
        roles, teams = self.roles, self.teams.values()
        of_roles = (roles.admin, roles.member, roles.viewer, *roles.own.values())
        return frozenset().union(*of_roles, *((*one.lead, *one.member, *one.viewer) for one in teams))


def groups_by(view: View, user: User | None, source: IdentitySource, at_login: frozenset[str]) -> Groups:
    """Returns the groups that count: from SCIM for a user whom it provisions, else from the log-in."""
    if user is None or source.scim is None:
        return at_login
    entry = view.scim_entry(ScimKind.USER, user.id)
    if entry is None:
        return None if view.scim_entry(ScimKind.GONE, user.id) else at_login
    if not msgspec.json.decode(entry.document, type=ScimUser).active:
        return None
    return scim_groups(view, user.id) if source.scim.groups else at_login


def scim_groups(view: View, user_id: str) -> frozenset[str]:
    """Returns the names of the groups that a user is in by SCIM."""
    entries = (view.scim_entry(ScimKind.GROUP, one) for one in view.scim_groups_of(user_id))
    return frozenset(entry.name for entry in entries if entry)


def role_by(transaction: Transaction, source: IdentitySource, groups: Groups) -> str | None:
    if groups is None:
        return None
    return source.roles.role_for(groups, transaction.organisation.own_roles)


def follow_groups(
    transaction: Transaction, source: IdentitySource, people: Sequence[tuple[User, Groups]], actor: Actor
) -> list[tuple[User, list[str]]]:
    """Makes these users what their groups say.

    Returns each user as they are now, with the hashes of the credentials that this affects.
    """
    afters = [
        after_sign_in(user, role_by(transaction, source, groups), transaction.now) for user, groups in people
    ]
    joined = _into_teams(transaction, source, people, actor)
    changed = {
        user.id for (user, _), after in zip(people, afters, strict=True) if after != user or user.id in joined
    }
    touched = {one: credentials_of(transaction.tx, one) for one in changed}
    for (user, _), after in zip(people, afters, strict=True):
        if user.id in changed:
            _save(transaction, source, user, after, actor)
    return [(after, touched.get(after.id, [])) for after in afters]


def _save(transaction: Transaction, source: IdentitySource, user: User, after: User, actor: Actor) -> None:
    transaction.tx.save_user(after)
    if after.role != user.role:
        transaction.user_changed(after)
        transaction.consider_every_class()
        about = {"name": user.name, "was": user.role, "now": after.role, "provider": source.id}
        transaction.record(user_event(EventType.USER_ROLE_CHANGED, user.id, actor, **about))
    if after.disabled_at != user.disabled_at:
        kind = EventType.USER_ENABLED if after.disabled_at is None else EventType.USER_DISABLED
        transaction.record(user_event(kind, user.id, actor, name=user.name, provider=source.id))
        drop_keys(transaction, user.id)
        end_sessions(transaction, user.id)


def _into_teams(
    transaction: Transaction, source: IdentitySource, people: Sequence[tuple[User, Groups]], actor: Actor
) -> frozenset[str]:
    """Gives users the roles that their groups say in the teams of the settings; returns whose role changed."""
    changed: set[str] = set()
    for name, rules in source.teams.items():
        known = (team for team in transaction.organisation.teams.values() if team.name == name)
        team = next(known, None)
        if team is not None:
            roles = {user.id: rules.role_for(groups or frozenset()) for user, groups in people}
            after = give_roles(transaction, team, roles, actor)
            changed.update(one for one in roles if team.members.get(one) != after.members.get(one))
    return frozenset(changed)
