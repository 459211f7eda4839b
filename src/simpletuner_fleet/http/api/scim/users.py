"""SCIM's users."""

from typing import Any

from simpletuner_fleet.core.people.scim.filters import OF_USERS, read_filter
from simpletuner_fleet.core.people.scim.resources import ScimKind, ScimUser, only_asked, shown_user
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.scim.answers import (
    USERS,
    ScimLook,
    ScimQuery,
    answered,
    gone,
    listed,
    location_of,
    meta_of,
    names_in,
    scim_route,
)
from simpletuner_fleet.http.edge.routes import Call, Reply
from simpletuner_fleet.orchestrator.scim import users
from simpletuner_fleet.orchestrator.scim.entries import existing, group_in, page_of, user_in
from simpletuner_fleet.orchestrator.scim.users import UserSaved
from simpletuner_fleet.ports import View

AT_ONE = f"{USERS}/{{id}}"


async def list_users(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    deps.sign_in.scim_doorway()
    terms = read_filter(query.filter, OF_USERS)

    def look(view: View) -> Reply:
        page = page_of(view, ScimKind.USER, terms, query.skip, query.limit)
        return listed(page, [_shown(call, view, user_in(entry)) for entry in page.entries], query)

    return await deps.fleet.read(look)


async def get_user(call: Call[None]) -> Reply:
    deps = deps_of(call)
    deps.sign_in.scim_doorway()

    def look(view: View) -> Reply:
        return answered(_shown(call, view, user_in(existing(view, ScimKind.USER, call.path["id"]))))

    return await deps.fleet.read(look)


async def create_user(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    saved = await users.create(deps.fleet, deps.sign_in.scim_doorway(), call.body, call.actor)
    return await _saved(call, saved, status=201)


async def replace_user(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    door = deps.sign_in.scim_doorway()
    return await _saved(call, await users.replaced(deps.fleet, door, call.path["id"], call.body, call.actor))


async def patch_user(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    door = deps.sign_in.scim_doorway()
    return await _saved(call, await users.patched(deps.fleet, door, call.path["id"], call.body, call.actor))


async def delete_user(call: Call[None]) -> Reply:
    deps = deps_of(call)
    deps.revoke(await users.deleted(deps.fleet, deps.sign_in.scim_doorway(), call.path["id"], call.actor))
    return gone()


async def _saved(call: Call[Any], saved: UserSaved, status: int | None = None) -> Reply:
    deps = deps_of(call)
    deps.revoke(saved.touched)
    body = await deps.fleet.read(lambda view: _shown(call, view, saved.user))
    return answered(body, status=status, location=location_of(call, USERS, saved.user.id))


def _shown(call: Call[Any], view: View, user: ScimUser) -> dict[str, Any]:
    unwanted, wanted = names_in(call.query.excludedAttributes), names_in(call.query.attributes)
    entries = (view.scim_entry(ScimKind.GROUP, one) for one in view.scim_groups_of(user.id))
    meta = meta_of(call, "User", USERS, user.id, user.created_at, user.changed_at)
    shown = shown_user(user, [group_in(entry) for entry in entries if entry], meta)
    return only_asked(shown, wanted, unwanted)


ROUTES = [
    scim_route("GET", USERS, list_users, "SCIM: users", ScimQuery),
    scim_route("POST", USERS, create_user, "SCIM: a new user", ScimLook, dict[str, Any], 201),
    scim_route("GET", AT_ONE, get_user, "SCIM: one user", ScimLook),
    scim_route("PUT", AT_ONE, replace_user, "SCIM: a user, whole", ScimLook, dict[str, Any]),
    scim_route("PATCH", AT_ONE, patch_user, "SCIM: changes of a user", ScimLook, dict[str, Any]),
    scim_route("DELETE", AT_ONE, delete_user, "SCIM: a user leaves", ScimLook, status=204),
]
