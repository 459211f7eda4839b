"""The session cookie at the edge: who it makes the caller, and what it takes to change something with it."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from simpletuner_fleet.core.errors import Forbidden, NotFound, StoreUnavailable
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.accounts import SESSION_IDLE_S, SESSION_LIFE_S, Role
from simpletuner_fleet.http.access.auth import Authenticator, Principal, SessionEnded
from simpletuner_fleet.http.access.credential_cache import CachedCredentials
from simpletuner_fleet.http.access.limits import Rate, RateLimits
from simpletuner_fleet.http.access.sessions import no_session_cookie, session_cookie, session_secret
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.http.edge.problems import ProblemAnswer
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, WORKER, Call, Reply, Route
from simpletuner_fleet.http.edge.streams import EventStream
from simpletuner_fleet.languages import translator
from tests.http.edge_kit import (
    ADMIN,
    SESSION,
    STRANGER,
    VIEWER_SESSION,
    MemoryCredentials,
    running,
    signed_in,
)

COOKIE = {"cookie": f"theme=dark; simpletuner_session={SESSION}"}
VIEWER = {"cookie": f"simpletuner_session={VIEWER_SESSION}"}


async def who(call: Call[Any]) -> dict[str, Any]:
    caller = call.principal
    return {"kind": caller.kind, "id": caller.id, "language": caller.language, "own": caller.only_own}


async def page(call: Call[Any]) -> Reply:
    return Reply(
        body=b"<p>hello",
        content_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": "default-src 'self'"},
        cookies=("a=1; Path=/", "b=2; Path=/"),
    )


async def missing(call: Call[Any]) -> Reply:
    raise NotFound("There is no such job.")


async def events(call: Call[Any]) -> EventStream:
    stream = EventStream(on_close=lambda why: None, ping=lambda: b"", ping_every_s=60, max_buffer_bytes=1000)
    stream.push(b"event: hello\n\n")
    return stream


TABLE = [
    Route("GET", "/api/who", who, ANY_USER),
    Route("POST", "/api/who", who, ANY_USER),
    Route("GET", "/api/jobs", who, "jobs.read"),
    Route("POST", "/api/admin", who, "admin.users"),
    Route("GET", "/api/events", events, "jobs.read", stream=True),
    Route("GET", "/api/workers/queue", who, WORKER),
    Route("GET", "/api/open", who, PUBLIC),
    Route("GET", "/page", page, ANY_USER),
    Route("GET", "/missing", missing, PUBLIC),
    Route("POST", "/missing", missing, PUBLIC),
]


async def test_a_cookie_makes_the_caller_its_user() -> None:
    async with running(TABLE) as here:
        answer = await here.client.get("/api/who", headers=COOKIE)
        assert answer.json() == {"kind": "user", "id": "u_admin", "language": "ja", "own": False}
        answer = await here.client.get("/api/jobs", headers=VIEWER)
        assert answer.json()["id"] == "u_viewer"
        assert (await here.client.get("/api/open", headers=COOKIE)).json()["kind"] == "anonymous"
        assert (await here.client.get("/api/workers/queue", headers=COOKIE)).status_code == 401


async def test_a_token_in_a_header_speaks_before_the_cookie() -> None:
    async with running(TABLE) as here:
        answer = await here.client.get("/api/who", headers={**COOKIE, "authorization": f"Bearer {ADMIN}"})
        assert answer.json()["kind"] == "token"
        answer = await here.client.get("/api/who", headers={**COOKIE, "authorization": f"Bearer {STRANGER}"})
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")


async def test_streams_open_with_a_cookie_and_end_when_it_is_revoked() -> None:
    async with (
        running(TABLE) as here,
        here.client.stream("GET", "/api/events", headers=VIEWER) as answer,
    ):
        assert answer.status_code == 200
        pieces = answer.aiter_raw()
        assert b"hello" in await anext(pieces)
        here.edge.end_streams_of({tokens.hashed(SESSION)})
        here.edge.end_streams_of({tokens.hashed(VIEWER_SESSION)})
        async with asyncio.timeout(5):
            assert b"ping" not in b"".join([piece async for piece in pieces])


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "origin_missing"),
        ({"sec-fetch-site": "none"}, "origin_missing"),
        ({"sec-fetch-site": "same-site"}, "foreign_origin"),
        ({"sec-fetch-site": "cross-site"}, "foreign_origin"),
        ({"origin": "null"}, "foreign_origin"),
        ({"origin": "http://evil.example"}, "foreign_origin"),
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, "foreign_origin"),
        ({"sec-fetch-site": "same-origin"}, None),
        ({"origin": "own"}, None),
        ({"origin": "own", "sec-fetch-site": "same-origin"}, None),
    ],
)
async def test_a_change_by_cookie_needs_a_page_of_ours(headers: dict[str, str], code: str | None) -> None:
    async with running(TABLE) as here:
        if headers.get("origin") == "own":
            headers = {**headers, "origin": here.listening.url}
        answer = await here.client.post("/api/who", headers={**COOKIE, **headers})
        assert (answer.status_code, answer.json().get("code")) == ((403 if code else 200), code)


async def test_a_page_acts_as_the_user_whom_it_was_made_for_or_not_at_all() -> None:
    async with running(TABLE) as here:
        by_page = {**VIEWER, "origin": here.listening.url}
        own = await here.client.post("/api/who", headers={**by_page, "x-page-of": "u_viewer"})
        assert (own.status_code, own.json()["id"]) == (200, "u_viewer")
        for method in ("GET", "POST"):
            answer = await here.client.request(
                method, "/api/who", headers={**by_page, "x-page-of": "u_admin"}
            )
            assert (answer.status_code, answer.json()["code"]) == (409, "page_of_another")
            assert "a viewer" in answer.json()["detail"]
        assert (await here.client.get("/api/open", headers={**VIEWER, "x-page-of": "u_admin"})).is_success


async def test_a_role_bounds_what_a_session_may_do() -> None:
    async with running(TABLE) as here:
        ours = {"origin": here.listening.url}
        assert (await here.client.post("/api/admin", headers={**COOKIE, **ours})).status_code == 200
        answer = await here.client.post("/api/admin", headers={**VIEWER, **ours})
        assert (answer.status_code, answer.json()["permission"]) == (403, "admin.users")


@pytest.mark.parametrize(
    "cookie",
    [
        f"simpletuner_session={tokens.make('ss', b'?' * 32)}",
        f"simpletuner_session={ADMIN}",
        "simpletuner_session=" + "A" * 5000,
    ],
)
async def test_a_wrong_cookie_has_ended_and_is_no_guess_that_locks_an_address_out(cookie: str) -> None:
    limits = RateLimits(failed_proof=Rate(0.001, 1))
    async with running(TABLE, settings=EdgeSettings(limits=limits)) as here:
        for _ in range(5):
            answer = await here.client.get("/api/who", headers={"cookie": cookie})
            assert (answer.status_code, answer.json()["code"]) == (401, "session_ended")


async def test_trust_in_loopback_is_not_for_whoever_shows_a_cookie() -> None:
    async with running(TABLE, settings=EdgeSettings(trust_loopback=True)) as here:
        assert (await here.client.get("/api/who")).json()["kind"] == "loopback"
        assert (await here.client.get("/api/who", headers={"cookie": "a=b"})).status_code == 401
        assert (await here.client.get("/api/who", headers=COOKIE)).json()["kind"] == "user"


async def test_a_session_ends_unseen_after_a_week_and_seen_after_a_month() -> None:
    now = 1_000_000.0
    source = MemoryCredentials()
    known = signed_in(SESSION, Role.MEMBER, created_at=now, seen_at=now)
    source.sessions = {known.session.token_hash: known}
    clock = {"now": now}
    authenticator = Authenticator(CachedCredentials(source), lambda: clock["now"])
    assert (await authenticator.session(SESSION)).only_own
    assert source.renewed == []
    clock["now"] = now + SESSION_IDLE_S - 1
    await authenticator.session(SESSION)
    assert [at for _, at in source.renewed] == [clock["now"]]
    clock["now"] += SESSION_IDLE_S
    with pytest.raises(SessionEnded):
        await authenticator.session(SESSION)
    while clock["now"] < now + SESSION_LIFE_S:
        source.sessions[known.session.token_hash] = signed_in(
            SESSION, Role.MEMBER, created_at=now, seen_at=clock["now"]
        )
        await Authenticator(source, lambda: clock["now"]).session(SESSION)
        clock["now"] += 86_400
    with pytest.raises(SessionEnded):
        await Authenticator(source, lambda: clock["now"]).session(SESSION)


async def test_a_session_goes_on_while_the_store_cannot_note_it() -> None:
    class FullDisk(MemoryCredentials):
        async def renew_session(self, token_hash: str, now: float) -> None:
            raise StoreUnavailable

    assert (await Authenticator(FullDisk(), lambda: time.time() + 7200).session(SESSION)).kind == "user"


def test_the_cookie_is_locked_under_tls_and_never_for_scripts() -> None:
    plain, locked = session_cookie("ss_x", secure=False), session_cookie("ss_x", secure=True)
    assert plain == "simpletuner_session=ss_x; Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax", (
        "no Secure, or a browser would drop it on plain HTTP"
    )
    assert locked.startswith("__Host-simpletuner_session=ss_x; Path=/;")
    assert locked.endswith("HttpOnly; SameSite=Lax; Secure")
    assert "Domain" not in locked
    assert "Max-Age=0;" in no_session_cookie(secure=True)


@pytest.mark.parametrize(
    ("header", "secure", "expected"),
    [
        (None, False, None),
        ("", False, None),
        ("simpletuner_session=a", False, "a"),
        (" x=1;simpletuner_session=a ;y", False, "a"),
        ("simpletuner_session=a", True, None),
        ("__Host-simpletuner_session=a", True, "a"),
        ("__Host-simpletuner_session=a; simpletuner_session=b", True, "a"),
        ("__Host-simpletuner_session=a", False, None),
        ("simpletuner_session=a; simpletuner_session=b", False, None),
        ("simpletuner_session=", False, None),
        ("simpletuner_session", False, None),
        ("xsimpletuner_session=a", False, None),
    ],
)
def test_a_secret_is_read_only_from_the_one_cookie_that_fits(
    header: str | None, secure: bool, expected: str | None
) -> None:
    assert session_secret(header, secure) == expected


def problem_page(
    problem: ProblemAnswer, headers: Mapping[str, str], path: str, principal: Principal
) -> Reply | None:
    if problem.status == 401:
        return Reply(status=303, headers={"Location": f"/login?next={path}"}, content_type="")
    if path == "/missing" and headers.get("x-break"):
        raise LookupError("no template")
    if problem.status == 404:
        return Reply(body=b"<h1>Nothing here", content_type="text/html; charset=utf-8")
    return None


async def test_a_person_who_asked_for_a_page_gets_a_page_for_a_problem() -> None:
    html = {"accept": "text/html,application/xhtml+xml"}
    async with running(TABLE, problem_page=problem_page) as here:
        answer = await here.client.get("/page", headers=html)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/page")
        answer = await here.client.get("/nowhere", headers=html)
        assert (answer.status_code, answer.text) == (404, "<h1>Nothing here")
        assert answer.headers["content-security-policy"]
        for path, more in (("/page", {}), ("/api/who", html)):
            answer = await here.client.get(path, headers=more)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.status_code == 401
        answer = await here.client.post("/missing", headers=html)
        assert answer.json()["code"] == "not_found"
        answer = await here.client.get("/missing", headers={**html, "x-break": "1"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_problems_are_told_to_browsers_in_the_language_of_the_reader() -> None:
    async with running(TABLE) as here:
        answer = await here.client.post("/api/who", headers={**COOKIE, "accept-language": "pt"})
        assert answer.headers["content-language"] == "ja"
        english = "A change made with a session cookie must come from a page of this server."
        assert answer.json()["title"] == translator("ja").gettext(english)
        assert answer.json()["code"] == "origin_missing"
        before_login = {"sec-fetch-site": "same-origin", "accept-language": "de, pt;q=0.8"}
        answer = await here.client.get("/nowhere", headers=before_login)
        assert answer.json()["title"] == translator("pt-BR").gettext("There is no such thing here.")
        chosen = {**before_login, "cookie": "simpletuner_lang=hi"}
        answer = await here.client.get("/nowhere", headers=chosen)
        assert answer.headers["content-language"] == "hi"


async def test_programs_are_told_problems_in_english_whatever_they_accept() -> None:
    async with running(TABLE) as here:
        for headers in ({}, {"cookie": "simpletuner_lang=hi"}, {"authorization": f"Bearer {ADMIN}"}):
            answer = await here.client.get("/missing", headers={**headers, "accept-language": "ja"})
            assert answer.json()["title"] == "There is no such thing here."
            assert "content-language" not in answer.headers


async def test_the_page_of_a_problem_knows_who_asked() -> None:
    async def forbidden(call: Call[Any]) -> Reply:
        raise Forbidden("admin.users")

    problems: list[tuple[str, str]] = []

    def note(problem: ProblemAnswer, headers: Mapping[str, str], path: str, principal: Principal) -> None:
        problems.append((path, principal.id))

    table = [Route("GET", "/closed", forbidden, ANY_USER)]
    async with running(table, problem_page=note) as here:
        html = {"accept": "text/html"}
        await here.client.get("/closed", headers={**html, **COOKIE})
        await here.client.get("/nowhere", headers={**html, **COOKIE})
    assert problems == [("/closed", "u_admin"), ("/nowhere", "anonymous")]


async def test_a_page_has_its_own_policy_and_may_set_several_cookies() -> None:
    async with running(TABLE) as here:
        answer = await here.client.get("/page", headers=COOKIE)
        assert answer.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2; Path=/"]
        assert answer.headers["content-security-policy"] == "default-src 'self'"
        assert answer.headers["referrer-policy"] == "no-referrer"
