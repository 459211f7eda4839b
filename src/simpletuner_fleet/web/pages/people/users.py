"""Administration → Users: who may log in, what each may do, and the link with which a person chooses a password."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from simpletuner_fleet.core.people.accounts import MIN_PASSWORD_CHARS, Role, User
from simpletuner_fleet.core.people.permissions import EVERYTHING
from simpletuner_fleet.http.api.admin.roles import list_roles
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.ownership import acts_for_itself_alone
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import LANGUAGES, N_, current
from simpletuner_fleet.languages.names import role_name
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.permission_names import GROUPS

PAGE_SIZE = 100
LANGUAGE_NAMES = {language.code: language.name for language in LANGUAGES}
ROLE_MEANINGS = {
    Role.ADMIN: N_("Can do everything, including managing workers, users and tokens."),
    Role.MEMBER: N_("Can train: saves configs, submits jobs, cancels and retries their own."),
    Role.VIEWER: N_("Can view jobs and configs but change nothing."),
}
OWN_ROLE = N_("A role of your own; see Roles for what it may do.")


class RolesPageQuery(Struct, kw_only=True):
    role: Annotated[str, Meta(max_length=64)] = ""


class UsersQuery(Struct, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""
    page: Annotated[int, Meta(ge=1, le=10_000)] = 1


class UserRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    role: str
    role_name: str
    state: Literal["active", "invited", "disabled"]
    language: str
    created_at: float
    last_login_at: float | None
    is_caller: bool
    is_foreign: bool
    """A provider vouches for the user, who has no password here."""


async def users(call: Call[None]) -> Reply:
    query = call.query
    typed = query.q.strip().casefold()
    all_users = await deps_of(call).fleet.read(lambda view: view.users())
    fitting = sorted(
        (user for user in all_users if typed in user.name.casefold()),
        key=lambda user: (user.disabled_at is not None, user.name.casefold(), user.id),
    )
    first = (query.page - 1) * PAGE_SIZE
    with spoken(call):
        return page(
            call,
            "access/users.html",
            query=query,
            total=len(all_users),
            rows=[user_row(user, call.principal.id) for user in fitting[first : first + PAGE_SIZE]],
            before=_turned(query, -1) if query.page > 1 else None,
            after=_turned(query, 1) if len(fitting) > first + PAGE_SIZE else None,
            roles=[
                *(
                    (role.value, role_name(current(), role), meaning)
                    for role, meaning in ROLE_MEANINGS.items()
                ),
                *((name, name, OWN_ROLE) for name in sorted(deps_of(call).fleet.organisation.own_roles)),
            ],
            min_password=MIN_PASSWORD_CHARS,
        )


def user_row(user: User, caller: str) -> UserRow:
    return UserRow(
        id=user.id,
        name=user.name,
        role=user.role,
        role_name=role_name(current(), user.role),
        state="disabled"
        if user.disabled_at is not None
        else "active"
        if user.password_hash or user.issuer
        else "invited",
        language=LANGUAGE_NAMES.get(user.language, ""),
        created_at=user.created_at,
        last_login_at=user.last_login_at,
        is_caller=user.id == caller,
        is_foreign=bool(user.issuer),
    )


def _turned(query: UsersQuery, by: int) -> str:
    return with_query("/admin/users", q=query.q.strip(), page=query.page + by)


async def roles(call: Call[None]) -> Reply:
    """What is chosen here is offered as far as the caller has it: nobody makes a role that may do more."""
    known = await list_roles(call)
    may = call.principal.can
    chosen = next((one for one in known.roles if one.name == call.query.role and not one.built_in), None)
    with spoken(call):
        return page(
            call,
            "access/roles.html",
            roles=known.roles,
            chosen=chosen,
            names={role.value: role_name(current(), role) for role in Role},
            groups=[
                (title, offered)
                for title, group in GROUPS
                if (offered := [one for one in group if one[0] != EVERYTHING and may(one[0])])
            ],
            may_all_jobs=not acts_for_itself_alone(call),
        )


ROUTES = (
    Route("GET", "/admin/users", users, "admin.users", summary="Users", query=UsersQuery),
    Route("GET", "/admin/users/roles", roles, "admin.users", summary="Roles", query=RolesPageQuery),
)
