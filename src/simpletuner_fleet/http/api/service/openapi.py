"""Generates the API's description from the route table: what is not in the table does not exist."""

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from simpletuner_fleet import __version__
from simpletuner_fleet.http.api.service.docs_page import docs_page, page_policy
from simpletuner_fleet.http.edge.problems import ProblemDocument
from simpletuner_fleet.http.edge.routes import PUBLIC, Access, Call, Reply, Route
from simpletuner_fleet.protocol.problems import CONTENT_TYPE

REF = "#/components/schemas/{name}"
PARAMETER = re.compile(r"\{(\w+)\}")
SECURITY: dict[str, list[dict[str, list[str]]]] = {
    Access.PUBLIC: [],
    Access.WORKER: [{"workerToken": []}],
    Access.UPLOAD: [{"workerToken": []}, {"uploadToken": []}],
}
USER_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}, {"session": []}]
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API token, `st_…`."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API token, `st_…`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "simpletuner_session",
        "description": "A browser that has logged in; `__Host-simpletuner_session` under TLS. Changes need an "
        "`Origin` or `Sec-Fetch-Site` header that names a page of this server.",
    },
    "workerToken": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Worker-Token",
        "description": "The token of one worker, `wt_…`.",
    },
    "uploadToken": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Upload-Token",
        "description": "The token of one attempt, `ut_…`.",
    },
}


class Documentation(NamedTuple):
    document: bytes
    page: bytes
    policy: str


def documentation_routes(table: Sequence[Route]) -> list[Route]:
    """Returns the routes of `/openapi.json` and `/docs`, which describe themselves, too."""

    async def openapi_json(call: Call[None]) -> Reply:
        return Reply(body=(await drawn()).document)

    async def docs(call: Call[None]) -> Reply:
        documentation = await drawn()
        return Reply(
            body=documentation.page,
            content_type="text/html; charset=utf-8",
            headers={"Content-Security-Policy": documentation.policy},
        )

    tags = ("server",)
    own = [
        Route(
            "GET", "/openapi.json", openapi_json, PUBLIC, summary="This description, for programs", tags=tags
        ),
        Route("GET", "/docs", docs, PUBLIC, summary="This description, for people", tags=tags),
    ]
    rows = (*table, *own)

    async def drawn() -> Documentation:
        """Generates it in a thread when somebody first asks: it takes longer than the rest of a server's start."""
        return await asyncio.to_thread(_documentation, rows)

    return own


@lru_cache(maxsize=4)
def _documentation(rows: tuple[Route, ...]) -> Documentation:
    described = openapi_document(rows)
    return Documentation(msgspec.json.encode(described), docs_page(rows, described).encode(), page_policy())


def openapi_document(table: Sequence[Route]) -> dict[str, Any]:
    kinds = [kind for row in table for kind in (row.body, row.answer, row.query) if describable(kind)]
    _, schemas = msgspec.json.schema_components([*kinds, ProblemDocument], ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method.lower()] = operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SimpleTuner Fleet",
            "version": __version__,
            "description": "Runs training jobs on GPU machines. Errors are RFC 9457 problems with a stable `code`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": tag} for tag in sorted({tag for row in table for tag in row.tags})],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": SECURITY_SCHEMES,
            "responses": problem_responses(),
        },
    }


def describable(kind: Any) -> bool:
    return kind not in (None, bytes, dict)


def operation(row: Route) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation_id(row),
        "summary": row.summary,
        "tags": list(row.tags),
        "security": SECURITY.get(row.permission, USER_SECURITY),
        "responses": responses(row),
    }
    if not isinstance(row.permission, Access):
        described["description"] = f"Needs the permission `{row.permission}`."
    parameters = [*path_parameters(row), *query_parameters(row)]
    if parameters:
        described["parameters"] = parameters
    if row.body:
        described["requestBody"] = {"required": row.body_required, "content": body_content(row)}
    return described


def operation_id(row: Route) -> str:
    words = re.findall(r"\w+", row.path)
    return "_".join([row.method.lower(), *words])


def path_parameters(row: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(row.path)
    ]


def query_parameters(row: Route) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    (reference,), schemas = msgspec.json.schema_components([row.query], ref_template=REF)
    schema = schemas[reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": inner}
        for name, inner in schema["properties"].items()
    ]


def body_content(row: Route) -> dict[str, Any]:
    if row.form:
        return {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}
    if row.body is bytes:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": schema_of(row.body)}}


def schema_of(kind: Any) -> dict[str, Any]:
    if kind in (None, dict):
        return {"type": "object"}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema


def responses(row: Route) -> dict[str, Any]:
    described: dict[str, Any] = {str(row.status): {"description": HTTPStatus(row.status).phrase}}
    if row.stream:
        described[str(row.status)]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif row.answer is not None:
        described[str(row.status)]["content"] = {"application/json": {"schema": schema_of(row.answer)}}
    for status in possible_problems(row):
        described[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    return described


def possible_problems(row: Route) -> list[int]:
    statuses = {429, 503}
    if row.permission is not PUBLIC:
        statuses |= {401, 403}
    if row.body or row.query:
        statuses |= {400, 413, 422}
    if row.body:
        statuses |= {408, 415}
    if "{" in row.path:
        statuses |= {404}
    if row.method != "GET":
        statuses |= {409}
    return sorted(statuses)


def problem_responses() -> dict[str, Any]:
    content = {CONTENT_TYPE: {"schema": {"$ref": REF.format(name=ProblemDocument.__name__)}}}
    return {
        f"Problem{status}": {"description": HTTPStatus(status).phrase, "content": content}
        for status in (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503)
    }
