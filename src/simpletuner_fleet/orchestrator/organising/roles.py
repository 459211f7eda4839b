"""Lets administrators make, change and delete their own roles. Each act is one transaction with its audit entry."""

from collections.abc import Callable

import msgspec

from simpletuner_fleet.core.errors import Conflict, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.own_roles import (
    MAX_ROLES,
    ROLE_PREFIX,
    OwnRole,
    checked_role,
    holds_no_more,
)
from simpletuner_fleet.core.people.quotas import QuotaScope
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.accounts import credentials_of, drop_keys

Check = Callable[[OwnRole], None]
"""Refuses a role that holds more than whoever asks."""


async def set_role(fleet: Fleet, requested: OwnRole, check: Check, actor: Actor) -> list[str]:
    """Makes or changes a role; returns the credential hashes of the users who have it."""
    role = checked_role(requested)
    check(role)

    def step(transaction: Transaction) -> list[str]:
        own = transaction.organisation.own_roles
        known = own.get(role.name)
        if known is not None:
            check(known)
        elif len(own) >= MAX_ROLES:
            raise Conflict(f"There are {MAX_ROLES} roles already, and no more are kept.")
        if known == role:
            return []
        transaction.tx.put_setting(ROLE_PREFIX + role.name, msgspec.json.encode(role).decode())
        transaction.organisation_changed()
        transaction.record(_event(EventType.ROLE_SET, role, actor))
        holders = {user_id for user_id, one in transaction.organisation.roles.items() if one == role.name}
        if not holds_no_more(role.name, role.name, transaction.organisation.own_roles, own):
            drop_keys(transaction, *holders)
        return _credentials(transaction, holders)

    return await fleet.act(step)


async def delete_role(fleet: Fleet, name: str, check: Check, actor: Actor) -> None:
    """Deletes a role that nobody has.

    A role in use is not deleted: its users would lose all permissions at once, without anybody having said so.
    """

    def step(transaction: Transaction) -> None:
        organisation = transaction.organisation
        known = organisation.own_roles.get(name)
        if known is None:
            raise NotFound(
                f"There is no role '{name[:100]}' of one's own.",
                next_step="See them with 'simpletuner roles list'.",
            )
        check(known)
        holders = sum(role == name for role in organisation.roles.values())
        if holders:
            raise Conflict(
                f"The role '{name}' cannot be deleted while users have it: {holders}.",
                next_step="Give them another one first: 'simpletuner users set-role'.",
            )
        if any(one.scope is QuotaScope.ROLE and one.subject == name for one in organisation.quotas):
            raise Conflict(
                f"The role '{name}' cannot be deleted: a quota names it.",
                next_step="Delete the quota first: 'simpletuner quotas list'.",
            )
        transaction.tx.delete_setting(ROLE_PREFIX + name)
        transaction.organisation_changed()
        transaction.record(_event(EventType.ROLE_DELETED, known, actor))

    await fleet.act(step)


def _credentials(transaction: Transaction, holders: set[str]) -> list[str]:
    return [
        token_hash for user_id in sorted(holders) for token_hash in credentials_of(transaction.tx, user_id)
    ]


def _event(kind: EventType, role: OwnRole, actor: Actor) -> Event:
    return Event(
        type=kind, actor=actor, target_type="role", target_id=role.name, details=msgspec.to_builtins(role)
    )
