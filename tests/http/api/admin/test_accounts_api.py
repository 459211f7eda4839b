"""Users over HTTP: the first minute, logging in and out, and what an administrator may do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from simpletuner_fleet.core.people.accounts import (
    FIRST_KEY_LIFE_S,
    PERSONAL_KEY_LIFE_S,
    SESSION_IDLE_S,
    SESSION_LIFE_S,
)
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator, read_events, until

GOOD = "correct horse battery"
OTHER = "another fine password"


@asynccontextmanager
async def server(**more: Any) -> AsyncIterator[Running]:
    async with orchestrator(passwords=Passwords(Cost(memory_kib=64)), **more) as running:
        yield running


@asynccontextmanager
async def browser(running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with running.as_user(None) as client:
        client.headers["origin"] = running.listening.url
        yield client


def key_of(link: str) -> str:
    assert urlsplit(link).path == "/start"
    return parse_qs(urlsplit(link).query)["k"][0]


def problem(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def first_admin(running: Running, client: httpx2.AsyncClient) -> dict[str, Any]:
    made = await running.post("/api/admin/users/link")
    body = {"k": key_of(made["link"]), "name": "Ada", "password": GOOD, "language": "ja"}
    answer = await client.post("/api/start", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def a_user(running: Running, name: str, role: str) -> dict[str, Any]:
    return dict(await running.post("/api/admin/users", {"name": name, "role": role, "password": GOOD}))


async def log_in(client: httpx2.AsyncClient, name: str, password: str = GOOD) -> httpx2.Response:
    return await client.post("/api/login", json={"name": name, "password": password})


async def audited(running: Running) -> list[str]:
    entries = await running.get("/api/audit", limit=100)
    return [entry["event_type"] for entry in entries["entries"] if entry["event_type"].startswith("user.")]


async def test_the_first_link_makes_one_admin_and_works_once() -> None:
    async with server() as running, browser(running) as client:
        link = (await running.post("/api/admin/users/link"))["link"]
        key = key_of(link)
        for _ in range(3):
            seen = await client.get("/api/start", params={"k": key})
            assert (seen.json()["purpose"], seen.json()["name"]) == ("first_admin", None)
        body = {"k": key, "name": "Ada", "password": GOOD, "language": "ja"}
        answer = await client.post("/api/start", json=body)
        assert answer.json()["role"] == "admin"
        assert "HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
        me = (await client.get("/api/me")).json()
        assert (me["name"], me["kind"], me["language"], me["permissions"]) == ("Ada", "user", "ja", ["*"])
        assert problem(await client.post("/api/start", json=body)) == (404, "link_used")
        assert problem(await client.get("/api/start", params={"k": key})) == (404, "link_used")
        again = await running.http.post("/api/admin/users/link")
        assert problem(again) == (409, "users_exist")
        assert await audited(running) == ["user.login", "user.created", "user.link_made"]


async def test_a_link_expires_and_a_newer_one_takes_its_place() -> None:
    async with server() as running, browser(running) as client:
        old = key_of((await running.post("/api/admin/users/link"))["link"])
        new = key_of((await running.post("/api/admin/users/link"))["link"])
        assert (await client.get("/api/start", params={"k": old})).status_code == 404
        assert (await client.get("/api/start", params={"k": new})).status_code == 200
        running.clock.at += FIRST_KEY_LIFE_S
        body = {"k": new, "name": "Ada", "password": GOOD}
        assert problem(await client.post("/api/start", json=body)) == (404, "link_used")


async def test_two_who_use_a_link_at_once_make_one_admin() -> None:
    async with server() as running, browser(running) as client:
        key = key_of((await running.post("/api/admin/users/link"))["link"])
        tries = [
            client.post("/api/start", json={"k": key, "name": name, "password": GOOD}) for name in ("a", "b")
        ]
        codes = sorted(answer.status_code for answer in await asyncio.gather(*tries))
        assert codes == [200, 404]
        assert len((await running.get("/api/admin/users"))["users"]) == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"name": ""}, "$.name"),
        ({"name": " Ada"}, "$.name"),
        ({"name": "A\u0007"}, "$.name"),
        ({"name": "a" * 65}, "$.name"),
        ({"password": "short"}, "$.password"),
        ({"password": "a" * 300}, "$.password"),
        ({"password": "aaaaaaaaaaaaa"}, "$.password"),
        ({"name": "Margaret Hamilton", "password": "margaret hamilton"}, "$.password"),
        ({"language": "xx"}, "$.language"),
    ],
)
async def test_what_cannot_be_is_said_and_the_link_stays_good(change: dict[str, str], path: str) -> None:
    async with server() as running, browser(running) as client:
        key = key_of((await running.post("/api/admin/users/link"))["link"])
        answer = await client.post("/api/start", json={"k": key, "name": "Ada", "password": GOOD, **change})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path)
        assert (await client.get("/api/start", params={"k": key})).status_code == 200


async def test_a_user_logs_in_and_out() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        assert problem(await log_in(client, "Bob", "wrong wrong wrong")) == (401, "wrong_password")
        assert problem(await log_in(client, "nobody")) == (401, "wrong_password")
        assert (await client.get("/api/me")).status_code == 401
        assert (await log_in(client, "bOB")).status_code == 200
        assert (await client.get("/api/me")).json()["name"] == "Bob"
        gone = await client.post("/api/logout")
        assert "Max-Age=0" in gone.headers["set-cookie"]
        assert (await client.get("/api/me")).status_code == 401
        entries = (await running.get("/api/audit", event_type="user.login_failed"))["entries"]
        assert [entry["details"] for entry in entries] == [{}, {"name": "Bob"}]


async def test_a_stolen_cookie_is_worth_nothing_after_logging_out_everywhere() -> None:
    async with server() as running, browser(running) as here, browser(running) as there:
        await a_user(running, "Bob", "member")
        await log_in(here, "Bob")
        await log_in(there, "Bob")
        stream = await read_events(there, "/api/events")
        await here.post("/api/logout", json={"everywhere": True})
        assert problem(await there.get("/api/me")) == (401, "session_ended")
        await asyncio.wait_for(stream.events.ended.wait(), 5)
        await stream.close()


async def test_a_session_slides_and_ends_when_it_is_not_seen() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "viewer")
        await log_in(client, "Bob")
        for _ in range(3):
            running.clock.at += SESSION_IDLE_S - 60
            assert (await client.get("/api/me")).status_code == 200
        running.clock.at += SESSION_IDLE_S
        assert problem(await client.get("/api/me")) == (401, "session_ended")


async def test_a_new_password_ends_every_other_session() -> None:
    async with server() as running, browser(running) as here, browser(running) as there:
        await a_user(running, "Bob", "member")
        await log_in(here, "Bob")
        await log_in(there, "Bob")
        answer = await here.patch("/api/me", json={"password": OTHER})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "$.current_password")
        wrong = {"password": OTHER, "current_password": "not this one", "language": "hi"}
        assert problem(await here.patch("/api/me", json=wrong)) == (422, "wrong_current_password")
        assert (await here.get("/api/me")).json()["language"] == ""
        right = {"password": OTHER, "current_password": GOOD, "language": "hi"}
        assert (await here.patch("/api/me", json=right)).json()["language"] == "hi"
        assert (await here.get("/api/me")).status_code == 200
        assert (await there.get("/api/me")).status_code == 401
        assert (await log_in(there, "Bob")).status_code == 401
        assert (await log_in(there, "Bob", OTHER)).status_code == 200


async def test_an_api_token_has_neither_password_nor_language() -> None:
    async with server() as running:
        me = await running.get("/api/me")
        assert (me["kind"], me["role"]) == ("token", None)
        assert problem(await running.http.patch("/api/me", json={"language": "ja"})) == (409, "not_a_user")
        assert (await running.http.post("/api/logout")).status_code == 200
        assert (await running.http.get("/api/me")).status_code == 200


async def test_an_invited_user_chooses_a_password() -> None:
    async with server() as running, browser(running) as client:
        made = await running.post("/api/admin/users", {"name": "Chen", "language": "zh"})
        assert (made["role"], made["has_password"]) == ("member", False)
        assert (await log_in(client, "Chen", "")).status_code == 401
        seen = await client.get("/api/start", params={"k": key_of(made["link"])})
        assert (seen.json()["purpose"], seen.json()["name"]) == ("choose_password", "Chen")
        body = {"k": key_of(made["link"]), "password": GOOD}
        answer = await client.post("/api/start", json=body)
        assert (answer.json()["name"], answer.json()["language"]) == ("Chen", "zh-Hans")
        assert (await client.get("/api/me")).json()["role"] == "member"


async def test_a_reset_link_sets_a_new_password_and_ends_sessions() -> None:
    async with server() as running, browser(running) as here, browser(running) as there:
        made = await a_user(running, "Bob", "member")
        assert made["link"] is None
        await log_in(here, "Bob")
        link = (await running.post(f"/api/admin/users/{made['id']}/link"))["link"]
        assert (await here.get("/api/me")).status_code == 200
        assert (
            await there.post("/api/start", json={"k": key_of(link), "password": OTHER})
        ).status_code == 200
        assert (await here.get("/api/me")).status_code == 401
        late = key_of((await running.post(f"/api/admin/users/{made['id']}/link"))["link"])
        running.clock.at += PERSONAL_KEY_LIFE_S
        assert (await there.post("/api/start", json={"k": late, "password": GOOD})).status_code == 404


async def test_a_disabled_user_is_out_at_once_and_may_come_back() -> None:
    async with server() as running, browser(running) as client:
        made = await a_user(running, "Bob", "member")
        key = key_of((await running.post(f"/api/admin/users/{made['id']}/link"))["link"])
        await log_in(client, "Bob")
        stream = await read_events(client, "/api/events")
        answer = await running.http.delete(f"/api/admin/users/{made['id']}")
        assert answer.json()["disabled_at"]
        assert (await client.get("/api/me")).status_code == 401
        await asyncio.wait_for(stream.events.ended.wait(), 5)
        await stream.close()
        assert (await log_in(client, "Bob")).status_code == 401
        assert (await client.post("/api/start", json={"k": key, "password": OTHER})).status_code == 404
        denied = await running.http.post(f"/api/admin/users/{made['id']}/link")
        assert problem(denied) == (409, "user_disabled")
        back = await running.http.patch(f"/api/admin/users/{made['id']}", json={"disabled": False})
        assert back.json()["disabled_at"] is None
        assert (await log_in(client, "Bob")).status_code == 200


async def test_a_new_role_counts_from_the_next_request() -> None:
    async with server() as running, browser(running) as client:
        made = await a_user(running, "Bob", "viewer")
        await log_in(client, "Bob")
        stream = await read_events(client, "/api/events")
        submit = {"config": CPU_CONFIG}
        assert (await client.post("/api/queue/submit", json=submit)).status_code == 403
        await running.http.patch(f"/api/admin/users/{made['id']}", json={"role": "member"})
        assert (await client.post("/api/queue/submit", json=submit)).status_code == 200
        assert "user.role_changed" in await audited(running)
        await asyncio.wait_for(stream.events.ended.wait(), 5)
        await stream.close()


async def test_the_last_admin_stays() -> None:
    async with server() as running, browser(running) as client:
        ada = await first_admin(running, client)
        path = f"/api/admin/users/{ada['id']}"
        invited = await running.post("/api/admin/users", {"name": "Chen", "role": "admin"})
        assert problem(await client.delete(path)) == (409, "last_admin")
        assert problem(await client.patch(path, json={"role": "member"})) == (409, "last_admin")
        await client.post("/api/start", json={"k": key_of(invited["link"]), "password": GOOD})
        await log_in(client, "Ada")
        assert (await client.patch(path, json={"role": "member"})).status_code == 200
        assert problem(await client.delete(path)) == (403, "forbidden")


async def test_who_manages_users_makes_nobody_mightier_than_themselves() -> None:
    async with server() as running, browser(running) as client:
        ada = await first_admin(running, client)
        token = await running.token("admin.users")
        async with running.as_user(token) as manager:
            for answer in (
                await manager.post("/api/admin/users", json={"name": "Eve", "role": "admin"}),
                await manager.post(f"/api/admin/users/{ada['id']}/link"),
                await manager.delete(f"/api/admin/users/{ada['id']}"),
                await manager.post("/api/admin/users/link"),
            ):
                assert problem(answer) == (403, "forbidden")
            assert (await manager.get("/api/admin/users")).status_code == 200
            assert problem(await manager.delete("/api/admin/users/u_none")) == (404, "not_found")


async def test_a_link_made_for_somebody_ends_when_they_come_to_hold_more() -> None:
    async with server() as running, browser(running) as client:
        await first_admin(running, client)
        held = {"permissions": ["jobs.read"]}
        assert (await running.http.put("/api/admin/roles/ops", json=held)).status_code == 200
        token = await running.token("admin.users", "jobs.read", "queue.read")
        links = {}
        async with running.as_user(token) as manager:
            for name in ("Bob", "Eve", "Gus"):
                answer = await manager.post("/api/admin/users", json={"name": name, "role": "ops"})
                links[name] = (answer.json()["id"], key_of(answer.json()["link"]))
        less = await running.http.patch(f"/api/admin/users/{links['Gus'][0]}", json={"role": "viewer"})
        assert less.status_code == 200
        assert (await client.get("/api/start", params={"k": links["Gus"][1]})).status_code == 404
        answer = await running.http.patch(f"/api/admin/users/{links['Bob'][0]}", json={"role": "admin"})
        assert answer.status_code == 200
        for name, good in (("Bob", False), ("Eve", True)):
            seen = await client.get("/api/start", params={"k": links[name][1]})
            assert seen.status_code == (200 if good else 404), name
        wider = {"permissions": ["jobs.read", "admin.workers"]}
        assert (await running.http.put("/api/admin/roles/ops", json=wider)).status_code == 200
        used = await client.post("/api/start", json={"k": links["Eve"][1], "password": OTHER})
        assert problem(used) == (404, "link_used")


async def test_a_link_outlives_a_role_that_holds_no_more() -> None:
    async with server() as running, browser(running) as client:
        await first_admin(running, client)
        invited = await running.post("/api/admin/users", {"name": "Chen", "role": "member"})
        answer = await running.http.patch(f"/api/admin/users/{invited['id']}", json={"role": "viewer"})
        assert answer.status_code == 200
        used = await client.post("/api/start", json={"k": key_of(invited["link"]), "password": OTHER})
        assert used.status_code == 200, used.text


async def test_a_member_cancels_and_retries_their_own_jobs_alone() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        await log_in(client, "Bob")
        mine = (await client.post("/api/queue/submit", json={"config": CPU_CONFIG})).json()["job_id"]
        theirs = (await running.submit())["job_id"]
        listed = (await client.get("/api/queue/me")).json()["jobs"]
        assert [job["id"] for job in listed] == [mine]
        for path in (
            f"/api/jobs/{theirs}/cancel",
            f"/api/queue/{theirs}/cancel",
            f"/api/jobs/{theirs}/retry",
        ):
            assert problem(await client.post(path)) == (403, "not_your_job")
        assert (await client.post("/api/jobs/j_none/cancel")).status_code == 404
        assert (await client.post(f"/api/jobs/{mine}/cancel")).status_code == 200
        assert (await client.post(f"/api/jobs/{mine}/retry")).status_code == 200


async def test_names_are_taken_once_whatever_their_case() -> None:
    async with server() as running:
        await a_user(running, "Bob", "member")
        await a_user(running, "A\u0308da", "member")
        async with browser(running) as client:
            for composed in ("\u00c4DA", "a\u0308da"):
                assert (await log_in(client, composed)).status_code == 200
        answer = await running.http.post("/api/admin/users", json={"name": "BOB"})
        assert problem(answer) == (409, "name_taken")
        answer = await running.http.post("/api/admin/users", json={"name": "x", "role": "god"})
        assert answer.status_code == 422


async def test_guessing_is_slowed_by_name_and_by_address_and_success_is_free() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        for _ in range(30):
            assert (await log_in(client, "Bob")).status_code == 200
        codes = [(await log_in(client, "Bob", "guess number one")).status_code for _ in range(12)]
        assert codes[:9] == [401] * 9
        assert codes[-1] == 429
        codes = [(await log_in(client, f"name {at}")).status_code for at in range(20)]
        assert codes[-1] == 429


async def test_nobody_fills_the_store_with_tokens_of_their_own() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        await log_in(client, "Bob")
        own = {"name": "t", "permissions": ["jobs.read"]}
        first = (await client.post("/api/me/tokens", json=own)).json()["token"]
        async with running.as_user(first) as program:
            made = [
                (await one.post("/api/me/tokens", json=own)).status_code for one in (client, program) * 90
            ]
        assert set(made) == {201, 429}
        assert (await client.get("/api/me/tokens")).status_code == 200


async def test_a_page_of_another_site_cannot_log_anybody_in_or_out() -> None:
    async with server() as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        await log_in(client, "Bob")
        evil = {"origin": "https://evil.example"}
        for path in ("/api/login", "/api/logout", "/api/start"):
            assert problem(await client.post(path, json={}, headers=evil)) == (403, "foreign_origin")


async def test_under_tls_behind_a_proxy_the_cookie_is_locked() -> None:
    settings = EdgeSettings(trusted_proxies="127.0.0.1")
    async with server(settings=settings) as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        client.headers["x-forwarded-proto"] = "https"
        client.headers["sec-fetch-site"] = "same-origin"
        answer = await log_in(client, "Bob")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-simpletuner_session=ss_")
        assert cookie.endswith("; Secure")
        shown = {"cookie": cookie.partition(";")[0]}
        assert (await client.get("/api/me", headers=shown)).json()["name"] == "Bob"
        del client.headers["x-forwarded-proto"]
        assert (await client.get("/api/me", headers=shown)).status_code == 401


async def test_a_revoked_token_ends_its_streams() -> None:
    async with server() as running:
        made = await running.post("/api/admin/tokens", {"name": "x", "permissions": ["jobs.read"]})
        async with running.as_user(made["token"]) as watcher:
            stream = await read_events(watcher, "/api/events")
            await running.http.delete(f"/api/admin/tokens/{made['id']}")
            await until(stream.events.ended.is_set)
            await stream.close()


async def test_no_secret_is_in_the_store_or_the_audit_log() -> None:
    async with server() as running, browser(running) as client:
        await first_admin(running, client)
        secret = client.cookies["simpletuner_session"]
        users = await running.fleet.read(lambda view: view.users())
        assert users[0].password_hash.startswith("$argon2id$")
        everything_shown = str(await running.get("/api/audit", limit=100)) + str(
            await running.get("/api/admin/users")
        )
        assert not any(word in everything_shown for word in (secret, GOOD, "argon2", "ok_"))
        assert await running.fleet.read(lambda view: view.session(secret)) is None


async def test_users_are_listed_page_by_page_where_pages_are_asked_for() -> None:
    async with server() as running:
        for number in range(5):
            await a_user(running, f"user-{number}", "viewer")
            running.clock.at += number % 2  # some were made at the same moment
        whole = await running.get("/api/admin/users")
        assert (len(whole["users"]), whole["next"]) == (5, None), "who asks for no pages gets all, as ever"
        pages = [await running.get("/api/admin/users", limit=2)]
        while pages[-1]["next"]:
            pages.append(await running.get("/api/admin/users", limit=2, cursor=pages[-1]["next"]))
        assert [len(page["users"]) for page in pages] == [2, 2, 1]
        assert [user for page in pages for user in page["users"]] == whole["users"]
        rest = await running.get("/api/admin/users", cursor=pages[0]["next"])
        assert (rest["users"], rest["next"]) == (whole["users"][2:], None)
        for asked in ({"cursor": "x"}, {"limit": 0}, {"limit": 501}):
            assert (await running.http.get("/api/admin/users", params=asked)).status_code == 422, asked


async def test_a_stream_ends_when_its_session_does() -> None:
    """Whoever only watches does not use the session: it ends after a week, and after a month at the latest."""
    async with server(policy=Policy(ping_interval_s=0.05)) as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        await log_in(client, "Bob")
        stream = await read_events(client, "/api/events")
        running.clock.at += SESSION_IDLE_S - 1
        await stream.events.next("ping")
        await stream.events.next("ping")
        assert not stream.events.ended.is_set()
        running.clock.at += 1
        await asyncio.wait_for(stream.events.ended.wait(), 5)
        await stream.close()
        assert (await client.get("/api/me")).status_code == 401


async def test_a_stream_of_a_session_that_is_used_ends_after_its_whole_life() -> None:
    async with server(policy=Policy(ping_interval_s=0.05)) as running, browser(running) as client:
        await a_user(running, "Bob", "member")
        await log_in(client, "Bob")
        ends_at = running.clock.at + SESSION_LIFE_S
        while running.clock.at < ends_at - SESSION_IDLE_S:
            running.clock.at += SESSION_IDLE_S / 2
            assert (await client.get("/api/me")).status_code == 200
        stream = await read_events(client, "/api/events")
        running.clock.at = ends_at - 1
        await stream.events.next("ping")
        await stream.events.next("ping")
        assert not stream.events.ended.is_set()
        running.clock.at = ends_at
        await asyncio.wait_for(stream.events.ended.wait(), 5)
        await stream.close()
