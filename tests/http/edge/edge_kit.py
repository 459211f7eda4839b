"""Routes and credentials that the tests of the edge share."""

from typing import Any

import httpx2
from msgspec import Struct

from simpletuner_fleet.http.edge.routes import (
    ANY_USER,
    PUBLIC,
    UPLOAD,
    WORKER,
    Answer,
    Call,
    Reply,
    Route,
)
from tests.http.edge_kit import (
    ADMIN,
)


class Thing(Struct, kw_only=True):
    name: str
    count: int = 1
    labels: dict[str, str] = {}
    extra: Any = None


class Where(Struct, kw_only=True):
    limit: int = 10
    min_vram_gb: float | None = None
    label: list[str] = []
    follow: bool = False


async def echo(call: Call[Thing]) -> Thing:
    return call.body


async def search(call: Call[None]) -> dict[str, Any]:
    where: Where = call.query
    return {"limit": where.limit, "label": where.label, "follow": where.follow}


async def whoami(call: Call[Any]) -> dict[str, Any]:
    principal = call.principal
    return {
        "kind": principal.kind,
        "id": principal.id,
        "ip": call.ip,
        "path": dict(call.path),
        "secure": call.secure,
    }


async def broken(call: Call[None]) -> Answer:
    raise ZeroDivisionError("the secret sits in the message")


async def nothing(call: Call[None]) -> None:
    return None


async def created(call: Call[None]) -> Reply:
    return Reply(
        body={"made": True}, status=201, headers={"Location": "/api/things/1", "Cache-Control": "max-age=9"}
    )


async def size(call: Call[bytes]) -> dict[str, int]:
    return {"size": len(call.body)}


async def maybe(call: Call[Thing | None]) -> dict[str, bool]:
    return {"given": call.body is not None}


ROUTES = [
    Route("POST", "/api/things", echo, "things.write", body=Thing, max_body_bytes=2000),
    Route("GET", "/api/things", search, "jobs.read", query=Where),
    Route("GET", "/api/things/{id}", whoami, ANY_USER),
    Route("DELETE", "/api/things/{id}", nothing, "things.write"),
    Route("POST", "/api/things/{id}/parts/{part}", created, "things.write"),
    Route("POST", "/api/maybe", maybe, "things.write", body=Thing, body_required=False),
    Route("GET", "/api/admin/workers", whoami, "admin.workers"),
    Route("POST", "/api/workers/heartbeat", whoami, WORKER),
    Route("POST", "/api/workers/job/{id}/blob", size, UPLOAD, body=bytes),
    Route("POST", "/api/workers/job/{id}/who", whoami, UPLOAD),
    Route("GET", "/health/live", whoami, PUBLIC),
    Route("GET", "/api/broken", broken, PUBLIC),
]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


ADMIN_HEADERS = bearer(ADMIN)


def is_problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"urn:simpletuner:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    return problem
