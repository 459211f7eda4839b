"""Reads queries and builds answers for both kinds of SCIM resources."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Whole
from simpletuner_fleet.core.people.scim.filters import attribute_name
from simpletuner_fleet.core.people.scim.resources import LIST_SCHEMA
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import KIB, Call, Handler, Reply, Route, rfc3339
from simpletuner_fleet.http.edge.scim_problems import CONTENT_TYPE
from simpletuner_fleet.orchestrator.scim.entries import Page

TAGS = ("scim",)
PERMISSION = "admin.scim"
BASE = "/scim/v2"
USERS = f"{BASE}/Users"
GROUPS = f"{BASE}/Groups"
MAX_BODY_BYTES = 1024 * KIB
USUAL_PAGE = 100
MAX_PAGE = 500
NO_STORE = {"cache-control": "no-store"}


Asked = Annotated[str, Meta(max_length=4 * KIB)]
"""A filter with a long name, or a list of many attributes."""


class ScimQuery(Struct, kw_only=True):
    filter: Asked = ""
    startIndex: Whole = 1
    count: Whole = USUAL_PAGE
    attributes: Asked = ""
    excludedAttributes: Asked = ""

    @property
    def skip(self) -> int:
        return max(self.startIndex, 1) - 1

    @property
    def limit(self) -> int:
        return min(max(self.count, 0), MAX_PAGE)


class ScimLook(Struct, kw_only=True):
    attributes: Asked = ""
    excludedAttributes: Asked = ""


def names_in(text: str) -> frozenset[str]:
    """Returns the names of attributes. For a part of one the whole is shown: `name.givenName` asks for `name`."""
    return frozenset(attribute_name(one.strip()).partition(".")[0] for one in text.split(",") if one.strip())


def answered(body: dict[str, Any], *, status: int | None = None, location: str = "") -> Reply:
    headers = {**NO_STORE, **({"location": location} if location else {})}
    return Reply(body=body, status=status, headers=headers, content_type=CONTENT_TYPE)


def gone() -> Reply:
    return Reply(body=b"", status=204, headers=NO_STORE, content_type=CONTENT_TYPE)


def listed(page: Page, resources: list[dict[str, Any]], query: ScimQuery) -> Reply:
    return answered(
        {
            "schemas": [LIST_SCHEMA],
            "totalResults": page.total,
            "startIndex": query.skip + 1,
            "itemsPerPage": len(resources),
            "Resources": resources,
        }
    )


def meta_of(
    call: Call[Any], kind: str, at: str, resource_id: str, created_at: float, changed_at: float
) -> dict[str, Any]:
    return {
        "resourceType": kind,
        "created": rfc3339(created_at),
        "lastModified": rfc3339(changed_at),
        "location": location_of(call, at, resource_id),
    }


def location_of(call: Call[Any], at: str, resource_id: str = "") -> str:
    whole = f"{deps_of(call).base_url(call).rstrip('/')}{at}"
    return f"{whole}/{resource_id}" if resource_id else whole


def scim_route(
    method: str, path: str, handler: Handler, summary: str, query: Any, body: Any = None, status: int = 200
) -> Route:
    return Route(
        method,
        path,
        handler,
        PERMISSION,
        body,
        dict[str, Any],
        summary,
        status,
        MAX_BODY_BYTES,
        query,
        TAGS,
        scim=True,
    )
