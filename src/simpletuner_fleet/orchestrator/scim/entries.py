"""Reads and writes SCIM users and groups in the store, and applies their changes to users here."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.scim.filters import FilterTerm
from simpletuner_fleet.core.people.scim.resources import ScimGroup, ScimKind, ScimUser
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource, follow_groups, groups_by
from simpletuner_fleet.ports import ScimEntry, View

NO_GROUPS: frozenset[str] = frozenset()


ScimResource = ScimUser | ScimGroup


class ScimChange(Struct, frozen=True):
    resource: ScimResource
    touched: list[str]
    """Hashes of credentials that ended, or that may do something else from now on."""


class Page(Struct, frozen=True):
    total: int
    entries: list[ScimEntry]


def user_in(entry: ScimEntry) -> ScimUser:
    return msgspec.json.decode(entry.document, type=ScimUser)


def group_in(entry: ScimEntry) -> ScimGroup:
    return msgspec.json.decode(entry.document, type=ScimGroup)


def resource_in(entry: ScimEntry) -> ScimResource:
    return user_in(entry) if entry.kind is ScimKind.USER else group_in(entry)


def existing(view: View, kind: ScimKind, entry_id: str) -> ScimEntry:
    entry = view.scim_entry(kind, entry_id)
    if entry is None:
        raise NotFound(f"SCIM has told of no {kind} {entry_id[:100]}.")
    return entry


def put_user(transaction: Transaction, user: ScimUser) -> None:
    _put(transaction, ScimKind.USER, user.user_name, user)


def put_group(transaction: Transaction, group: ScimGroup) -> None:
    _put(transaction, ScimKind.GROUP, group.display_name, group)


def _put(transaction: Transaction, kind: ScimKind, name: str, resource: ScimResource) -> None:
    document = msgspec.json.encode(resource).decode()
    transaction.tx.put_scim_entry(
        ScimEntry(kind=kind, id=resource.id, name=name, external_id=resource.external_id, document=document)
    )


def page_of(view: View, kind: ScimKind, terms: tuple[FilterTerm, ...], skip: int, limit: int) -> Page:
    """Returns the entries that match every term, by id."""
    if not terms:
        return Page(view.scim_count(kind), view.scim_page(kind, skip, limit) if limit else [])
    fitting = _candidates(view, kind, terms[0])
    for term in terms[1:]:
        ids = {one.id for one in _candidates(view, kind, term)}
        fitting = [entry for entry in fitting if entry.id in ids]
    return Page(len(fitting), fitting[skip : skip + limit])


def _candidates(view: View, kind: ScimKind, term: FilterTerm) -> list[ScimEntry]:
    match term.attribute:
        case "id":
            return _present([view.scim_entry(kind, term.value)])
        case "externalid":
            return view.scim_entries_by_external_id(kind, term.value)
        case "members" | "members.value":
            return _present(view.scim_entry(kind, one) for one in view.scim_groups_of(term.value))
        case _:
            return _present([view.scim_entry_by_name(kind, term.value)])


def _present(entries: Iterable[ScimEntry | None]) -> list[ScimEntry]:
    return [entry for entry in entries if entry]


def follow(
    transaction: Transaction, source: IdentitySource, user_ids: Iterable[str], actor: Actor
) -> list[str]:
    """Makes these users what SCIM says of them now. Returns the hashes of the credentials that this affects.

    Where groups are known only at a log-in, an active user stays as they are until their next one.
    """
    users = [user for user in map(transaction.tx.user, user_ids) if user]
    known = [(user, groups_by(transaction.tx, user, source, NO_GROUPS)) for user in users]
    by_groups = source.scim is not None and source.scim.groups
    people = [(user, groups) for user, groups in known if by_groups or groups is None]
    return [one for _, hashes in follow_groups(transaction, source, people, actor) for one in hashes]


def scim_event(kind: EventType, entry: ScimKind, target_id: str, actor: Actor, **details: Any) -> Event:
    return Event(type=kind, actor=actor, target_type=str(entry), target_id=target_id, details=details)
