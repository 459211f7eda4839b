"""Lists, shows, creates, changes and deletes SCIM resources, the same way for both kinds."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.people.scim.filters import read_filter
from simpletuner_fleet.core.people.scim.resources import ScimKind, only_asked
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.scim.answers import (
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
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.orchestrator.scim.entries import (
    ScimChange,
    ScimResource,
    existing,
    page_of,
    resource_in,
)
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn
from simpletuner_fleet.ports import ScimEntry, View

LOOKED_UP = frozenset({"members", "groups"})
"""Attributes that are other rows, and so are read only where they are shown."""
MOST_MEMBERS_SHOWN = 20_000
"""With so many a page ends: one of 500 large groups would have millions of them."""


class Summaries(Struct, frozen=True, kw_only=True):
    all: str
    new: str
    one: str
    whole: str
    changes: str
    goes: str


class ScimRoutes(Struct, frozen=True, kw_only=True):
    """Builds the routes of one kind of SCIM resource: it holds its path, and what differs from the other kind."""

    kind: ScimKind
    at: str
    filters: frozenset[str]
    identity_source: Callable[[SignIn], IdentitySource]
    """Raises NotFound where this kind is not taken."""
    shown: Callable[[View, Any, frozenset[str], dict[str, Any]], dict[str, Any]]
    """Takes the resource, the attributes that are not wanted, in lower case, and its meta."""
    create: Callable[..., Awaitable[ScimChange]]
    replaced: Callable[..., Awaitable[ScimChange]]
    patched: Callable[..., Awaitable[ScimChange]]
    deleted: Callable[..., Awaitable[list[str]]]

    def routes(self, said: Summaries) -> list[Route]:
        at, one, body = self.at, f"{self.at}/{{id}}", dict[str, Any]
        return [
            scim_route("GET", at, self._list, said.all, ScimQuery),
            scim_route("POST", at, self._create, said.new, ScimLook, body, 201),
            scim_route("GET", one, self._get, said.one, ScimLook),
            scim_route("PUT", one, self._replace, said.whole, ScimLook, body),
            scim_route("PATCH", one, self._patch, said.changes, ScimLook, body),
            scim_route("DELETE", one, self._delete, said.goes, ScimLook, status=204),
        ]

    async def _list(self, call: Call[None]) -> Reply:
        deps, query = deps_of(call), call.query
        self.identity_source(deps.sign_in)
        terms = read_filter(query.filter, self.filters)

        def look(view: View) -> Reply:
            page = page_of(view, self.kind, terms, query.skip, query.limit)
            return listed(page, self._some_of(call, view, page.entries), query)

        return await deps.fleet.read(look)

    def _some_of(self, call: Call[None], view: View, entries: Iterable[ScimEntry]) -> list[dict[str, Any]]:
        """Returns what is shown of the first ones: a page may be shorter than asked for (RFC 7644, 3.4.2.4)."""
        some, members = list[dict[str, Any]](), 0
        for entry in entries:
            some.append(self._view(call, view, resource_in(entry)))
            members += len(some[-1].get("members", ()))
            if members >= MOST_MEMBERS_SHOWN:
                break
        return some

    async def _get(self, call: Call[None]) -> Reply:
        deps = deps_of(call)
        self.identity_source(deps.sign_in)

        def look(view: View) -> Reply:
            return answered(self._view(call, view, resource_in(existing(view, self.kind, call.path["id"]))))

        return await deps.fleet.read(look)

    async def _create(self, call: Call[dict[str, Any]]) -> Reply:
        deps = deps_of(call)
        saved = await self.create(deps.fleet, self.identity_source(deps.sign_in), call.body, call.actor)
        return await self._saved(call, saved, status=201)

    async def _replace(self, call: Call[dict[str, Any]]) -> Reply:
        return await self._changed(call, self.replaced)

    async def _patch(self, call: Call[dict[str, Any]]) -> Reply:
        return await self._changed(call, self.patched)

    async def _changed(
        self, call: Call[dict[str, Any]], change: Callable[..., Awaitable[ScimChange]]
    ) -> Reply:
        deps = deps_of(call)
        source = self.identity_source(deps.sign_in)
        return await self._saved(
            call, await change(deps.fleet, source, call.path["id"], call.body, call.actor)
        )

    async def _delete(self, call: Call[None]) -> Reply:
        deps = deps_of(call)
        source = self.identity_source(deps.sign_in)
        deps.revoke(await self.deleted(deps.fleet, source, call.path["id"], call.actor))
        return gone()

    async def _saved(self, call: Call[Any], saved: ScimChange, status: int | None = None) -> Reply:
        deps = deps_of(call)
        deps.revoke(saved.touched)
        body = await deps.fleet.read(lambda view: self._view(call, view, saved.resource))
        return answered(body, status=status, location=location_of(call, self.at, saved.resource.id))

    def _view(self, call: Call[Any], view: View, resource: ScimResource) -> dict[str, Any]:
        unwanted, wanted = names_in(call.query.excludedAttributes), names_in(call.query.attributes)
        unwanted |= LOOKED_UP - wanted if wanted else frozenset()
        word = str(self.kind).capitalize()
        meta = meta_of(call, word, self.at, resource.id, resource.created_at, resource.changed_at)
        return only_asked(self.shown(view, resource, unwanted, meta), wanted, unwanted)
