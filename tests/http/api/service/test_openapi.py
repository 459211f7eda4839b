"""The description of the API follows the table."""

import re
from typing import Any

from msgspec import Struct

from simpletuner_fleet.http.api.service.openapi import documentation_routes, openapi_document
from simpletuner_fleet.http.edge.routes import PUBLIC, UPLOAD, WORKER, Call, Route
from tests.http.edge_kit import running


class Part(Struct):
    size: int


class Made(Struct, kw_only=True):
    name: str
    parts: list[Part] = []


class Page(Struct, kw_only=True):
    limit: int = 50
    label: list[str] = []


async def handler(call: Call[Any]) -> dict[str, Any]:
    return {}


TABLE = [
    Route("POST", "/api/things", handler, "things.write", Made, Made, "Make <one>", 201, tags=("things",)),
    Route("GET", "/api/things/{id}", handler, "things.read", query=Page, answer=Made, tags=("things",)),
    Route("GET", "/api/workers/stream", handler, WORKER, stream=True, tags=("workers",)),
    Route("POST", "/api/workers/job/{id}/blob", handler, UPLOAD, body=bytes, tags=("workers",)),
    Route("GET", "/health/live", handler, PUBLIC),
]


def test_every_row_is_described_with_its_types_and_credentials() -> None:
    document = openapi_document(TABLE)
    assert document["openapi"] == "3.1.0"
    make = document["paths"]["/api/things"]["post"]
    assert make["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Made"
    }
    assert make["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/Made")
    assert make["security"] == [{"bearer": []}, {"apiKey": []}, {"session": []}]
    assert "things.write" in make["description"]
    assert {"400", "401", "403", "409", "413", "415", "422", "429", "503"} <= set(make["responses"])
    find = document["paths"]["/api/things/{id}"]["get"]
    assert [(one["name"], one["in"], one["required"]) for one in find["parameters"]] == [
        ("id", "path", True),
        ("limit", "query", False),
        ("label", "query", False),
    ]
    assert document["paths"]["/api/workers/stream"]["get"]["security"] == [{"workerToken": []}]
    blob = document["paths"]["/api/workers/job/{id}/blob"]["post"]
    assert "application/octet-stream" in blob["requestBody"]["content"]
    assert document["paths"]["/health/live"]["get"]["security"] == []
    assert "Part" in document["components"]["schemas"]


def test_every_reference_leads_somewhere_and_every_operation_has_its_own_name() -> None:
    document = openapi_document([*TABLE, *documentation_routes(TABLE)])
    for reference in re.findall(r"'\$ref': '#/([^']*)'", str(document)):
        node = document
        for step in reference.split("/"):
            node = node[step]
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) == 7


async def test_both_pages_are_served_from_the_table_and_need_no_other_host() -> None:
    table = [*TABLE, *documentation_routes(TABLE)]
    async with running(table) as here:
        document = (await here.client.get("/openapi.json")).json()
        assert set(document["paths"]) == {row.path for row in table}
        page = await here.client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        for row in table:
            assert row.path in page.text
        assert "Make &lt;one&gt;" in page.text
        assert "<script" not in page.text
        assert not re.search(r"https?://", page.text)
        assert "prefers-color-scheme: dark" in page.text
