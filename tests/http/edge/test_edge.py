"""The walk of a request, against the real server."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest

from simpletuner_fleet.core import errors
from simpletuner_fleet.http.edge.edge import EdgeSettings, build_app
from simpletuner_fleet.http.edge.routes import (
    PUBLIC,
    Answer,
    Call,
    Route,
    rfc3339,
)
from tests.http.edge.edge_kit import (
    ADMIN_HEADERS,
    ROUTES,
    is_problem,
    whoami,
)
from tests.http.edge_kit import (
    ADMIN,
    MemoryCredentials,
    raw_exchange,
    running,
)


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
        ("limit=5&label=a&label=b&follow=1", 200),
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
