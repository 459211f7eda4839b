"""The walk of a request, against the real server."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from msgspec import Struct

from simpletuner_fleet.core import errors
from simpletuner_fleet.core.people.tokens import hashed
from simpletuner_fleet.http.access.auth import FailedProof
from simpletuner_fleet.http.edge.edge import EdgeSettings, build_app
from simpletuner_fleet.http.edge.routes import (
    ANY_USER,
    PUBLIC,
    UPLOAD,
    WORKER,
    Answer,
    Call,
    Reply,
    Route,
    rfc3339,
)
from tests.http.edge_kit import (
    ADMIN,
    CHOSEN,
    EXPIRED,
    NOBODY,
    OTHER_WORKER_TOKEN,
    READER,
    REVOKED,
    STRANGER,
    UPLOAD_TOKEN,
    WORKER_TOKEN,
    MemoryCredentials,
    raw_exchange,
    running,
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


async def test_a_body_is_decoded_and_the_answer_encoded() -> None:
    async with running(ROUTES) as here:
        answer = await here.client.post(
            "/api/things", json={"name": "x", "unknown": 1}, headers=ADMIN_HEADERS
        )
        assert answer.json() == {"name": "x", "count": 1, "labels": {}, "extra": None}
        assert answer.headers["content-type"] == "application/json"


MALFORMED = [
    (b"", 400, "malformed"),
    (b"{", 400, "malformed"),
    (b'{"name": "x",}', 400, "malformed"),
    (b'{"name": NaN}', 400, "malformed"),
    (b'{"name": "x", "extra": Infinity}', 400, "malformed"),
    (b'{"name": "\xff"}', 400, "malformed"),
    (b'{"name": "\\ud800"}', 400, "malformed"),
    (b'{"name": "a\\u0000b"}', 400, "malformed"),
    (b'\xef\xbb\xbf{"name": "x"}', 400, "malformed"),
    (b'{"name": "x"} {}', 400, "malformed"),
    (b'{"name": "x", "extra": ' + b"[" * 65 + b"]" * 65 + b"}", 400, "malformed"),
    (b"[" * 1900, 400, "malformed"),
    (b'{"a":' * 300, 400, "malformed"),
    (b"null", 422, "invalid"),
    (b"[]", 422, "invalid"),
    (b'"text"', 422, "invalid"),
    (b"{}", 422, "invalid"),
    (b'{"name": 1}', 422, "invalid"),
    (b'{"name": "x", "count": "1"}', 422, "invalid"),
    (b'{"name": "x", "count": 1e400}', 422, "invalid"),
    (b'{"name": "x", "count": ' + b"9" * 400 + b"}", 422, "invalid"),
    (b'{"name": "x", "labels": {"a": 1}}', 422, "invalid"),
    (b'{"name": "' + b"x" * 2000 + b'"}', 413, "too_large"),
]


async def test_every_malformed_body_gets_its_status_and_never_500() -> None:
    async with running(ROUTES) as here:
        for body, status, code in MALFORMED:
            headers = {**ADMIN_HEADERS, "Content-Type": "application/json"}
            answer = await here.client.post("/api/things", content=body, headers=headers)
            assert (body[:40], answer.status_code) == (body[:40], status)
            is_problem(answer, status, code)


async def test_long_digits_are_fine_where_they_are_no_huge_integer() -> None:
    text = b'{"name": "12345678901234567890123", "extra": [0.1234567890123456789012, 9223372036854775807]}'
    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, "Content-Type": "application/json"}
        answer = await here.client.post("/api/things", content=text, headers=headers)
        assert answer.json()["extra"][1] == 2**63 - 1


async def test_nesting_and_brackets_inside_strings_are_told_apart() -> None:
    deep_enough = "[" * 62 + "]" * 62
    text = '{"name": "' + '[{\\"' * 100 + '", "extra": ' + deep_enough + "}"
    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, "Content-Type": "application/json; charset=utf-8"}
        answer = await here.client.post("/api/things", content=text, headers=headers)
        assert answer.status_code == 200
        escaped = b'{"name": "\\\\u0000 is only text"}'
        answer = await here.client.post("/api/things", content=escaped, headers=headers)
        assert answer.json()["name"] == "\\u0000 is only text"


async def test_a_field_error_names_its_path_and_malformed_json_its_position() -> None:
    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, "Content-Type": "application/json"}
        answer = await here.client.post("/api/things", content=b'{"name":"x","count":[]}', headers=headers)
        problem = is_problem(answer, 422, "invalid")
        assert problem["errors"] == [{"path": "$.count", "detail": "Expected `int`, got `array`"}]
        answer = await here.client.post("/api/things", content=b'{"name" "x"}', headers=headers)
        assert "byte 8" in is_problem(answer, 400, "malformed")["detail"]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=UTF-8", 200),
        ("Application/JSON", 200),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/jsonp", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
        ("application/x-www-form-urlencoded", 200),
    ],
)
async def test_a_body_must_say_that_it_is_json(content_type: str, status: int) -> None:
    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, **({"Content-Type": content_type} if content_type else {})}
        answer = await here.client.post("/api/things", content=b'{"name": "x"}', headers=headers)
        assert answer.status_code == status


async def test_what_curl_sends_is_taken_as_json_only_from_a_proven_caller_that_is_no_browser() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = b'{"name": "x"}'
    async with running(ROUTES) as here:
        own = {"Origin": here.listening.url}
        for more in ({"X-API-Key": ADMIN}, ADMIN_HEADERS):
            answer = await here.client.post("/api/things", content=body, headers={**form, **more})
            assert answer.status_code == 200
        for more in (own, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Mode": "navigate"}):
            answer = await here.client.post(
                "/api/things", content=body, headers={**form, **ADMIN_HEADERS, **more}
            )
            is_problem(answer, 415, "unsupported_media_type")
        is_problem(await here.client.post("/api/things", content=body, headers=form), 401, "unauthenticated")
    async with running(ROUTES, settings=EdgeSettings(trust_loopback=True)) as here:
        assert (await here.client.post("/api/things", content=body, headers=form)).status_code == 200


async def test_an_absent_body_is_fine_where_none_is_required() -> None:
    async with running(ROUTES) as here:
        answer = await here.client.post("/api/maybe", headers=ADMIN_HEADERS)
        assert answer.json() == {"given": False}
        answer = await here.client.post("/api/maybe", json={"name": "x"}, headers=ADMIN_HEADERS)
        assert answer.json() == {"given": True}


async def test_the_cap_on_bodies_counts_chunks_too() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000

    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, "Content-Type": "application/json"}
        answer = await here.client.post("/api/things", content=chunks(), headers=headers)
        is_problem(answer, 413, "too_large")
        request = (
            b"POST /api/things HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: 99999999999\r\n\r\n{" % ADMIN.encode()
        )
        assert (await raw_exchange(here.listening, request)).startswith(b"HTTP/1.1 413")


async def test_a_body_that_never_comes_ends_in_408() -> None:
    async with running(ROUTES, settings=EdgeSettings(body_timeout_s=0.05)) as here:
        request = (
            b"POST /api/things HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %b\r\nContent-Length: 10\r\n\r\n{" % ADMIN.encode()
        )
        assert (await raw_exchange(here.listening, request)).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=5&label=a&label=b&follow=1&unknown=x", 200),
        ("", 200),
        ("limit=five", 422),
        ("limit=1.5", 422),
        ("min_vram_gb=nan", 422),
        ("min_vram_gb=inf", 422),
        ("label=%ff", 400),
        ("label=%00", 400),
        ("label=" + "x" * 9000, 413),
        ("&".join("a=b" for _ in range(100)), 400),
    ],
)
async def test_query_strings_become_types(query: str, status: int) -> None:
    async with running(ROUTES) as here:
        answer = await here.client.get(f"/api/things?{query}", headers=ADMIN_HEADERS)
        assert answer.status_code == status
        if query.startswith("limit=5&"):
            assert answer.json() == {"limit": 5, "label": ["a", "b"], "follow": True}


async def test_unknown_paths_and_methods_are_problems() -> None:
    async with running(ROUTES) as here:
        for path in ("/nope", "/api/things/", "/api/things/a/b", "//api/things", "/api/Things", "/"):
            is_problem(await here.client.get(path, headers=ADMIN_HEADERS), 404, "not_found")
        answer = await here.client.put("/api/things", headers=ADMIN_HEADERS)
        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD, POST"
        answer = await here.client.request("BREW", "/api/things")
        assert answer.status_code in (400, 405)


@pytest.mark.parametrize(
    "segment", ["..", ".", "%2e%2e", "a%2Fb", "a%5Cb", "%00", "a%0Ab", "%ff", "x" * 201, "%252e%252e%2f"]
)
async def test_a_path_parameter_is_never_a_path(segment: str) -> None:
    async with running(ROUTES) as here:
        request = f"GET /api/things/{segment} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        request += f"Authorization: Bearer {ADMIN}\r\n\r\n"
        assert (await raw_exchange(here.listening, request.encode())).startswith(b"HTTP/1.1 404")


async def test_a_path_parameter_is_decoded_once() -> None:
    async with running(ROUTES) as here:
        answer = await here.client.get("/api/things/caf%C3%A9%2541", headers=ADMIN_HEADERS)
        assert answer.json()["path"] == {"id": "café%41"}


async def test_head_answers_like_get_without_the_body() -> None:
    async with running(ROUTES) as here:
        answer = await here.client.head("/health/live")
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) > 0
        assert answer.content == b""


async def test_replies_carry_their_own_status_and_headers_and_none_is_204() -> None:
    async with running(ROUTES) as here:
        answer = await here.client.post("/api/things/1/parts/2", headers=ADMIN_HEADERS)
        assert (answer.status_code, answer.headers["location"]) == (201, "/api/things/1")
        assert answer.headers["cache-control"] == "max-age=9"
        answer = await here.client.delete("/api/things/1", headers=ADMIN_HEADERS)
        assert (answer.status_code, answer.content) == (204, b"")


async def test_a_defect_of_ours_tells_the_user_a_number_and_the_log_the_story(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(ROUTES) as here:
        with caplog.at_level(logging.ERROR):
            answer = await here.client.get("/api/broken")
        problem = is_problem(answer, 500, "internal_error")
        assert "secret" not in answer.text
        assert "ZeroDivisionError" not in answer.text
        assert f"incident {problem['incident']}" in caplog.text
        assert "ZeroDivisionError" in caplog.text


async def test_security_headers_are_on_every_answer() -> None:
    async with running(ROUTES) as here:
        for path in ("/health/live", "/api/things", "/nope", "/api/broken"):
            headers = (await here.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert "server" not in headers
            assert "strict-transport-security" not in headers
            if path != "/health/live":
                assert headers["cache-control"] == "no-store"


ACCESS = [
    (None, 401, "unauthenticated"),
    (bearer(STRANGER), 401, "invalid_token"),
    (bearer(EXPIRED), 401, "invalid_token"),
    (bearer(REVOKED), 401, "invalid_token"),
    (bearer(WORKER_TOKEN), 401, "invalid_token"),
    ({"X-Worker-Token": WORKER_TOKEN}, 401, "unauthenticated"),
    (bearer(NOBODY), 403, "forbidden"),
    (bearer(READER), 403, "forbidden"),
    (bearer(CHOSEN), 200, ""),
    ({"X-API-Key": ADMIN}, 200, ""),
    ({"Authorization": f"bearer {ADMIN}"}, 200, ""),
    ({"Authorization": f"Basic {ADMIN}"}, 401, "unauthenticated"),
]


async def test_permissions_decide_and_the_missing_one_is_named() -> None:
    async with running(ROUTES) as here:
        for headers, status, code in ACCESS:
            answer = await here.client.get("/api/admin/workers", headers=headers or {})
            assert (headers, answer.status_code) == (headers, status)
            if code:
                problem = is_problem(answer, status, code)
                assert status != 403 or problem["permission"] == "admin.workers"
                assert status != 401 or answer.headers["www-authenticate"].startswith("Bearer ")


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("wt_short", "cut or mistyped"),
        (WORKER_TOKEN[:-1] + ("a" if WORKER_TOKEN[-1] != "a" else "b"), "cut or mistyped"),
        (WORKER_TOKEN[:10] + " " + WORKER_TOKEN[10:], "whitespace"),
        (ADMIN, "begins with 'wt_'"),
        (OTHER_WORKER_TOKEN, "Invalid token"),
        ("wt_" + "x" * 5000, "Invalid token"),
    ],
)
async def test_a_wrong_worker_token_is_told_what_is_wrong(secret: str, words: str) -> None:
    async with running(ROUTES) as here:
        answer = await here.client.post("/api/workers/heartbeat", headers={"X-Worker-Token": secret})
        assert words in is_problem(answer, 401, "invalid_token")["detail"]


async def test_an_upload_token_reaches_upload_routes_alone_and_names_its_attempt() -> None:
    async with running(ROUTES) as here:
        headers = {"X-Upload-Token": UPLOAD_TOKEN}
        answer = await here.client.post("/api/workers/job/j_1/who", headers=headers)
        assert (answer.json()["kind"], answer.json()["id"]) == ("upload", "a_1")
        answer = await here.client.post("/api/workers/job/j_1/who", headers={"X-Worker-Token": WORKER_TOKEN})
        assert answer.json()["kind"] == "worker"
        is_problem(await here.client.post("/api/workers/heartbeat", headers=headers), 401, "unauthenticated")
        raw = {"X-Upload-Token": UPLOAD_TOKEN, "Content-Type": "application/octet-stream"}
        answer = await here.client.post("/api/workers/job/j_1/blob", content=b"\0" * 999, headers=raw)
        assert answer.json() == {"size": 999}


SUITABLE: dict[str, dict[str, str]] = {
    PUBLIC: {},
    WORKER: {"X-Worker-Token": WORKER_TOKEN},
    UPLOAD: {"X-Upload-Token": UPLOAD_TOKEN},
    ANY_USER: bearer(NOBODY),
}


async def test_every_route_refuses_no_and_wrong_credentials_and_takes_the_right_one() -> None:
    """Generated from the table, so that a new row is in the matrix the day it is written."""
    async with running(ROUTES) as here:
        for row in ROUTES:
            path = row.path.replace("{id}", "j_1").replace("{part}", "2")
            right = SUITABLE.get(row.permission, ADMIN_HEADERS)
            anonymous = await here.client.request(row.method, path)
            assert (row.path, anonymous.status_code == 401) == (row.path, row.permission is not PUBLIC)
            admitted = await here.client.request(row.method, path, headers=right)
            assert (row.path, admitted.status_code in (401, 403)) == (row.path, False)
            for name, wrong in (("nobody", bearer(NOBODY)), ("worker", {"X-Worker-Token": WORKER_TOKEN})):
                answer = await here.client.request(row.method, path, headers=wrong)
                allowed = row.permission is PUBLIC or (
                    row.permission is ANY_USER if name == "nobody" else row.permission in (WORKER, UPLOAD)
                )
                assert (row.path, name, answer.status_code in (401, 403)) == (row.path, name, not allowed)


async def test_the_local_machine_is_trusted_only_when_asked_and_only_plainly() -> None:
    async with running(ROUTES) as here:
        assert (await here.client.get("/api/admin/workers")).status_code == 401
    async with running(ROUTES, settings=EdgeSettings(trust_loopback=True)) as here:
        answer = await here.client.get("/api/admin/workers")
        assert (answer.status_code, answer.json()["kind"]) == (200, "loopback")
        for name, value in {
            "Origin": here.listening.url,
            "Sec-Fetch-Site": "same-origin",
            "Sec-Fetch-Mode": "cors",
            "Forwarded": "for=1.2.3.4",
            "X-Forwarded-For": "127.0.0.1",
            "X-Forwarded-Proto": "https",
            "X-Real-IP": "127.0.0.1",
            "Via": "1.1 proxy",
            "Cookie": "a=b",
            "Authorization": f"Bearer {STRANGER}",
            "X-API-Key": STRANGER,
            "X-Worker-Token": WORKER_TOKEN,
        }.items():
            answer = await here.client.get("/api/admin/workers", headers={name: value})
            assert (name, answer.status_code) == (name, 401)
        answer = await here.client.post("/api/workers/heartbeat")
        assert answer.status_code == 401


async def test_a_server_on_the_network_never_trusts_loopback() -> None:
    settings = EdgeSettings(trust_loopback=True, beyond_loopback=True)
    async with running(ROUTES, settings=settings) as here:
        assert (await here.client.get("/api/admin/workers")).status_code == 401


async def test_who_shows_no_credential_is_no_guesser_however_often_they_come() -> None:
    async with running(ROUTES) as here:
        statuses = {(await here.client.get("/api/admin/workers")).status_code for _ in range(60)}
        assert statuses == {401}


async def test_a_flood_of_wrong_tokens_meets_429_but_locks_no_honest_caller_out() -> None:
    clock = [0.0]
    async with running(ROUTES, monotonic=lambda: clock[0]) as here:
        statuses = [
            (await here.client.get("/api/admin/workers", headers=bearer(STRANGER))).status_code
            for _ in range(25)
        ]
        assert statuses == [401] * 20 + [429] * 5
        answer = await here.client.get("/api/admin/workers", headers=bearer(STRANGER))
        is_problem(answer, 429, "too_many_requests")
        assert answer.headers["retry-after"] == "3"
        assert (await here.client.get("/api/admin/workers", headers=ADMIN_HEADERS)).status_code == 200
        clock[0] += 3.1
        answer = await here.client.get("/api/admin/workers", headers=bearer(STRANGER))
        assert answer.status_code == 401


async def test_failures_of_workers_are_noted_but_a_flood_of_them_is_not() -> None:
    noted: list[FailedProof] = []

    async def note(failure: FailedProof) -> None:
        noted.append(failure)

    async with running(ROUTES, on_worker_auth_failure=note, monotonic=lambda: 0.0) as here:
        await here.client.post("/api/workers/heartbeat")
        for _ in range(50):
            await here.client.post("/api/workers/heartbeat", headers={"X-Worker-Token": OTHER_WORKER_TOKEN})
        await here.client.get("/api/admin/workers", headers=bearer(STRANGER))
    assert noted[:2] == [
        FailedProof(
            ip="127.0.0.1",
            path="/api/workers/heartbeat",
            why="No worker token was given.",
            code="unauthenticated",
        ),
        FailedProof(
            ip="127.0.0.1",
            path="/api/workers/heartbeat",
            why="Invalid token.",
            code="invalid_token",
            token_hash=hashed(OTHER_WORKER_TOKEN),
        ),
    ]
    assert len(noted) == 10


async def test_workers_outside_the_allowed_networks_are_refused_before_their_token_is_looked_at() -> None:
    credentials = MemoryCredentials()
    settings = EdgeSettings(worker_networks="10.0.0.0/8, fd00::/8", trusted_proxies="127.0.0.1")
    async with running(ROUTES, credentials=credentials, settings=settings) as here:
        headers = {"X-Worker-Token": WORKER_TOKEN}
        answer = await here.client.post("/api/workers/heartbeat", headers=headers)
        is_problem(answer, 403, "network_not_allowed")
        assert credentials.lookups == 0
        through_proxy = {**headers, "X-Forwarded-For": "6.6.6.6, 10.1.2.3"}
        answer = await here.client.post("/api/workers/heartbeat", headers=through_proxy)
        assert answer.json()["ip"] == "10.1.2.3"
        spoofed = {**headers, "X-Forwarded-For": "10.1.2.3, 6.6.6.6"}
        assert (await here.client.post("/api/workers/heartbeat", headers=spoofed)).status_code == 403
        assert (await here.client.get("/api/admin/workers", headers=ADMIN_HEADERS)).status_code == 200


async def test_forwarded_headers_of_strangers_are_not_believed() -> None:
    async with running(ROUTES) as here:
        headers = {**ADMIN_HEADERS, "X-Forwarded-For": "8.8.8.8", "X-Forwarded-Proto": "https"}
        answer = await here.client.get("/api/things/1", headers=headers)
        assert (answer.json()["ip"], answer.json()["secure"]) == ("127.0.0.1", False)


async def test_pages_of_other_sites_can_change_nothing() -> None:
    async with running(ROUTES) as here:
        own = here.listening.url
        for origin in (
            "http://evil.example",
            "null",
            "http://localhost:1",
            "file://",
            own + ".evil.example",
            "http://[",
        ):
            headers = {**ADMIN_HEADERS, "Origin": origin}
            is_problem(await here.client.delete("/api/things/1", headers=headers), 403, "foreign_origin")
        headers = {**ADMIN_HEADERS, "Sec-Fetch-Site": "cross-site"}
        is_problem(await here.client.delete("/api/things/1", headers=headers), 403, "foreign_origin")
        headers = {**ADMIN_HEADERS, "Origin": own, "Sec-Fetch-Site": "same-origin"}
        assert (await here.client.delete("/api/things/1", headers=headers)).status_code == 204
        answer = await here.client.get(
            "/api/things/1", headers={**ADMIN_HEADERS, "Origin": "http://evil.example"}
        )
        assert answer.status_code == 200


HOSTS = [
    ("localhost", True, True),
    ("LOCALHOST:80", True, True),
    ("localhost.", True, True),
    ("127.0.0.1:8001", True, True),
    ("127.9.9.9", True, True),
    ("[::1]:8001", True, True),
    ("panel.example", True, True),
    ("8.8.8.8", False, True),
    ("[2001:db8::1]:8001", False, True),
    ("evil.example", False, True),
    ("localhost.evil.example", False, True),
    ("evil.example#localhost", False, False),
    ("localhost@evil.example", False, False),
    ("evil.example, localhost", False, False),
    ("localhost, evil.example", False, False),
    ("127.0.0.1.nip.io", False, True),
    ("0x7f.1", False, True),
    ("2130706433", False, True),
    ("[::1", False, False),
    ("localhost:80:80", False, False),
    ("localhost:99999999", False, False),
    ("", False, False),
    ("a b", False, False),
]


async def test_only_known_hosts_are_answered() -> None:
    for beyond in (False, True):
        settings = EdgeSettings(allowed_hosts=("Panel.example",), beyond_loopback=beyond)
        async with running(ROUTES, settings=settings) as here:
            for host, on_loopback, on_network in HOSTS:
                request = f"GET /health/live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                answer = await raw_exchange(here.listening, request.encode())
                expected = b"200" if (on_network if beyond else on_loopback) else b"421"
                assert (host, beyond, answer[9:12]) == (host, beyond, expected)


async def test_a_doubled_or_missing_host_is_refused() -> None:
    async with running(ROUTES) as here:
        for head in (b"Host: localhost\r\nHost: localhost\r\n", b""):
            answer = await raw_exchange(
                here.listening, b"GET /health/live HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n"
            )
            assert answer[9:12] in (b"421", b"400")


async def test_a_server_on_the_network_is_found_under_names_that_nobody_configured() -> None:
    host = {"Host": "orchestrator.example.com:8001"}
    async with running(ROUTES, settings=EdgeSettings(beyond_loopback=True)) as here:
        worker = {**host, "X-Worker-Token": WORKER_TOKEN}
        assert (await here.client.post("/api/workers/heartbeat", headers=worker)).status_code == 200
        browser = {**host, **ADMIN_HEADERS, "Sec-Fetch-Site": "same-origin"}
        assert (await here.client.get("/api/things/1", headers=browser)).status_code == 200
        assert (await here.client.get("/health/live", headers=host)).status_code == 200
        rebound = {**host, "Sec-Fetch-Site": "same-origin"}
        is_problem(await here.client.get("/api/things/1", headers=rebound), 401, "unauthenticated")
    async with running(ROUTES) as here:
        for headers in ({}, ADMIN_HEADERS):
            answer = await here.client.get("/api/things/1", headers={**host, **headers})
            is_problem(answer, 421, "host_not_allowed")


async def test_every_answer_is_observed_by_the_path_of_its_row() -> None:
    seen: list[tuple[str, str, int]] = []
    async with running(
        ROUTES, observe=lambda method, path, status, _: seen.append((method, path, status))
    ) as here:
        await here.client.get("/api/things/42", headers=ADMIN_HEADERS)
        await here.client.get("/nope")
    assert seen == [("GET", "/api/things/{id}", 200), ("GET", "", 404)]


def test_two_rows_for_one_method_and_path_are_refused() -> None:
    rows = [Route("GET", "/a/{x}", whoami, PUBLIC), Route("GET", "/a/{y}", whoami, PUBLIC)]
    with pytest.raises(ValueError, match="two rows"):
        build_app(rows, None, credentials=MemoryCredentials())


async def test_store_trouble_is_503_with_a_time_to_come_back() -> None:
    async def full(call: Call[None]) -> Answer:
        raise errors.StoreUnavailable

    async with running([Route("GET", "/api/full", full, PUBLIC)]) as here:
        answer = await here.client.get("/api/full")
        is_problem(answer, 503, "store_unavailable")
        assert answer.headers["retry-after"] == "2"


async def test_pipelined_and_concurrent_requests_get_their_own_answers() -> None:
    async with running(ROUTES) as here:
        answers = await asyncio.gather(
            *(here.client.get(f"/api/things/{number}", headers=ADMIN_HEADERS) for number in range(100))
        )
        assert [json.loads(answer.content)["path"]["id"] for answer in answers] == [
            str(n) for n in range(100)
        ]


def test_times_go_out_as_rfc_3339_in_utc() -> None:
    assert rfc3339(0.0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1705314600.5) == "2024-01-15T10:30:00.500Z"
    assert rfc3339(None) is None
