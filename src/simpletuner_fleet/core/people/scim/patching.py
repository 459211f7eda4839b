"""Applies PATCH as Okta and Entra really send it.

They send `op` in any case, with and without a path, filters in paths, and booleans as text. What of a user is not kept
here is passed over, as are extensions: a provider that maps a job title is not refused for it.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import ScimRefused
from simpletuner_fleet.core.people.scim.filters import attribute_name, unquoted, without_schema
from simpletuner_fleet.core.people.scim.resources import (
    MAX_EMAILS,
    Email,
    ScimGroup,
    ScimUser,
    by_lower_name,
    emails_of,
    members_of,
    text_of,
    truth_of,
)

MAX_OPERATIONS = 1_000
MAX_PATH_CHARS = 1_024
IN_PATH = re.compile(
    r'([A-Za-z]+)\[\s*([A-Za-z]+)\s+(?i:eq)\s+("(?:[^"\\]|\\["\\])*")\s*\](?:\.([A-Za-z]+))?'
)
TEXTS = {
    "username": "user_name",
    "externalid": "external_id",
    "displayname": "display_name",
    "name.givenname": "given_name",
    "name.familyname": "family_name",
}


class Op(StrEnum):
    ADD = "add"
    REPLACE = "replace"
    REMOVE = "remove"


class Operation(Struct, frozen=True, kw_only=True):
    op: Op
    path: str = ""
    """As written; empty: the value names the attributes itself."""
    value: Any = None


class MemberChanges:
    """Collects the net effect of a PATCH on the members of a group."""

    def __init__(self) -> None:
        self.replaced = False
        """Whoever is not in `added` goes."""
        self.added: dict[str, None] = {}
        """In the order in which they came."""
        self.removed: set[str] = set()

    def add(self, ids: Iterable[str]) -> None:
        for one in ids:
            self.added[one] = None
            self.removed.discard(one)

    def remove(self, ids: Iterable[str]) -> None:
        for one in ids:
            self.added.pop(one, None)
            self.removed.add(one)

    def begin_anew(self, ids: Iterable[str]) -> None:
        self.replaced, self.added, self.removed = True, dict.fromkeys(ids), set()


def read_operations(document: Mapping[str, Any]) -> list[Operation]:
    listed = by_lower_name(document).get("operations")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_OPERATIONS:
        raise ScimRefused(f"Operations must be a list of 1 to {MAX_OPERATIONS}.", kind="invalidSyntax")
    return [operation for one in listed for operation in _read(one)]


def _read(one: Any) -> list[Operation]:
    said = by_lower_name(one) if isinstance(one, dict) else {}
    name, path = said.get("op"), said.get("path") or ""
    if not isinstance(name, str) or name.lower() not in tuple(Op):
        raise ScimRefused("op must be add, replace or remove.", kind="invalidSyntax")
    if not isinstance(path, str) or len(path) > MAX_PATH_CHARS:
        raise ScimRefused("path must be a text.", kind="invalidPath")
    op, value = Op(name.lower()), said.get("value")
    if path:
        return [Operation(op=op, path=path.strip(), value=value)]
    if op is Op.REMOVE:
        raise ScimRefused("A removal needs a path.", kind="noTarget")
    if not isinstance(value, dict):
        raise ScimRefused("Without a path the value must name attributes.", kind="invalidSyntax")
    return [Operation(op=op, path=attribute, value=each) for attribute, each in value.items()]


def patched_user(user: ScimUser, operations: list[Operation], now: float) -> ScimUser:
    after = user
    for operation in operations:
        after = _user_after(after, operation)
    return after if after == user else replace(after, changed_at=now)


def _user_after(user: ScimUser, operation: Operation) -> ScimUser:
    path = attribute_name(operation.path)
    value = None if operation.op is Op.REMOVE else operation.value
    if path == "active":
        said = _single(value)
        return replace(user, active=False if said is None else truth_of(said, "active"))
    if path in TEXTS:
        said = _single(value)
        return replace(user, **{TEXTS[path]: text_of(said, operation.path, needed=path == "username")})
    if path == "name":
        return _named(user, value)
    if path == "emails":
        kept = user.emails if operation.op is Op.ADD else ()
        return replace(user, emails=_at_most(dict.fromkeys((*kept, *emails_of(value)))))
    if path.startswith("emails["):
        return _mailed_at(user, without_schema(operation.path), value)
    return user


def _single(value: Any) -> Any:
    """Returns the value of an attribute that has one: Entra also sends it as a list, `[{"$ref": null, "value": …}]`."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        return by_lower_name(value[0]).get("value", value)
    return value


def _mailed_at(user: ScimUser, path: str, value: Any) -> ScimUser:
    match = IN_PATH.fullmatch(path)
    if match is None:
        raise ScimRefused(f"This path cannot be read: {path[:100]}", kind="invalidPath")
    if match[2].lower() != "type":
        return user
    return _mailed(user, text_of(unquoted(match[3]), "emails.type"), (match[4] or "").lower(), value)


def _named(user: ScimUser, value: Any) -> ScimUser:
    if value is not None and not isinstance(value, dict):
        raise ScimRefused("name must have parts.")
    parts = by_lower_name(value or {})
    fields = {"givenname": "given_name", "familyname": "family_name"}
    said = {fields[part]: text_of(each, f"name.{part}") for part, each in parts.items() if part in fields}
    return replace(user, **(said if value is not None else dict.fromkeys(fields.values(), "")))


def _mailed(user: ScimUser, kind: str, part: str, value: Any) -> ScimUser:
    """Changes one part, or without a part all, of the e-mail address of this type."""
    others = tuple(one for one in user.emails if one.type != kind)
    email = next((one for one in user.emails if one.type == kind), Email(value="", type=kind))
    if part == "primary":
        email = replace(email, primary=value is not None and truth_of(value, "emails.primary"))
    elif value is None:
        return replace(user, emails=others)
    elif isinstance(value, dict) and not part:
        email = replace(emails_of([value])[0], type=kind)
    elif part in ("", "value"):
        email = replace(email, value=text_of(value, "emails.value"))
    return replace(user, emails=_at_most((*others, email)))


def _at_most(emails: Iterable[Email]) -> tuple[Email, ...]:
    kept = tuple(emails)
    if len(kept) > MAX_EMAILS:
        raise ScimRefused(f"A user has at most {MAX_EMAILS} addresses.")
    return kept


def patched_group(
    group: ScimGroup, operations: list[Operation], now: float
) -> tuple[ScimGroup, MemberChanges]:
    after, changes = group, MemberChanges()
    for operation in operations:
        path = attribute_name(operation.path)
        value = None if operation.op is Op.REMOVE else operation.value
        if path == "displayname":
            after = replace(after, display_name=text_of(_single(value), "displayName", needed=True))
        elif path == "externalid":
            after = replace(after, external_id=text_of(_single(value), "externalId"))
        elif path == "members" or path.startswith("members["):
            _note_members(changes, operation)
    return (after if after == group else replace(after, changed_at=now)), changes


def _note_members(changes: MemberChanges, operation: Operation) -> None:
    named = _named_member(operation.path)
    ids = (named,) if named else members_of(operation.value)
    match operation.op:
        case Op.ADD:
            changes.add(ids)
        case Op.REPLACE if not named:
            changes.begin_anew(ids)
        case Op.REMOVE if not named and operation.value is None:
            changes.begin_anew(())
        case Op.REMOVE:
            changes.remove(ids)
        case _:
            raise ScimRefused("One member cannot be replaced: remove it and add another.", kind="invalidPath")


def _named_member(path: str) -> str:
    """Returns whom `members[value eq "…"]` names, as Okta removes one; '' where the path is `members` alone."""
    if "[" not in path:
        return ""
    match = IN_PATH.fullmatch(path)
    if match is None or match[1].lower() != "members" or match[2].lower() != "value" or match[4]:
        raise ScimRefused(f"This path cannot be read: {path[:100]}", kind="invalidPath")
    return unquoted(match[3])
