"""Who is let in at the edge: by which credential, from where, and under which name of the server."""

import pytest

from simpletuner_fleet.core.people.tokens import hashed
from simpletuner_fleet.http.access.auth import FailedProof
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.http.edge.routes import (
    ANY_USER,
    PUBLIC,
    UPLOAD,
    WORKER,
)
from tests.http.edge.edge_kit import (
    ADMIN_HEADERS,
    ROUTES,
    bearer,
    is_problem,
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
    ("xn--strae-oqa.example:8001", True, True),
    ("strasse.example", False, True),
]


async def test_only_known_hosts_are_answered() -> None:
    for beyond in (False, True):
        settings = EdgeSettings(allowed_hosts=("Panel.example", "straße.example"), beyond_loopback=beyond)
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
