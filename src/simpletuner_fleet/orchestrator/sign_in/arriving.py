"""Logs in a person whom a provider vouches for, in one transaction, and logs them out when it says so."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NoRole, SignInFailed, UserDisabled
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.accounts import Role, User
from simpletuner_fleet.core.people.sign_in.admitting import free_name
from simpletuner_fleet.core.people.sign_in.claims import LogoutOrder, Person
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.accounts import add_user, user_event
from simpletuner_fleet.orchestrator.people.logins import NOBODY, UNKNOWN, LoggedIn, Vouched, enter, leave
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource, follow_groups, groups_by, role_by


class Arrival(Struct, frozen=True, kw_only=True):
    """Describes the outcome of a log-in through a provider.

    A refusal may have changed something, too, so it is not raised as an exception before the commit.
    """

    login: LoggedIn | None = None
    refused: SignInFailed | UserDisabled | None = None
    ended: list[str] = []
    """Hashes of credentials of the user that ended, or that may do something else from now on."""


async def arrive(
    fleet: Fleet, source: IdentitySource, person: Person, ip: str, before: str | None = None
) -> Arrival:
    """Logs a person in, and ends the session that the same browser had `before`."""
    secret = fleet.ids.token(tokens.SESSION)

    def step(transaction: Transaction) -> Arrival:
        if source.stored is not None and transaction.organisation.provider(source.id) != source.stored:
            changed = SignInFailed("The provider was changed or switched off while you logged in.")
            return _refused(transaction, source, None, changed, ip)
        user = transaction.tx.user_by_subject(person.issuer, person.subject)
        groups = groups_by(transaction.tx, user, source, person.groups)
        role = role_by(transaction, source, groups)
        if user is None and (role is None or not source.new_users):
            return _refused(transaction, source, None, _why(role), ip)
        user = user or _made(transaction, source, person, role or Role.VIEWER, ip)
        by = replace(NOBODY, name=source.id, ip=ip)
        [(after, ended)] = follow_groups(transaction, source, [(user, groups)], by)
        if after.disabled_at is not None:
            refused = _refused(transaction, source, after, NoRole() if role is None else UserDisabled(), ip)
            return replace(refused, ended=ended)
        ended = [*ended, *leave(transaction, before, ip)]
        vouched = Vouched(issuer=person.issuer, sid=person.sid, id_token=person.id_token, provider=source.id)
        entered = enter(transaction, after, secret, ip, vouched)
        return Arrival(login=LoggedIn(user=entered, secret=secret, ended=ended), ended=ended)

    return await fleet.act(step)


async def end_at_the_providers_word(
    fleet: Fleet, provider_id: str, issuer: str, order: LogoutOrder, ip: str
) -> list[str]:
    """Ends the session that the provider names, or all of the person's sessions from there.

    Returns the hashes of the sessions that ended.
    """

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


def _made(transaction: Transaction, source: IdentitySource, person: Person, role: str, ip: str) -> User:
    name = free_name(person.name, source.id, lambda one: transaction.tx.user_by_name(one) is not None)
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


def _refused(
    transaction: Transaction,
    source: IdentitySource,
    user: User | None,
    why: SignInFailed | UserDisabled,
    ip: str,
) -> Arrival:
    about = {"name": user.name} if user else {}
    actor: Actor = replace(NOBODY, ip=ip)
    transaction.record(
        user_event(
            EventType.USER_LOGIN_FAILED,
            user.id if user else UNKNOWN,
            actor,
            provider=source.id,
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
