"""Lists the built-in roles, and manages custom ones that are made of listed permissions."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.own_roles import OwnRole, refuse_more_than_held
from simpletuner_fleet.core.people.permissions import PERMISSIONS, role_permissions
from simpletuner_fleet.http.api.admin.accounts import held_by_role
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.ownership import acts_for_itself_alone
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import roles

TAGS = ("users",)
PERMISSION = "admin.users"
ROLES = "/api/admin/roles"


class RoleView(Struct, kw_only=True):
    name: str
    permissions: list[str]
    all_jobs: bool
    """Steers everybody's jobs as far as the permissions go, not their own alone."""
    built_in: bool
    users: int


class RolesView(Struct, kw_only=True):
    roles: list[RoleView]
    permissions: list[str]
    """Every permission that a role may hold."""


class RoleBody(Struct, kw_only=True, forbid_unknown_fields=True):
    permissions: list[Name]
    all_jobs: bool = False


async def list_roles(call: Call[Any]) -> RolesView:
    organisation = deps_of(call).fleet.organisation
    held = list(organisation.roles.values())
    built_in = [
        RoleView(
            name=role,
            permissions=list(role_permissions(role)),
            all_jobs=role is Role.ADMIN,
            built_in=True,
            users=held.count(role),
        )
        for role in Role
    ]
    own = [_view(role, held.count(role.name)) for _, role in sorted(organisation.own_roles.items())]
    return RolesView(roles=[*built_in, *own], permissions=list(PERMISSIONS))


async def set_role(call: Call[RoleBody]) -> RoleView:
    require_fresh_login(call)
    deps, body = deps_of(call), call.body
    requested = OwnRole(name=call.path["name"], permissions=tuple(body.permissions), all_jobs=body.all_jobs)
    deps.revoke(await roles.set_role(deps.fleet, requested, _within(call), call.actor))
    organisation = deps.fleet.organisation
    held = list(organisation.roles.values())
    return _view(organisation.own_roles[requested.name], held.count(requested.name))


async def delete_role(call: Call[None]) -> Done:
    require_fresh_login(call)
    await roles.delete_role(deps_of(call).fleet, call.path["name"], _within(call), call.actor)
    return Done(id=call.path["name"])


def _within(call: Call[Any]) -> roles.Check:
    held, alone = held_by_role(call), acts_for_itself_alone(call)

    def check(role: OwnRole) -> None:
        refuse_more_than_held(role.permissions, all_jobs=role.all_jobs, held=held, holder_only_own=alone)

    return check


def _view(role: OwnRole, users: int) -> RoleView:
    return RoleView(
        name=role.name,
        permissions=list(role.permissions),
        all_jobs=role.all_jobs,
        built_in=False,
        users=users,
    )


ROUTES = [
    Route(
        "GET",
        ROLES,
        list_roles,
        PERMISSION,
        answer=RolesView,
        summary="Roles, and what each may do",
        tags=TAGS,
    ),
    Route(
        "PUT",
        f"{ROLES}/{{name}}",
        set_role,
        PERMISSION,
        RoleBody,
        RoleView,
        "Make a role of one's own, or change what it may do",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{ROLES}/{{name}}",
        delete_role,
        PERMISSION,
        answer=Done,
        summary="Delete a role that nobody has",
        tags=TAGS,
    ),
]
