"""Somebody whom a provider vouches for becomes a user with a session, in one transaction; and leaves again at its word."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NoRole, SignInFailed, UserDisabled
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.accounts import Role, User
from simpletuner_fleet.core.people.sign_in.admitting import after_sign_in, free_name
from simpletuner_fleet.core.people.sign_in.claims import LogoutOrder, Person
from simpletuner_fleet.core.people.sign_in.providers import RoleRules, TeamGroups
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.teams import give_role
from simpletuner_fleet.orchestrator.people.accounts import add_user, drop_keys, end_sessions, user_event
from simpletuner_fleet.orchestrator.people.logins import NOBODY, UNKNOWN, LoggedIn, Vouched, enter, leave


class Doorway(Struct, frozen=True, kw_only=True):
    """By which way people come in, and what is made of them."""

    id: str
    roles: RoleRules
    new_users: bool
    teams: dict[str, TeamGroups] = {}
    """By the name of the team."""


class Arrival(Struct, frozen=True, kw_only=True):
    """What came of it. What was refused has changed something, too, so it is no exception before the commit."""

    login: LoggedIn | None = None
    refused: SignInFailed | UserDisabled | None = None
    ended: list[str] = []
    """Hashes of credentials of the user that ended, or that may do something else from now on."""


async def arrive(fleet: Fleet, door: Doorway, person: Person, ip: str, before: str | None = None) -> Arrival:
    """Ends the session that the same browser had `before`."""
    secret = fleet.ids.token(tokens.SESSION)

    def step(transaction: Transaction) -> Arrival:
        role = door.roles.role_for(person.groups, transaction.organisation.own_roles)
        user = transaction.tx.user_by_subject(person.issuer, person.subject)
        if user is None and (role is None or not door.new_users):
            return _refused(transaction, door, None, _why(role), ip)
        user = user or _made(transaction, door, person, role or Role.VIEWER, ip)
        joined = _in_teams(transaction, user, door, person, ip)
        after, ended = _as_of_now(transaction, user, role, door, ip, joined=joined)
        if after.disabled_at is not None:
            refused = _refused(transaction, door, after, NoRole() if role is None else UserDisabled(), ip)
            return replace(refused, ended=ended)
        ended = [*ended, *leave(transaction, before, ip)]
        vouched = Vouched(issuer=person.issuer, sid=person.sid, id_token=person.id_token, provider=door.id)
        entered = enter(transaction, after, secret, ip, vouched)
        return Arrival(login=LoggedIn(user=entered, secret=secret, ended=ended), ended=ended)

    return await fleet.act(step)


async def end_at_the_providers_word(
    fleet: Fleet, provider_id: str, issuer: str, order: LogoutOrder, ip: str
) -> list[str]:
    """Ends the session of this name, or all that the person has from there. Returns the hashes of what ended."""

    def step(transaction: Transaction) -> list[str]:
        tx = transaction.tx
        user = tx.user_by_subject(issuer, order.subject) if order.subject else None
        if order.sid:
            named = tx.sessions_by_sid(issuer, order.sid)
            sessions = [one for one in named if not order.subject or (user and one.user_id == user.id)]
        else:
            sessions = [one for one in tx.sessions_of_user(user.id) if one.issuer == issuer] if user else []
        for session in sessions:
            tx.delete_session(session.token_hash)
            actor = replace(NOBODY, name=provider_id, ip=ip)
            transaction.record(
                user_event(EventType.USER_LOGOUT, session.user_id, actor, provider=provider_id)
            )
        return [session.token_hash for session in sessions]

    return await fleet.act(step)


def _made(transaction: Transaction, door: Doorway, person: Person, role: str, ip: str) -> User:
    name = free_name(person.name, door.id, lambda one: transaction.tx.user_by_name(one) is not None)
    return add_user(
        transaction,
        None,
        name=name,
        role=role,
        language="",
        password_hash="",
        ip=ip,
        issuer=person.issuer,
        subject=person.subject,
    )


def _in_teams(transaction: Transaction, user: User, door: Doorway, person: Person, ip: str) -> bool:
    """Gives the user the roles that their groups say in the teams that the settings name. Tells whether one changed."""
    actor, changed = replace(NOBODY, name=door.id, ip=ip), False
    for name, rules in door.teams.items():
        known = (team for team in transaction.organisation.teams.values() if team.name == name)
        team = next(known, None)
        if team is not None:
            after = give_role(transaction, team, user.id, rules.role_for(person.groups), actor)
            changed = changed or after != team
    return changed


def _as_of_now(
    transaction: Transaction, user: User, role: str | None, door: Doorway, ip: str, *, joined: bool
) -> tuple[User, list[str]]:
    """The user as the groups of today say, and the credentials that feel it."""
    after = after_sign_in(user, role, transaction.now)
    if after == user and not joined:
        return user, []
    actor = replace(NOBODY, name=door.id, ip=ip)
    transaction.tx.save_user(after)
    if after.role != user.role:
        transaction.organisation_changed()
        about = {"name": user.name, "was": user.role, "now": after.role, "provider": door.id}
        transaction.record(user_event(EventType.USER_ROLE_CHANGED, user.id, actor, **about))
    touched = [
        *(session.token_hash for session in transaction.tx.sessions_of_user(user.id)),
        *(token.token_hash for token in transaction.tx.api_tokens() if token.owner == user.id),
    ]
    if after.disabled_at != user.disabled_at:
        kind = EventType.USER_ENABLED if after.disabled_at is None else EventType.USER_DISABLED
        transaction.record(user_event(kind, user.id, actor, name=user.name, provider=door.id))
        drop_keys(transaction, user.id)
        end_sessions(transaction, user.id)
    return after, touched


def _refused(
    transaction: Transaction, door: Doorway, user: User | None, why: SignInFailed | UserDisabled, ip: str
) -> Arrival:
    about = {"name": user.name} if user else {}
    actor: Actor = replace(NOBODY, ip=ip)
    transaction.record(
        user_event(
            EventType.USER_LOGIN_FAILED,
            user.id if user else UNKNOWN,
            actor,
            provider=door.id,
            reason=why.code,
            **about,
        )
    )
    return Arrival(refused=why)


def _why(role: str | None) -> SignInFailed:
    if role is None:
        return NoRole()
    return NoRole(
        "The provider knows you, but you have no account here.", next_step="Ask an administrator to add you."
    )
