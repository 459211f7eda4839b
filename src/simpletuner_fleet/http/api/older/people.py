"""Answers requests about people, tokens, ways to log in and the audit log as older guides write them."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count
from simpletuner_fleet.core.errors import AskedOtherwise, no_such_user
from simpletuner_fleet.core.events import SECURITY
from simpletuner_fleet.http.api.admin.accounts import UserListQuery
from simpletuner_fleet.http.api.admin.audit import AuditQuery
from simpletuner_fleet.http.api.older.wording import Older, WordedRequest, Wording

DAY_S = 86_400.0
USER = "/api/users/{id}"
LIST_USERS = "GET /api/admin/users"
CHANGE_USER = "PATCH /api/admin/users/{id}"
ROLES = {"researcher": "member", "member": "member", "viewer": "viewer", "admin": "admin"}
NOT_KEPT = ("email", "display_name")
IN_A_TEAM = (
    "Somebody leads a team: PUT /api/teams/TEAM/members/USER with the role 'lead'. Beside that a user has one role: viewer, "
    "member, admin, or one of your own (PUT /api/admin/roles/NAME)."
)
OWN_ROLES = (
    "Permissions belong to roles: PUT /api/admin/roles/NAME with a list of permissions, then PATCH /api/admin/users/ID with "
    "that role."
)
NAME_AND_ROLE = (
    "Of a user the role can be changed, and whether they are disabled. Their password they choose themselves, by a link: "
    "POST /api/admin/users/ID/link."
)
TEAM_RULES = (
    "Who may use what is said of teams: PATCH /api/teams/TEAM with rules about workers, GPUs, trainers, targets and "
    "priorities."
)
SECRETS = "Keys and passwords for jobs are secrets: PUT /api/secrets/NAME; a config names them, and nobody reads them again."
FIRST_ADMIN = (
    "The first admin is made by the link that the server prints when it starts and there is no user yet."
)
BY_INVITATION = "Users are invited by an admin: POST /api/admin/users answers with a link for them."
OWN_PASSWORD = 'PATCH /api/me with {"password": …, "current_password": …}.'
PROVIDERS = (
    "Providers and directories are in the file that the server is started with: --sign-in-file; GET /api/login/providers "
    "tells which there are."
)
WITH_A_PROVIDER = "A browser begins at /login/with/PROVIDER; a terminal with 'simpletuner login'."
BY_DIRECTORY = "POST /api/login with name and password asks the directories, too."
SIEM = (
    "Audit entries are sent as notifications are: POST /api/notifications with the channel 'webhook' or 'syslog', the event "
    "'audit' and the scope 'all'."
)


class AuditOfQuery(Struct, kw_only=True):
    limit: Count = 50
    offset: Count = 0


class WholeListQuery(Struct, kw_only=True):
    """Takes no parameter: an older list of users has nowhere to name its next page, and so is never cut into pages."""


def role_of(level: str) -> str:
    """Returns the role of a level. A custom role has its own name."""
    if level == "lead":
        raise AskedOtherwise(next_step=IN_A_TEAM)
    return ROLES.get(level, level)


def new_user(asked: WordedRequest) -> WordedRequest:
    said = dict(asked.body)
    levels, is_admin = said.pop("level_names", ["researcher"]), said.pop("is_admin", False)
    if not isinstance(levels, list) or len(levels) > 1:
        raise AskedOtherwise(next_step=IN_A_TEAM)
    for name in NOT_KEPT:
        said.pop(name, None)
    role = "admin" if is_admin is True else role_of(str(levels[0])) if levels else "viewer"
    return replace(asked, body={"name": said.pop("username", None), "role": role, **said})


def changed_user(asked: WordedRequest) -> WordedRequest:
    said = dict(asked.body)
    ours: Wording = {}
    if "is_active" in said:
        ours["disabled"] = not said.pop("is_active")
    if "is_admin" in said:
        ours["role"] = "admin" if said.pop("is_admin") else "member"
    if said:
        raise AskedOtherwise(next_step=NAME_AND_ROLE)
    return replace(asked, body=ours)


def enabled(asked: WordedRequest) -> WordedRequest:
    return replace(asked, body={"disabled": False})


def disabled(asked: WordedRequest) -> WordedRequest:
    return replace(asked, body={"disabled": True})


def with_role(asked: WordedRequest) -> WordedRequest:
    return replace(asked, body={"role": role_of(str(asked.body.get("level_name", "")))})


def everybody(asked: WordedRequest) -> WordedRequest:
    return replace(asked, query=UserListQuery())


def older_user(answer: Wording, asked: WordedRequest) -> Wording:
    return {
        **answer,
        "username": answer["name"],
        "is_active": answer["disabled_at"] is None,
        "is_admin": answer["role"] == "admin",
        "auth_provider": answer["provider"] or "local",
        "levels": [{"name": answer["role"]}],
    }


def made_user(answer: Wording, asked: WordedRequest) -> Wording:
    """Names what was given and is not kept: a user has a name here, and no address."""
    return {**older_user(answer, asked), "not_kept": [name for name in NOT_KEPT if name in asked.body]}


def older_users(answer: Wording, asked: WordedRequest) -> list[Wording]:
    return [older_user(one, asked) for one in answer["users"]]


def one_user(answer: Wording, asked: WordedRequest) -> Wording:
    user_id = asked.path["id"]
    for one in answer["users"]:
        if user_id in (one["id"], one["name"]):
            return older_user(one, asked)
    raise no_such_user(user_id)


def new_key(asked: WordedRequest) -> WordedRequest:
    said = dict(asked.body)
    days = said.pop("expires_days", None)
    permissions = said.pop("scoped_permissions", None)
    ours: Wording = {"permissions": permissions if permissions is not None else []}
    if isinstance(days, int | float):
        ours["expires_in_s"] = days * DAY_S
    return replace(asked, body={**said, **ours})


def made_key(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "key": answer["token"]}


def login_names(asked: WordedRequest) -> WordedRequest:
    return replace(
        asked, body={"name" if name == "username" else name: value for name, value in asked.body.items()}
    )


def audit_of_user(asked: WordedRequest) -> WordedRequest:
    query: AuditOfQuery = asked.query
    return replace(
        asked, query=AuditQuery(actor_id=asked.path["id"], limit=_most(query.limit), offset=query.offset)
    )


def security_audit(asked: WordedRequest) -> WordedRequest:
    query: AuditOfQuery = asked.query
    return replace(
        asked, query=AuditQuery(event_type=SECURITY, limit=_most(query.limit), offset=query.offset)
    )


def _most(limit: int) -> int:
    return min(max(1, limit), 1000)


def _pointing(instead: str, *asked: str) -> list[Older]:
    return [Older(asked=one, instead=instead) for one in asked]


def _at(method: str, path: str, means: str, **more: Any) -> Older:
    return Older(asked=f"{method} {path}", means=means, **more)


ROWS = [
    _at("GET", "/api/users", LIST_USERS, worded=everybody, answered=older_users, query=WholeListQuery),
    _at("POST", "/api/users", "POST /api/admin/users", worded=new_user, answered=made_user),
    _at("GET", "/api/users/me", "GET /api/me"),
    _at("GET", USER, LIST_USERS, worded=everybody, answered=one_user, query=WholeListQuery),
    _at("PATCH", USER, CHANGE_USER, worded=changed_user, answered=older_user),
    _at("DELETE", USER, "DELETE /api/admin/users/{id}", answered=older_user),
    _at("POST", f"{USER}/activate", CHANGE_USER, worded=enabled, answered=older_user),
    _at("POST", f"{USER}/deactivate", CHANGE_USER, worded=disabled, answered=older_user),
    _at("POST", f"{USER}/levels", CHANGE_USER, worded=with_role, answered=older_user),
    _at("GET", "/api/users/meta/levels", "GET /api/admin/roles"),
    _at("GET", "/api/users/meta/permissions", "GET /api/admin/roles"),
    *_pointing(OWN_ROLES, f"POST {USER}/permissions", "POST /api/users/levels"),
    *_pointing(TEAM_RULES, "GET /api/users/resource-rules", "POST /api/users/resource-rules"),
    *_pointing(
        SECRETS,
        "GET /api/users/me/credentials",
        "POST /api/users/me/credentials",
        f"GET {USER}/credentials",
        f"POST {USER}/credentials",
    ),
    *_pointing(OWN_PASSWORD, "PUT /api/users/me/password", "POST /api/auth/change-password"),
    _at("GET", "/api/auth/api-keys", "GET /api/me/tokens"),
    _at("POST", "/api/auth/api-keys", "POST /api/me/tokens", worded=new_key, answered=made_key),
    _at("DELETE", "/api/auth/api-keys/{id}", "DELETE /api/me/tokens/{id}"),
    _at("GET", "/api/auth/me", "GET /api/me"),
    _at("POST", "/api/auth/login", "POST /api/login", worded=login_names),
    _at("POST", "/api/auth/logout", "POST /api/logout"),
    *_pointing(FIRST_ADMIN, "GET /api/auth/setup/status", "POST /api/auth/setup/first-admin"),
    *_pointing(BY_INVITATION, "POST /api/auth/register"),
    _at("GET", "/api/cloud/external-auth/available", "GET /api/login/providers"),
    *_pointing(
        PROVIDERS, "GET /api/cloud/external-auth/providers", "POST /api/cloud/external-auth/providers"
    ),
    *_pointing(WITH_A_PROVIDER, "GET /api/cloud/external-auth/oidc/{provider}/start"),
    *_pointing(BY_DIRECTORY, "POST /api/cloud/external-auth/ldap/login"),
    _at("GET", "/api/audit/user/{id}", "GET /api/audit", worded=audit_of_user, query=AuditOfQuery),
    _at("GET", "/api/audit/security", "GET /api/audit", worded=security_audit, query=AuditOfQuery),
    *_pointing(SIEM, "GET /api/audit/export-config", "POST /api/audit/export-config"),
]
