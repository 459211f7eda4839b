"""Translates the names that older guides have for events of the audit log."""

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.events import EventType

ALL_TYPES = "GET /api/audit/types names them all."
OLDER_EVENTS = {
    "auth.login.success": EventType.USER_LOGIN,
    "auth.login.failed": EventType.USER_LOGIN_FAILED,
    "auth.logout": EventType.USER_LOGOUT,
    "user.updated": EventType.USER_ROLE_CHANGED,
    "user.deleted": EventType.USER_DISABLED,
    "user.level.changed": EventType.USER_ROLE_CHANGED,
    "user.permission.changed": EventType.ROLE_SET,
    "api_key.created": EventType.TOKEN_CREATED,
    "api_key.revoked": EventType.TOKEN_REVOKED,
    "credential.created": EventType.SECRET_SAVED,
    "credential.deleted": EventType.SECRET_DELETED,
    "credential.used": EventType.SECRET_GIVEN,
}


def event_named(name: str) -> str:
    """Returns our name of the event.

    Raises Invalid for an unknown one: an empty list would say that it never happened.
    """
    ours = OLDER_EVENTS.get(name, name)
    if ours not in list(EventType):
        raise Invalid(
            f"There is no type of event '{name[:100]}'.",
            path="$.event_type",
            next_step=ALL_TYPES,
        )
    return ours
