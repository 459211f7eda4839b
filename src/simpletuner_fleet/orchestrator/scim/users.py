"""Creates, changes and deletes users by SCIM."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Conflict, NameTaken
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people.accounts import Role, User
from simpletuner_fleet.core.people.scim.patching import patched_user, read_operations
from simpletuner_fleet.core.people.scim.resources import (
    ScimKind,
    ScimSource,
    ScimUser,
    subject_by,
    user_from,
)
from simpletuner_fleet.core.people.sign_in.admitting import free_name
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.accounts import add_user, existing_user
from simpletuner_fleet.orchestrator.scim.entries import (
    ScimChange,
    existing,
    follow,
    put_user,
    scim_event,
    user_in,
)
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource, role_by
from simpletuner_fleet.ports import ScimEntry

MAX_USERS = 100_000


async def create(
    fleet: Fleet, source: IdentitySource, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    """Creates a user.

    One who has logged in before stays the same user; one whom the provider had deleted comes back.
    """

    def step(transaction: Transaction) -> ScimChange:
        tx = transaction.tx
        asked = user_from(document, user_id="", active=True, now=transaction.now)
        if tx.scim_count(ScimKind.USER) >= MAX_USERS:
            raise Conflict(f"There are {MAX_USERS} users already, and no more are kept.")
        subject = subject_by(asked, _scim_source(source).subject)
        user = tx.user_by_subject(source.issuer, subject)
        if user and tx.scim_entry(ScimKind.USER, user.id):
            raise NameTaken(f"There is a user of the provider's name '{subject}' already.")
        user = user or _made(transaction, source, asked, subject, actor)
        tx.delete_scim_entry(ScimKind.GONE, user.id)
        return _save(transaction, source, replace(asked, id=user.id), actor)

    return await fleet.act(step)


async def replaced(
    fleet: Fleet, source: IdentitySource, user_id: str, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    """Replaces a user. Who they are stays where the document does not name it: some providers send it once."""

    def step(transaction: Transaction) -> ScimChange:
        before = user_in(existing(transaction.tx, ScimKind.USER, user_id))
        after = user_from(
            document,
            user_id=before.id,
            active=before.active,
            external_id=before.external_id,
            now=transaction.now,
        )
        return _change(transaction, source, before, replace(after, created_at=before.created_at), actor)

    return await fleet.act(step)


async def patched(
    fleet: Fleet, source: IdentitySource, user_id: str, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    operations = read_operations(document)

    def step(transaction: Transaction) -> ScimChange:
        before = user_in(existing(transaction.tx, ScimKind.USER, user_id))
        after = patched_user(before, operations, transaction.now)
        return _change(transaction, source, before, after, actor)

    return await fleet.act(step)


async def deleted(fleet: Fleet, source: IdentitySource, user_id: str, actor: Actor) -> list[str]:
    """Deletes the provider's entry.

    The user stays, since what they have done stays, but cannot log in until created again.
    """

    def step(transaction: Transaction) -> list[str]:
        tx = transaction.tx
        before = existing(tx, ScimKind.USER, user_id)
        for group_id in tx.scim_groups_of(user_id):
            tx.remove_scim_members(group_id, [user_id])
        tx.delete_scim_entry(ScimKind.USER, user_id)
        tx.put_scim_entry(ScimEntry(kind=ScimKind.GONE, id=user_id, name=user_id, document="{}"))
        transaction.record(
            scim_event(EventType.SCIM_USER_DELETED, ScimKind.USER, user_id, actor, name=before.name)
        )
        return follow(transaction, source, [user_id], actor)

    return await fleet.act(step)


def _made(
    transaction: Transaction, source: IdentitySource, asked: ScimUser, subject: str, actor: Actor
) -> User:
    return add_user(
        transaction,
        actor,
        name=free_name(asked.user_name, source.id, lambda one: transaction.tx.user_by_name(one) is not None),
        role=role_by(transaction, source, frozenset()) or Role.VIEWER,
        language="",
        password_hash="",
        issuer=source.issuer,
        subject=subject,
    )


def _change(
    transaction: Transaction, source: IdentitySource, before: ScimUser, after: ScimUser, actor: Actor
) -> ScimChange:
    if replace(after, changed_at=before.changed_at) == before:
        # Said again, it holds again: an administrator may have let somebody in meanwhile.
        return ScimChange(before, follow(transaction, source, [before.id], actor))
    subject_source = _scim_source(source).subject
    subject = subject_by(after, subject_source)
    if subject != subject_by(before, subject_source):
        if transaction.tx.user_by_subject(source.issuer, subject):
            raise NameTaken(f"There is a user of the provider's name '{subject}' already.")
        transaction.tx.save_user(replace(existing_user(transaction.tx, after.id), subject=subject))
    return _save(transaction, source, after, actor)


def _save(transaction: Transaction, source: IdentitySource, user: ScimUser, actor: Actor) -> ScimChange:
    put_user(transaction, user)
    about = {"name": user.user_name, "external_id": user.external_id, "active": user.active}
    transaction.record(scim_event(EventType.SCIM_USER_SET, ScimKind.USER, user.id, actor, **about))
    return ScimChange(user, follow(transaction, source, [user.id], actor))


def _scim_source(source: IdentitySource) -> ScimSource:
    return source.scim or ScimSource(provider=source.id)
