"""Lets administrators make and change users, and invite them by a link that works once."""

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Forbidden, ForeignUser, UserDisabled, UsersExist, no_such_user
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people import accounts, tokens
from simpletuner_fleet.core.people.accounts import (
    FIRST_KEY_LIFE_S,
    PERSONAL_KEY_LIFE_S,
    OneTimeKey,
    Role,
    User,
)
from simpletuner_fleet.core.people.own_roles import OwnRoles, holds_no_more, refuse_unknown
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import KEY_PREFIX, decoded, read_setting
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.passwords import Passwords
from simpletuner_fleet.ports import View

SERVER = "server"


class RoleCheck(Protocol):
    """Refuses a role that, by the roles of this moment, holds more than whoever asks."""

    def __call__(self, role: str, own: OwnRoles, *, leads: bool = False) -> None:
        """Checks the role; `leads` says that who has it holds as well what the lead of a team does."""


class IssuedKey(Struct, frozen=True, kw_only=True):
    secret: str
    expires_at: float


class UserChange(Struct, frozen=True, kw_only=True):
    user: User
    credentials: list[str]
    """Hashes of the sessions and tokens that ended, or that may do something else from now on."""


async def first_key(fleet: Fleet, actor: Actor) -> IssuedKey:
    """Makes the key for the first admin; a new key replaces the one before."""
    secret = fleet.ids.token(tokens.ONE_TIME)

    def step(transaction: Transaction) -> IssuedKey:
        if any_user(transaction.tx):
            raise UsersExist
        return _issue(transaction, secret, None, FIRST_KEY_LIFE_S, actor)

    return await fleet.act(step)


async def personal_key(fleet: Fleet, user_id: str, actor: Actor, check: RoleCheck) -> IssuedKey:
    """Makes a key for a first password, or for one that was forgotten.

    The old password stays valid until the key is used. The key ends where the user comes to hold more: whoever had it
    made was checked against the role of that moment, and what leads of teams hold where the user leads one.
    """
    secret = fleet.ids.token(tokens.ONE_TIME)

    def step(transaction: Transaction) -> IssuedKey:
        user, organisation = existing_user(transaction.tx, user_id), transaction.organisation
        check(user.role, organisation.own_roles, leads=organisation.leads_any(user_id))
        for_leads = _passes(check, user.role, organisation.own_roles)
        if user.disabled_at is not None:
            raise UserDisabled
        if user.issuer:
            raise ForeignUser
        return _issue(transaction, secret, user.id, PERSONAL_KEY_LIFE_S, actor, for_leads=for_leads)

    return await fleet.act(step)


def _passes(check: RoleCheck, role: str, own: OwnRoles) -> bool:
    """Tells whether the role may be given to whoever leads a team."""
    try:
        check(role, own, leads=True)
    except Forbidden:
        return False
    return True


def _issue(
    transaction: Transaction,
    secret: str,
    user_id: str | None,
    life_s: float,
    actor: Actor,
    *,
    for_leads: bool = False,
) -> IssuedKey:
    key = OneTimeKey(expires_at=transaction.now + life_s, user_id=user_id, for_leads=for_leads)
    drop_keys(transaction, user_id)
    transaction.tx.put_setting(KEY_PREFIX + tokens.hashed(secret), msgspec.json.encode(key).decode())
    transaction.record(user_event(EventType.USER_LINK_MADE, user_id or SERVER, actor, first=user_id is None))
    return IssuedKey(secret=secret, expires_at=key.expires_at)


def drop_keys(transaction: Transaction, *user_ids: str | None) -> None:
    """Drops these users' keys, and all keys that have expired or cannot be read; None stands for the first admin."""
    _drop_where(transaction, lambda key: key.user_id in user_ids)


def drop_keys_of_leads(transaction: Transaction, user_ids: Collection[str]) -> None:
    """Drops keys of users who come to lead a team, where whoever had them made may not give that away."""
    _drop_where(transaction, lambda key: key.user_id in user_ids and not key.for_leads)


def _drop_where(transaction: Transaction, ends: Callable[[OneTimeKey], bool]) -> None:
    for setting, text in transaction.tx.settings_with_prefix(KEY_PREFIX).items():
        key = decoded(setting, text, OneTimeKey, None)
        if key is None or ends(key) or not key.good_at(transaction.now):
            transaction.tx.delete_setting(setting)


def good_key(view: View, secret: str, now: float) -> OneTimeKey | None:
    key = read_setting(view, KEY_PREFIX + tokens.hashed(secret), OneTimeKey, None)
    return key if key and key.good_at(now) else None


async def create_user(
    fleet: Fleet,
    passwords: Passwords,
    actor: Actor,
    check: RoleCheck,
    *,
    name: str,
    role: str,
    language: str = "",
    password: str | None = None,
) -> User:
    """Makes a user. Without a password the user cannot log in until a personal key was used."""
    name = accounts.checked_name(name)
    language = accounts.checked_language(language)
    hashed = await passwords.hashed(accounts.checked_password(password, name)) if password is not None else ""

    def step(transaction: Transaction) -> User:
        own = transaction.organisation.own_roles
        refuse_unknown(role, own)
        check(role, own)
        return add_user(transaction, actor, name=name, role=role, language=language, password_hash=hashed)

    return await fleet.act(step)


def add_user(
    transaction: Transaction,
    actor: Actor | None,
    *,
    name: str,
    role: str,
    language: str,
    password_hash: str,
    ip: str = "",
    issuer: str = "",
    subject: str = "",
) -> User:
    """Adds a user; without an actor the user did it themselves."""
    user = User(
        id=transaction.ids.new("u"),
        name=name,
        role=role,
        language=language,
        password_hash=password_hash,
        created_at=transaction.now,
        issuer=issuer,
        subject=subject,
    )
    transaction.tx.add_user(user)
    transaction.user_changed(user)
    by = actor or Actor(user.id, user.name, ip)
    transaction.record(user_event(EventType.USER_CREATED, user.id, by, name=name, role=str(role)))
    return user


async def change_user(
    fleet: Fleet,
    user_id: str,
    actor: Actor,
    check: RoleCheck,
    *,
    role: str | None = None,
    disabled: bool | None = None,
) -> UserChange:
    def step(transaction: Transaction) -> UserChange:
        user, own = existing_user(transaction.tx, user_id), transaction.organisation.own_roles
        check(user.role, own)
        if role:
            refuse_unknown(role, own)
            check(role, own)
        others = _other_admins(transaction, user_id)
        after = accounts.changed(user, others, transaction.now, role=role, disabled=disabled)
        if after == user:
            return UserChange(user=user, credentials=[])
        transaction.tx.save_user(after)
        if after.role != user.role:
            transaction.user_changed(after)
            transaction.consider_every_class()
            transaction.record(
                user_event(
                    EventType.USER_ROLE_CHANGED, user.id, actor, name=user.name, was=user.role, now=after.role
                )
            )
        if not holds_no_more(after.role, user.role, own):
            drop_keys(transaction, user.id)
        touched = credentials_of(transaction.tx, user.id)
        if (after.disabled_at, after.shut_out) != (user.disabled_at, user.shut_out):
            kind = EventType.USER_ENABLED if after.disabled_at is None else EventType.USER_DISABLED
            transaction.record(user_event(kind, user.id, actor, name=user.name))
            drop_keys(transaction, user.id)
            end_sessions(transaction, user.id)
        return UserChange(user=after, credentials=touched)

    return await fleet.act(step)


def _other_admins(transaction: Transaction, user_id: str) -> Iterator[User]:
    """Yields admins as they are asked for: of many users, few are admins, and of those the first will mostly do."""
    for other_id, role in transaction.organisation.roles.items():
        other = transaction.tx.user(other_id) if role == Role.ADMIN and other_id != user_id else None
        if other is not None:
            yield other


async def set_language(fleet: Fleet, user_id: str, language: str) -> User:
    chosen = accounts.checked_language(language)

    def step(transaction: Transaction) -> User:
        user = replace(existing_user(transaction.tx, user_id), language=chosen)
        transaction.tx.save_user(user)
        return user

    return await fleet.act(step)


def end_sessions(transaction: Transaction, user_id: str) -> list[str]:
    ended = [session.token_hash for session in transaction.tx.sessions_of_user(user_id)]
    for token_hash in ended:
        transaction.tx.delete_session(token_hash)
    return ended


def credentials_of(view: View, user_id: str) -> list[str]:
    """Returns the hashes of a user's sessions and of the tokens that act for them."""
    sessions, own_tokens = view.sessions_of_user(user_id), view.api_tokens_of(user_id)
    return [*(one.token_hash for one in sessions), *(one.token_hash for one in own_tokens)]


def any_user(view: View) -> bool:
    return bool(view.users_page(None, 1))


def existing_user(view: View, user_id: str) -> User:
    user = view.user(user_id)
    if user is None:
        raise no_such_user(user_id)
    return user


def user_event(kind: EventType, user_id: str, actor: Actor, **details: str | bool) -> Event:
    return Event(type=kind, actor=actor, target_type="user", target_id=user_id, details=details)
