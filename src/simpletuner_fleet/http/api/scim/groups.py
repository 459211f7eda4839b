"""SCIM's groups."""

from typing import Any

from simpletuner_fleet.core.people.scim.filters import OF_GROUPS, read_filter
from simpletuner_fleet.core.people.scim.resources import ScimGroup, ScimKind, only_asked, shown_group
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.scim.answers import (
    GROUPS,
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
from simpletuner_fleet.orchestrator.scim import groups
from simpletuner_fleet.orchestrator.scim.entries import existing, group_in, page_of
from simpletuner_fleet.orchestrator.scim.groups import GroupSaved
from simpletuner_fleet.ports import View

AT_ONE = f"{GROUPS}/{{id}}"


async def list_groups(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    deps.sign_in.scim_groups_doorway()
    terms = read_filter(query.filter, OF_GROUPS)

    def look(view: View) -> Reply:
        page = page_of(view, ScimKind.GROUP, terms, query.skip, query.limit)
        return listed(page, [_shown(call, view, group_in(entry)) for entry in page.entries], query)

    return await deps.fleet.read(look)


async def get_group(call: Call[None]) -> Reply:
    deps = deps_of(call)
    deps.sign_in.scim_groups_doorway()

    def look(view: View) -> Reply:
        return answered(_shown(call, view, group_in(existing(view, ScimKind.GROUP, call.path["id"]))))

    return await deps.fleet.read(look)


async def create_group(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    saved = await groups.create(deps.fleet, deps.sign_in.scim_groups_doorway(), call.body, call.actor)
    return await _saved(call, saved, status=201)


async def replace_group(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    door = deps.sign_in.scim_groups_doorway()
    return await _saved(call, await groups.replaced(deps.fleet, door, call.path["id"], call.body, call.actor))


async def patch_group(call: Call[dict[str, Any]]) -> Reply:
    deps = deps_of(call)
    door = deps.sign_in.scim_groups_doorway()
    return await _saved(call, await groups.patched(deps.fleet, door, call.path["id"], call.body, call.actor))


async def delete_group(call: Call[None]) -> Reply:
    deps = deps_of(call)
    deps.revoke(
        await groups.deleted(deps.fleet, deps.sign_in.scim_groups_doorway(), call.path["id"], call.actor)
    )
    return gone()


async def _saved(call: Call[Any], saved: GroupSaved, status: int | None = None) -> Reply:
    deps = deps_of(call)
    deps.revoke(saved.touched)
    body = await deps.fleet.read(lambda view: _shown(call, view, saved.group))
    return answered(body, status=status, location=location_of(call, GROUPS, saved.group.id))


def _shown(call: Call[Any], view: View, group: ScimGroup) -> dict[str, Any]:
    """Members are looked up only where they are shown: a group may have many."""
    unwanted, wanted = names_in(call.query.excludedAttributes), names_in(call.query.attributes)
    ids = view.scim_members(group.id) if "members" not in unwanted else []
    meta = meta_of(call, "Group", GROUPS, group.id, group.created_at, group.changed_at)
    shown = shown_group(group, [(one, _name_of(view, one)) for one in ids], meta)
    return only_asked(shown, wanted, unwanted)


def _name_of(view: View, user_id: str) -> str:
    entry = view.scim_entry(ScimKind.USER, user_id)
    return entry.name if entry else user_id


ROUTES = [
    scim_route("GET", GROUPS, list_groups, "SCIM: groups", ScimQuery),
    scim_route("POST", GROUPS, create_group, "SCIM: a new group", ScimLook, dict[str, Any], 201),
    scim_route("GET", AT_ONE, get_group, "SCIM: one group", ScimLook),
    scim_route("PUT", AT_ONE, replace_group, "SCIM: a group, whole", ScimLook, dict[str, Any]),
    scim_route("PATCH", AT_ONE, patch_group, "SCIM: changes of a group", ScimLook, dict[str, Any]),
    scim_route("DELETE", AT_ONE, delete_group, "SCIM: a group goes", ScimLook, status=204),
]
