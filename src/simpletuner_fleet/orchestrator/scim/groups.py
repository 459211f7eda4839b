"""Creates, changes and deletes groups by SCIM; their members change at once."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Conflict, ScimRefused
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.people.scim.patching import patched_group, read_operations
from simpletuner_fleet.core.people.scim.resources import ScimGroup, ScimKind, group_from
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.scim.entries import (
    ScimChange,
    existing,
    follow,
    group_in,
    put_group,
    scim_event,
)
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource

MAX_GROUPS = 5_000
MAX_MEMBERS = 20_000


async def create(
    fleet: Fleet, source: IdentitySource, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    def step(transaction: Transaction) -> ScimChange:
        if transaction.tx.scim_count(ScimKind.GROUP) >= MAX_GROUPS:
            raise Conflict(f"There are {MAX_GROUPS} groups already, and no more are kept.")
        group, members = group_from(document, group_id=transaction.ids.new("g"), now=transaction.now)
        return _save(transaction, source, None, group, members, (), actor)

    return await fleet.act(step)


async def replaced(
    fleet: Fleet, source: IdentitySource, group_id: str, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    def step(transaction: Transaction) -> ScimChange:
        before = group_in(existing(transaction.tx, ScimKind.GROUP, group_id))
        group, members = group_from(document, group_id=group_id, now=transaction.now)
        known = set(transaction.tx.scim_members(group_id))
        gone = known.difference(members)
        group = replace(group, created_at=before.created_at)
        return _save(transaction, source, before, group, members, gone, actor)

    return await fleet.act(step)


async def patched(
    fleet: Fleet, source: IdentitySource, group_id: str, document: Mapping[str, Any], actor: Actor
) -> ScimChange:
    operations = read_operations(document)

    def step(transaction: Transaction) -> ScimChange:
        before = group_in(existing(transaction.tx, ScimKind.GROUP, group_id))
        group, changes = patched_group(before, operations, transaction.now)
        gone = changes.removed
        if changes.replaced:
            gone = set(transaction.tx.scim_members(group_id)).difference(changes.added)
        return _save(transaction, source, before, group, changes.added, gone, actor)

    return await fleet.act(step)


async def deleted(fleet: Fleet, source: IdentitySource, group_id: str, actor: Actor) -> list[str]:
    def step(transaction: Transaction) -> list[str]:
        tx = transaction.tx
        group = group_in(existing(tx, ScimKind.GROUP, group_id))
        members = tx.scim_members(group_id)
        tx.remove_scim_members(group_id, members)
        tx.delete_scim_entry(ScimKind.GROUP, group_id)
        about = {"name": group.display_name, "members": len(members)}
        transaction.record(scim_event(EventType.SCIM_GROUP_DELETED, ScimKind.GROUP, group_id, actor, **about))
        return _follow(transaction, source, {group.display_name}, members, actor)

    return await fleet.act(step)


def _save(
    transaction: Transaction,
    source: IdentitySource,
    before: ScimGroup | None,
    group: ScimGroup,
    wanted: Iterable[str],
    unwanted: Collection[str],
    actor: Actor,
) -> ScimChange:
    tx = transaction.tx
    known = set(tx.scim_members(group.id)) if before else set()
    added = [one for one in wanted if one not in known]
    removed = [one for one in unwanted if one in known]
    for one in added:
        if tx.scim_entry(ScimKind.USER, one) is None:
            raise ScimRefused(f"SCIM has told of no user {one[:100]}, so the group cannot have them.")
    if len(known) + len(added) - len(removed) > max(MAX_MEMBERS, len(known)):
        raise Conflict(f"A group has at most {MAX_MEMBERS} members.")
    renamed = before is not None and before.display_name != group.display_name
    if before is not None and not (added or removed or _differs(group, before)):
        return ScimChange(before, [])
    group = replace(group, changed_at=transaction.now)
    put_group(transaction, group)
    tx.add_scim_members(group.id, added)
    tx.remove_scim_members(group.id, removed)
    about = {"name": group.display_name, "added": len(added), "removed": len(removed)}
    transaction.record(scim_event(EventType.SCIM_GROUP_SET, ScimKind.GROUP, group.id, actor, **about))
    names = {group.display_name, before.display_name if before else ""}
    affected = {*known, *added} if renamed else {*added, *removed}
    return ScimChange(group, _follow(transaction, source, names, sorted(affected), actor))


def _differs(group: ScimGroup, before: ScimGroup) -> bool:
    return replace(group, changed_at=before.changed_at) != before


def _follow(
    transaction: Transaction, source: IdentitySource, names: set[str], user_ids: Iterable[str], actor: Actor
) -> list[str]:
    """Updates the users. A group on which nothing depends changes nobody."""
    return [] if source.group_names.isdisjoint(names) else follow(transaction, source, user_ids, actor)
