"""Lets administrators manage users."""

from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from simpletuner_fleet.core.bounds import FreeText, Name
from simpletuner_fleet.core.people.accounts import Role, User
from simpletuner_fleet.core.people.own_roles import OwnRoles, permissions_held, refuse_more_than_held
from simpletuner_fleet.core.people.teams import LEAD_PERMISSIONS
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import PageSize
from simpletuner_fleet.http.api.ownership import acts_for_itself_alone, holds_by_role
from simpletuner_fleet.http.edge.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.orchestrator.people import accounts
from simpletuner_fleet.orchestrator.people.accounts import IssuedKey
from simpletuner_fleet.queries.read_models import read_cursor, write_cursor

TAGS = ("administration",)
PERMISSION = "admin.users"
MAX_BODY_BYTES = 8 * KIB
USERS = "/api/admin/users"
PAGE_SIZE = 100
Place = tuple[float, Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]]
"""When a user was made, and their id: after whom a page begins."""


class UserView(Struct, kw_only=True):
    id: str
    name: str
    role: str
    language: str
    created_at: str | None
    last_login_at: str | None
    disabled_at: str | None
    has_password: bool
    """False: invited, and has not chosen one yet; or logs in with a provider."""
    provider: str
    """The issuer that vouches for the user; empty for one with a password."""


class UserListQuery(Struct, kw_only=True):
    cursor: str | None = None
    limit: PageSize | None = None
    """Without it and without a cursor, all users are answered at once."""


class UsersView(Struct):
    users: list[UserView]
    next: str | None = None
    """The cursor of the next page; null where there is none."""


class LinkView(Struct, kw_only=True):
    link: str
    """Works once. Shown only here."""
    expires_at: str | None


class UserMade(UserView, kw_only=True):
    link: str | None
    """The page where the user chooses a password; null where one was given."""
    link_expires_at: str | None


class CreateUserBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: FreeText
    role: Name = Role.MEMBER
    language: FreeText = ""
    password: FreeText | None = None


class ChangeUserBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a user. What is left out stays as it is."""

    role: Name | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


async def list_users(call: Call[None]) -> UsersView:
    """Lists users, oldest first. Pages came later, so whoever asks for none still gets everybody."""
    fleet, query = deps_of(call).fleet, call.query
    if query.limit is None and query.cursor is None:
        # Made where it is read: of many users it takes long, and other requests are not to wait for it.
        return await fleet.read(lambda view: UsersView([user_view(user) for user in view.users()]))
    after = read_cursor(query.cursor, Place) if query.cursor else None
    limit = query.limit or PAGE_SIZE
    users = await fleet.read(lambda view: view.users_page(after, limit + 1))
    page = users[:limit]
    following = write_cursor((page[-1].created_at, page[-1].id)) if len(users) > limit else None
    return UsersView([user_view(user) for user in page], following)


async def create_user(call: Call[CreateUserBody]) -> UserMade:
    deps, body = deps_of(call), call.body
    require_role(call, body.role)
    user = await accounts.create_user(
        deps.fleet,
        deps.passwords,
        call.actor,
        partial(_refuse_more, call),
        name=body.name,
        role=body.role,
        language=body.language,
        password=body.password,
    )
    key = None if user.password_hash else await _key(call, user.id)
    return UserMade(
        **_fields(user),
        link=link_to(call, key) if key else None,
        link_expires_at=rfc3339(key.expires_at) if key else None,
    )


async def change_user(call: Call[ChangeUserBody]) -> UserView:
    body = call.body
    role = None if body.role is UNSET else body.role
    return await _change(call, role, None if body.disabled is UNSET else body.disabled)


async def disable_user(call: Call[None]) -> UserView:
    """Disables a user. Users are never deleted, since what they have done stays."""
    return await _change(call, None, True)


async def _change(call: Call[Any], role: str | None, disabled: bool | None) -> UserView:
    deps, user_id = deps_of(call), call.path["id"]
    require_fresh_login(call)
    change = await accounts.change_user(
        deps.fleet, user_id, call.actor, partial(_refuse_more, call), role=role, disabled=disabled
    )
    deps.revoke(change.credentials)
    return user_view(change.user)


async def personal_link(call: Call[None]) -> LinkView:
    require_fresh_login(call)
    return _link_view(call, await _key(call, call.path["id"]))


async def _key(call: Call[Any], user_id: str) -> IssuedKey:
    return await accounts.personal_key(deps_of(call).fleet, user_id, call.actor, partial(_refuse_more, call))


async def first_link(call: Call[None]) -> LinkView:
    require_role(call, Role.ADMIN)
    return _link_view(call, await accounts.first_key(deps_of(call).fleet, call.actor))


def require_role(call: Call[Any], role: str) -> None:
    """Raises unless the caller holds this role's permissions and has logged in recently.

    Nobody gives away more than they hold, nor through a browser that was left open.
    """
    require_fresh_login(call)
    _refuse_more(call, role, deps_of(call).fleet.organisation.own_roles)


def _refuse_more(call: Call[Any], role: str, own: OwnRoles, *, leads: bool = False) -> None:
    """Raises where the role, or who has it and leads a team, holds more than the caller.

    Who may reset an admin's password could become that admin, so this applies to every change of a user, and to the
    role that they have when it is made.
    """
    refuse_more_than_held(
        (*permissions_held(role, own), *(LEAD_PERMISSIONS if leads else ())),
        all_jobs=role in own and own[role].all_jobs,
        held=held_by_role(call),
        holder_only_own=acts_for_itself_alone(call),
    )


def held_by_role(call: Call[Any]) -> list[str]:
    """Returns what the caller may give to others: not what they hold as the lead of some team, for its jobs alone."""
    held = call.principal.permissions
    return [one for one in held if one not in LEAD_PERMISSIONS or holds_by_role(call, one)]


def link_to(call: Call[Any], key: IssuedKey) -> str:
    return start_link(deps_of(call).base_url(call), key)


def start_link(base_url: str, key: IssuedKey) -> str:
    return f"{base_url.rstrip('/')}/start?k={key.secret}"


def _link_view(call: Call[Any], key: IssuedKey) -> LinkView:
    return LinkView(link=link_to(call, key), expires_at=rfc3339(key.expires_at))


def user_view(user: User) -> UserView:
    return UserView(**_fields(user))


def _fields(user: User) -> dict[str, Any]:
    return {
        "id": user.id,
        "name": user.name,
        "role": user.role,
        "language": user.language,
        "created_at": rfc3339(user.created_at),
        "last_login_at": rfc3339(user.last_login_at),
        "disabled_at": rfc3339(user.disabled_at),
        "has_password": bool(user.password_hash),
        "provider": user.issuer,
    }


ROUTES = [
    Route(
        "GET",
        USERS,
        list_users,
        PERMISSION,
        answer=UsersView,
        summary="Users",
        query=UserListQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        USERS,
        create_user,
        PERMISSION,
        CreateUserBody,
        UserMade,
        "Create a user; without a password, with a link to choose one",
        status=201,
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{USERS}/link",
        first_link,
        PERMISSION,
        answer=LinkView,
        summary="A one-time link that makes the first admin, while there is no user",
        tags=TAGS,
    ),
    Route(
        "PATCH",
        f"{USERS}/{{id}}",
        change_user,
        PERMISSION,
        ChangeUserBody,
        UserView,
        "Change a user's role; disable or enable a user",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{USERS}/{{id}}",
        disable_user,
        PERMISSION,
        answer=UserView,
        summary="Disable a user and end their sessions",
        tags=TAGS,
    ),
    Route(
        "POST",
        f"{USERS}/{{id}}/link",
        personal_link,
        PERMISSION,
        answer=LinkView,
        summary="A one-time link with which a user chooses a new password",
        tags=TAGS,
    ),
]
