"""Manages the caller's own named lists of jobs."""

from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route
from simpletuner_fleet.http.views.fields import Time, view_of
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.steering import saved_views

TAGS = ("people",)
MAX_QUERY_CHARS = 2_000


class SavedViewView(Struct, kw_only=True):
    name: str
    query: str
    """Of the page's address: /jobs?QUERY shows it, to everybody who may see jobs."""
    created_at: Time


class SavedViewsAnswer(Struct):
    views: list[SavedViewView]


class SavedViewBody(Struct, kw_only=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(max_length=MAX_QUERY_CHARS)]


async def list_views(call: Call[None]) -> SavedViewsAnswer:
    views = await saved_views.saved_views(deps_of(call).fleet, call.principal.owns_as)
    return SavedViewsAnswer([view_of(SavedViewView, view) for view in views])


async def save_view(call: Call[SavedViewBody]) -> SavedViewView:
    try:
        pairs = parse_qsl(call.body.query.removeprefix("?"), strict_parsing=bool(call.body.query))
    except ValueError:
        raise Invalid("This is not the query of an address.", path="$.query") from None
    query = urlencode([(name, value) for name, value in pairs if name != "cursor"])
    owner = call.principal.owns_as
    return view_of(
        SavedViewView, await saved_views.save(deps_of(call).fleet, owner, call.path["name"], query)
    )


async def delete_view(call: Call[None]) -> Done:
    await saved_views.delete(deps_of(call).fleet, call.principal.owns_as, call.path["name"])
    return Done(id=call.path["name"])


ROUTES = [
    Route(
        "GET",
        "/api/me/views",
        list_views,
        ANY_USER,
        answer=SavedViewsAnswer,
        summary="Your saved views of the list of jobs",
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/me/views/{name}",
        save_view,
        ANY_USER,
        SavedViewBody,
        SavedViewView,
        "Save a view under a name",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/me/views/{name}",
        delete_view,
        ANY_USER,
        answer=Done,
        summary="Delete a saved view",
        tags=TAGS,
    ),
]
