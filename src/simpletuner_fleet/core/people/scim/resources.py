"""Describes users and groups as a provider does: what is kept, what is read of a request, and what is shown."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import ScimRefused

USER_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Group"
LIST_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
MAX_TEXT_CHARS = 255
MAX_EMAILS = 10
MAX_MEMBERS_AT_ONCE = 5_000
"""Members in one request. A group may have more, brought by several."""


class ScimKind(StrEnum):
    USER = "user"
    GROUP = "group"
    GONE = "gone"
    """A user whom the provider has deleted: they stay out until it makes them again."""


class Email(Struct, frozen=True, kw_only=True):
    value: str
    type: str = ""
    primary: bool = False


class ScimUser(Struct, frozen=True, kw_only=True):
    """Holds a user as the provider describes them; the id is that of the user here."""

    id: str
    user_name: str
    external_id: str = ""
    active: bool = True
    display_name: str = ""
    given_name: str = ""
    family_name: str = ""
    emails: tuple[Email, ...] = ()
    created_at: float = 0.0
    changed_at: float = 0.0


class ScimGroup(Struct, frozen=True, kw_only=True):
    id: str
    display_name: str
    external_id: str = ""
    created_at: float = 0.0
    changed_at: float = 0.0


class SubjectSource(StrEnum):
    """Names the attribute of a user that a provider writes into its tokens as the subject."""

    EXTERNAL_ID = "externalId"
    USER_NAME = "userName"


class ScimSource(Struct, frozen=True, kw_only=True):
    """Names the provider that manages its users, and perhaps its groups, here by SCIM."""

    provider: str
    """The name of a way to log in: what is told is about those who come by it."""
    subject: SubjectSource = SubjectSource.EXTERNAL_ID
    groups: bool = True
    """Groups are told, too, and decide on roles and teams. False: those of each log-in do."""


def subject_by(user: ScimUser, source: SubjectSource) -> str:
    subject = user.external_id if source is SubjectSource.EXTERNAL_ID else user.user_name
    if not subject:
        raise ScimRefused(f"The user has no {source}, by which they would be known at a log-in.")
    return subject


def by_lower_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document by lower-case names, since attribute names ignore case (RFC 7643, 2.1)."""
    return {name.lower(): value for name, value in document.items()}


def text_of(value: Any, name: str, *, needed: bool = False) -> str:
    """Returns a checked text; null counts as empty."""
    if value is None or value == "":
        if needed:
            raise ScimRefused(f"{name} must not be empty.")
        return ""
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS or not value.isprintable():
        raise ScimRefused(f"{name} must be a text of at most {MAX_TEXT_CHARS} printable characters.")
    return value


def truth_of(value: Any, name: str) -> bool:
    """Returns a boolean, also from text, since Entra sends "False" as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ScimRefused(f"{name} must be true or false.")


def emails_of(value: Any) -> tuple[Email, ...]:
    if value is None:
        return ()
    listed = [value] if isinstance(value, dict) else value
    if not isinstance(listed, list) or len(listed) > MAX_EMAILS:
        raise ScimRefused(f"emails must be a list of at most {MAX_EMAILS}.")
    entries = [by_lower_name(one) if isinstance(one, dict) else {"value": one} for one in listed]
    return tuple(
        Email(
            value=text_of(one.get("value"), "emails.value"),
            type=text_of(one.get("type"), "emails.type"),
            primary=one.get("primary") is not None and truth_of(one["primary"], "emails.primary"),
        )
        for one in entries
    )


def members_of(value: Any) -> tuple[str, ...]:
    """Returns the ids in the order given, each once."""
    listed = [value] if isinstance(value, dict) else value
    if listed is None:
        return ()
    if not isinstance(listed, list) or len(listed) > MAX_MEMBERS_AT_ONCE:
        raise ScimRefused(f"members must be a list of at most {MAX_MEMBERS_AT_ONCE}.")
    entries = [by_lower_name(one) if isinstance(one, dict) else {"value": one} for one in listed]
    return tuple(dict.fromkeys(text_of(one.get("value"), "members.value", needed=True) for one in entries))


def user_from(
    document: Mapping[str, Any], *, user_id: str, active: bool, external_id: str = "", now: float
) -> ScimUser:
    """Reads a whole user (POST and PUT); `active` and `external_id` apply where the document does not say.

    What we do not keep is left out.
    """
    said = by_lower_name(document)
    name = said.get("name")
    names = by_lower_name(name) if isinstance(name, dict) else {}
    known_as = said.get("externalid")
    return ScimUser(
        id=user_id,
        user_name=text_of(said.get("username"), "userName", needed=True),
        external_id=text_of(external_id if known_as is None else known_as, "externalId"),
        active=truth_of(said["active"], "active") if said.get("active") is not None else active,
        display_name=text_of(said.get("displayname"), "displayName"),
        given_name=text_of(names.get("givenname"), "name.givenName"),
        family_name=text_of(names.get("familyname"), "name.familyName"),
        emails=emails_of(said.get("emails")),
        created_at=now,
        changed_at=now,
    )


def group_from(
    document: Mapping[str, Any], *, group_id: str, now: float
) -> tuple[ScimGroup, tuple[str, ...]]:
    """Reads a whole group (POST and PUT), and the ids of its members."""
    said = by_lower_name(document)
    group = ScimGroup(
        id=group_id,
        display_name=text_of(said.get("displayname"), "displayName", needed=True),
        external_id=text_of(said.get("externalid"), "externalId"),
        created_at=now,
        changed_at=now,
    )
    return group, members_of(said.get("members"))


def shown_user(user: ScimUser, groups: Iterable[ScimGroup], meta: Mapping[str, Any]) -> dict[str, Any]:
    name = {"givenName": user.given_name, "familyName": user.family_name}
    emails = [
        _without_nothing({"value": one.value, "type": one.type, "primary": one.primary})
        for one in user.emails
    ]
    more = {
        "externalId": user.external_id,
        "displayName": user.display_name,
        "name": _without_nothing(name),
        "emails": emails,
        "groups": [{"value": group.id, "display": group.display_name} for group in groups],
    }
    return {
        "schemas": [USER_SCHEMA],
        "id": user.id,
        "userName": user.user_name,
        "active": user.active,
        **_without_nothing(more),
        "meta": meta,
    }


def shown_group(
    group: ScimGroup, members: Iterable[tuple[str, str]], meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the group as SCIM shows it; `members` are ids and names."""
    return {
        "schemas": [GROUP_SCHEMA],
        "id": group.id,
        "displayName": group.display_name,
        **_without_nothing({"externalId": group.external_id}),
        "members": [{"value": user_id, "display": name, "type": "User"} for user_id, name in members],
        "meta": meta,
    }


def only_asked(
    shown: Mapping[str, Any], wanted: Collection[str], unwanted: Collection[str]
) -> dict[str, Any]:
    """Returns the attributes that were asked for; id, schemas and meta always stay.

    `wanted` and `unwanted` are `attributes` and `excludedAttributes` in lower case.
    """
    always = ("id", "schemas", "meta")
    return {
        name: value
        for name, value in shown.items()
        if name in always or (name.lower() not in unwanted and (not wanted or name.lower() in wanted))
    }


def _without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
