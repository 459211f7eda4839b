"""Keeps secrets for trainers: stored sealed, named by configs, opened only for the attempt that needs them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import check_name
from simpletuner_fleet.core.errors import Conflict, Invalid, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.people.stored_secret import StoredSecret
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import SECRET_PREFIX, decoded
from simpletuner_fleet.engine.memory.owners import refuse_others
from simpletuner_fleet.engine.stored_secrets import read_secret
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View

MAX_VALUE_BYTES = 16 * 1024


class SecretList(Struct, frozen=True, kw_only=True):
    secrets: dict[str, StoredSecret]
    """By their names."""
    unreadable: list[str]
    """The names of those that cannot be read."""


async def list_secrets(fleet: Fleet) -> SecretList:
    settings = await fleet.read(lambda view: view.settings_with_prefix(SECRET_PREFIX))
    read = {
        key.removeprefix(SECRET_PREFIX): decoded(key, text, StoredSecret, None)
        for key, text in settings.items()
    }
    return SecretList(
        secrets={name: secret for name, secret in read.items() if secret is not None},
        unreadable=[name for name, secret in read.items() if secret is None],
    )


async def save_secret(
    fleet: Fleet, name: str, value: str, writer: Writer, users: Sequence[str] | None = None
) -> StoredSecret:
    """Stores a secret. Attempts that run keep the value they were given; the next ones get this one.

    `users` names those whose jobs may have it: an empty list means everybody, None those who were named before.
    """
    check_name(name, "$.name", "secret's name")
    _check_value(value)
    if fleet.vault is None:
        raise Conflict("This orchestrator stores no secrets.")
    sealed = fleet.vault.seal(name, value)

    def step(transaction: Transaction) -> StoredSecret:
        stored = transaction.tx.setting(SECRET_PREFIX + name)
        known = None if stored is None else read_secret(name, stored)
        if known:
            refuse_others(transaction.tx, writer, known.owner, f"The secret '{name}'")
        fresh = StoredSecret(
            version=known.version + 1 if known else 1,
            created_at=transaction.now,
            created_by=writer.actor.id,
            sealed=sealed,
            owner=known.owner if known else writer.owns_as,
            users=_ids(transaction, users) if users is not None else known.users if known else (),
        )
        transaction.tx.put_setting(SECRET_PREFIX + name, msgspec.json.encode(fresh).decode())
        transaction.record(
            _event(EventType.SECRET_SAVED, name, writer.actor, fresh.version, users=list(fresh.users))
        )
        return fresh

    return await fleet.act(step)


async def delete_secret(fleet: Fleet, name: str, writer: Writer) -> None:
    def step(transaction: Transaction) -> None:
        known = transaction.tx.setting(SECRET_PREFIX + name)
        if known is None:
            raise NotFound(
                f"There is no secret '{name}'.", next_step="List them with 'simpletuner secrets list'."
            )
        secret = decoded(SECRET_PREFIX + name, known, StoredSecret, None)
        # Whose an unreadable one was nobody knows: like one without an owner, it is for administrators alone.
        refuse_others(transaction.tx, writer, secret.owner if secret else "", f"The secret '{name}'")
        transaction.tx.delete_setting(SECRET_PREFIX + name)
        transaction.record(
            _event(EventType.SECRET_DELETED, name, writer.actor, secret.version if secret else None)
        )

    await fleet.act(step)


def _ids(transaction: Transaction, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of these users, tokens and teams.

    Raises Invalid for an unknown name, and for one that several tokens have.
    """
    named = cache(lambda: _tokens_by_name(transaction.tx))
    return tuple(dict.fromkeys(_id_of(transaction, name, named) for name in names))


def _tokens_by_name(view: View) -> dict[str, list[str]]:
    """Returns the ids of all good tokens by their names: read once, and only where nothing else has a name."""
    ids: dict[str, list[str]] = {}
    for token in view.api_tokens():
        if token.revoked_at is None:
            ids.setdefault(token.name, []).append(token.id)
    return ids


def _id_of(transaction: Transaction, name: str, named: Callable[[], dict[str, list[str]]]) -> str:
    """Reads it as an id first: what bears another's id as its name must not be given what was meant for the other."""
    tx, teams = transaction.tx, transaction.organisation.teams
    token = tx.api_token(name)
    if name in teams or tx.user(name) or (token and token.revoked_at is None):
        return name
    if team := next((one for one in teams.values() if one.name == name), None):
        return team.id
    if user := tx.user_by_name(name):
        return user.id
    tokens = named().get(name, [])
    if len(tokens) != 1:
        raise Invalid(f"There is no user, team or API token '{name[:100]}'.", path="$.users")
    return tokens[0]


def _check_value(value: str) -> None:
    if not value or "\0" in value:
        raise Invalid("A secret must have at least one character and no NUL byte.", path="$.value")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid("A secret must be text.", path="$.value") from None
    if size > MAX_VALUE_BYTES:
        raise Invalid(f"A secret can have at most {MAX_VALUE_BYTES // 1024} KiB.", path="$.value")


def _event(type_: EventType, name: str, actor: Actor, version: int | None, **more: Any) -> Event:
    details = {**({"version": version} if version is not None else {}), **more}
    return Event(type=type_, actor=actor, target_type="secret", target_id=name, details=details)
