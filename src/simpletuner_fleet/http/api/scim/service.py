"""Describes the SCIM service to clients: what is supported, which kinds of resources there are, and their schemas."""

from typing import Any

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.people.scim.resources import GROUP_SCHEMA, LIST_SCHEMA, USER_SCHEMA
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.scim.answers import (
    BASE,
    MAX_PAGE,
    ScimLook,
    answered,
    location_of,
    scim_route,
)
from simpletuner_fleet.http.edge.routes import Call, Reply

SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Schema"
RESOURCE_TYPE = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
CONFIG = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"


def _attribute(name: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    usual = {"multiValued": False, "required": False, "mutability": "readWrite", "returned": "default"}
    exact = {"caseExact": False, "uniqueness": "none"} if kind == "string" else {}
    return {"name": name, "type": kind, **usual, **exact, **more}


NAMES = [_attribute("givenName"), _attribute("familyName")]
ADDRESSES = [_attribute("value"), _attribute("type"), _attribute("primary", "boolean")]
REFERENCES = [_attribute("value", caseExact=True), _attribute("display", mutability="readOnly")]
EXTERNAL_ID = _attribute("externalId", caseExact=True)
SCHEMAS: dict[str, dict[str, Any]] = {
    USER_SCHEMA: {
        "name": "User",
        "attributes": [
            _attribute("userName", required=True, uniqueness="server"),
            EXTERNAL_ID,
            _attribute("displayName"),
            _attribute("active", "boolean"),
            _attribute("name", "complex", subAttributes=NAMES),
            _attribute("emails", "complex", multiValued=True, subAttributes=ADDRESSES),
            _attribute(
                "groups", "complex", multiValued=True, mutability="readOnly", subAttributes=REFERENCES
            ),
        ],
    },
    GROUP_SCHEMA: {
        "name": "Group",
        "attributes": [
            _attribute("displayName", required=True, uniqueness="server"),
            EXTERNAL_ID,
            _attribute("members", "complex", multiValued=True, subAttributes=REFERENCES),
        ],
    },
}
TYPES = {"User": ("/Users", USER_SCHEMA), "Group": ("/Groups", GROUP_SCHEMA)}


async def service_config(call: Call[None]) -> Reply:
    deps_of(call).sign_in.scim_identity_source()
    no = {"supported": False}
    return answered(
        {
            "schemas": [CONFIG],
            "patch": {"supported": True},
            "bulk": {**no, "maxOperations": 0, "maxPayloadSize": 0},
            "filter": {"supported": True, "maxResults": MAX_PAGE},
            "changePassword": no,
            "sort": no,
            "etag": no,
            "authenticationSchemes": [
                {
                    "type": "oauthbearertoken",
                    "name": "API token",
                    "description": "A token with the permission admin.scim.",
                    "primary": True,
                }
            ],
            "meta": {"resourceType": "ServiceProviderConfig", "location": location_of(call, CONFIG_PATH)},
        }
    )


async def list_types(call: Call[None]) -> Reply:
    return _all([_type(call, name) for name in _names(call)])


async def get_type(call: Call[None]) -> Reply:
    return answered(_type(call, _known(call.path["name"], _names(call))))


async def list_schemas(call: Call[None]) -> Reply:
    return _all([_schema(call, TYPES[name][1]) for name in _names(call)])


async def get_schema(call: Call[None]) -> Reply:
    known = {TYPES[name][1].lower(): TYPES[name][1] for name in _names(call)}
    asked = _known(call.path["name"].lower(), list(known))
    return answered(_schema(call, known[asked]))


def _names(call: Call[Any]) -> list[str]:
    """Returns the kinds of resources that this server accepts."""
    source = deps_of(call).sign_in.scim_identity_source()
    return ["User", "Group"] if source.scim is None or source.scim.groups else ["User"]


def _known(name: str, names: list[str]) -> str:
    if name not in names:
        raise NotFound(f"There is nothing called '{name[:100]}' here.")
    return name


def _type(call: Call[Any], name: str) -> dict[str, Any]:
    endpoint, schema = TYPES[name]
    return {
        "schemas": [RESOURCE_TYPE],
        "id": name,
        "name": name,
        "endpoint": endpoint,
        "schema": schema,
        "meta": {"resourceType": "ResourceType", "location": location_of(call, TYPES_PATH, name)},
    }


def _schema(call: Call[Any], schema: str) -> dict[str, Any]:
    return {
        "schemas": [SCHEMA],
        "id": schema,
        **SCHEMAS[schema],
        "meta": {"resourceType": "Schema", "location": location_of(call, SCHEMAS_PATH, schema)},
    }


def _all(resources: list[dict[str, Any]]) -> Reply:
    counts = {"totalResults": len(resources), "startIndex": 1, "itemsPerPage": len(resources)}
    return answered({"schemas": [LIST_SCHEMA], **counts, "Resources": resources})


CONFIG_PATH = f"{BASE}/ServiceProviderConfig"
TYPES_PATH = f"{BASE}/ResourceTypes"
SCHEMAS_PATH = f"{BASE}/Schemas"
ROUTES = [
    scim_route("GET", CONFIG_PATH, service_config, "SCIM: what is supported", ScimLook),
    scim_route("GET", TYPES_PATH, list_types, "SCIM: the kinds of resources", ScimLook),
    scim_route("GET", f"{TYPES_PATH}/{{name}}", get_type, "SCIM: one kind of resource", ScimLook),
    scim_route("GET", SCHEMAS_PATH, list_schemas, "SCIM: what resources hold", ScimLook),
    scim_route("GET", f"{SCHEMAS_PATH}/{{name}}", get_schema, "SCIM: what one resource holds", ScimLook),
]
