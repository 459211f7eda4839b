"""Logging in with an OpenID provider: the whole walk, and what a change at the provider does here."""

from functools import partial
from typing import Any

import httpx2

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.people.sign_in.ci import CiRule
from simpletuner_fleet.core.people.sign_in.providers import TeamGroups
from simpletuner_fleet.core.people.teams import TeamRole
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.orchestrator.organising.teams import give_roles
from simpletuner_fleet.store import MemoryStore
from tests.http.sign_in_kit import OWN_PAGE, problem, scene, settings_of
from tests.openid_provider import tell, unsigned


async def me(browser: httpx2.AsyncClient) -> dict[str, object]:
    answer = await browser.get("/api/me")
    assert answer.status_code == 200, answer.text
    who: dict[str, object] = answer.json()
    return who


async def test_a_person_logs_in_and_is_who_the_provider_says() -> None:
    async with scene() as it, it.browser() as browser:
        page = await browser.get("/login")
        assert "/login/with/corp?next=/" in page.text
        assert "Corp" in page.text
        assert (await browser.get("/api/login/providers")).json() == {
            "providers": [{"id": "corp", "title": "Corp", "login_path": "/login/with/corp"}]
        }
        back = await it.log_in(browser)
        assert (back.status_code, back.headers["location"]) == (303, "/jobs")
        who = await me(browser)
        assert (who["name"], who["role"], who["kind"]) == ("ada", "member", "user")
        [created] = await it.audited("user.created")
        assert created["details"] == {"name": "ada", "role": "member"}
        [entry] = await it.audited("user.login")
        assert entry["details"] == {"name": "ada", "provider": "corp"}
        assert "You log in with Corp" in (await browser.get("/me")).text
        users = (await it.running.get("/api/admin/users"))["users"]
        assert [(one["name"], one["has_password"], one["provider"]) for one in users] == [
            ("ada", False, it.provider.issuer)
        ]


async def test_the_role_is_what_the_groups_say_at_every_log_in() -> None:
    async with scene() as it, it.browser() as first, it.browser() as second:
        it.provider.people["s-ada"]["groups"] = ["ml", "ml-admins"]
        await it.log_in(first)
        assert (await me(first))["role"] == "admin"
        assert (await first.get("/api/admin/users")).status_code == 200
        it.provider.people["s-ada"]["groups"] = ["staff"]
        await it.log_in(second)
        assert (await me(second))["role"] == "viewer"
        assert (await me(first))["role"] == "viewer"
        assert problem(await first.get("/api/admin/users")) == (403, "forbidden")
        [changed] = await it.audited("user.role_changed")
        assert changed["details"] == {"name": "ada", "was": "admin", "now": "viewer", "provider": "corp"}


async def test_who_loses_every_group_loses_sessions_and_tokens_and_comes_back_with_a_group() -> None:
    async with scene() as it, it.browser() as first, it.browser() as second:
        it.provider.people["s-ada"]["groups"] = ["ml-admins"]
        await it.log_in(first)
        token = (
            await first.post("/api/admin/tokens", json={"name": "t", "permissions": ["*"]}, headers=OWN_PAGE)
        ).json()["token"]
        it.provider.people["s-ada"]["groups"] = ["elsewhere"]
        assert problem(await it.log_in(second)) == (403, "no_role")
        assert problem(await first.get("/api/me")) == (401, "session_ended")
        async with it.running.as_user(token) as program:
            assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
            assert problem(await program.get("/api/teams")) == (401, "invalid_token")
        [failed] = await it.audited("user.login_failed")
        assert failed["details"] == {"name": "ada", "provider": "corp", "reason": "no_role"}
        it.provider.people["s-ada"]["groups"] = ["ml"]
        assert (await it.log_in(second)).status_code == 303
        assert (await me(second))["role"] == "member"


async def test_places_in_teams_follow_the_groups_and_other_teams_are_left_alone() -> None:
    teams = {
        "vision": TeamGroups(lead=("vision-leads",), member=("vision",)),
        "nowhere": TeamGroups(lead=("ml",)),
    }
    async with scene(teams=teams) as it, it.browser() as browser:
        for name in ("vision", "by hand"):
            await it.running.post("/api/teams", {"name": name})
        it.provider.people["s-ada"]["groups"] = ["ml", "vision-leads"]
        await it.log_in(browser)
        ada = str((await me(browser))["id"])
        by_hand = next(
            one["id"] for one in (await it.running.get("/api/teams"))["teams"] if one["name"] != "vision"
        )
        await it.running.http.put(f"/api/teams/{by_hand}/members/{ada}", json={"role": "member"})

        async def places() -> dict[str, str]:
            listed = (await it.running.get("/api/teams"))["teams"]
            return {one["name"]: member["role"] for one in listed for member in one["members"]}

        assert await places() == {"vision": "lead", "by hand": "member"}
        assert "queue.approve" in str((await me(browser))["permissions"])
        it.provider.people["s-ada"]["groups"] = ["ml", "vision"]
        async with it.browser() as other:
            await it.log_in(other)
        assert await places() == {"vision": "member", "by hand": "member"}
        assert (await browser.get("/api/whoami")).json()["permissions"].count("queue.approve") == 0
        it.provider.people["s-ada"]["groups"] = []
        await it.log_in(browser)
        assert await places() == {"by hand": "member"}


async def test_a_large_team_keeps_nobody_of_its_group_out() -> None:
    teams = {"all": TeamGroups(member=("ml",))}
    async with scene(teams=teams) as it, it.browser() as browser:
        team = await it.running.post("/api/teams", {"name": "all"})

        def fill(transaction: Transaction) -> None:
            members = {f"u_{number}": TeamRole.MEMBER for number in range(19_999)}
            give_roles(transaction, transaction.organisation.teams[team["id"]], members, ORCHESTRATOR)

        await it.running.fleet.act(fill)
        assert (await it.log_in(browser)).status_code == 303
        [seen] = (await it.running.get("/api/teams"))["teams"]
        assert len(seen["members"]) == 20_000
        assert seen["members"][0]["name"] == "ada"


async def test_whom_an_administrator_disabled_stays_out_whatever_the_provider_says() -> None:
    async with scene() as it, it.browser() as browser:
        await it.log_in(browser)
        [user] = (await it.running.get("/api/admin/users"))["users"]
        it.provider.people["s-ada"]["groups"] = []
        await it.log_in(browser)
        await it.running.http.delete(f"/api/admin/users/{user['id']}")
        by = [entry["actor"] for entry in await it.audited("user.disabled")]
        assert by == ["admin", "corp"], "it was the provider first, and is the administrator from now on"
        it.provider.people["s-ada"]["groups"] = ["ml-admins"]
        assert problem(await it.log_in(browser)) == (409, "user_disabled")
        await it.running.http.patch(f"/api/admin/users/{user['id']}", json={"disabled": False})
        assert (await it.log_in(browser)).status_code == 303


async def test_an_equal_name_or_address_takes_over_nobody() -> None:
    async with scene() as it, it.browser() as browser:
        local = await it.running.post(
            "/api/admin/users", {"name": "ada", "role": "admin", "password": "correct horse battery"}
        )
        it.provider.people["s-ada"]["email"] = "ada@example.org"
        await it.log_in(browser)
        who = await me(browser)
        assert who["id"] != local["id"]
        assert who["name"] == "ada (corp)"
        assert who["role"] == "member"
        it.provider.people["s-eve"] = {
            "preferred_username": "ADA",
            "email": "ada@example.org",
            "groups": ["ml"],
        }
        it.provider.person = "s-eve"
        await it.log_in(browser)
        assert (await me(browser))["name"] == "ADA (corp 2)"
        link = await it.running.http.post(f"/api/admin/users/{who['id']}/link")
        assert problem(link) == (409, "foreign_user")


async def test_without_new_users_only_known_people_come_in() -> None:
    async with scene(new_users=False) as it, it.browser() as browser:
        assert problem(await it.log_in(browser)) == (403, "no_role")
        assert (await it.running.get("/api/admin/users"))["users"] == []


async def test_groups_may_be_told_by_userinfo_alone() -> None:
    async with scene() as it, it.browser() as browser:
        it.provider.groups_in_userinfo = True
        await it.log_in(browser)
        assert (await me(browser))["role"] == "member"


async def test_nobody_loses_anything_because_userinfo_has_trouble() -> None:
    async with scene() as it, it.browser() as before, it.browser() as browser:
        it.provider.groups_in_userinfo = True
        await it.log_in(before)
        for status in (503, 429):
            it.provider.answers["/me"] = partial(tell, status=status, document={})
            assert problem(await it.log_in(browser)) == (403, "sign_in_failed")
            assert (await before.get("/api/me")).json()["role"] == "member"
        assert await it.audited("user.disabled") == []
        it.provider.answers["/me"] = partial(tell, status=403, document={})
        assert problem(await it.log_in(browser)) == (403, "no_role"), "it says that there are none for us"
        it.provider.answers.clear()
        assert (await it.log_in(browser)).status_code == 303


async def test_keys_may_change_and_strangers_cannot_make_us_ask_for_them_again_and_again() -> None:
    async with scene() as it, it.browser() as browser:
        await it.log_in(browser)
        it.provider.rotate()
        assert problem(await it.log_in(browser)) == (403, "not_vouched_for")
        provider = it.running.deps.sign_in.provider("corp")
        keys = provider._keys
        assert keys._asked_at is not None
        keys._asked_at -= 31.0
        assert (await it.log_in(browser)).status_code == 303
        asked = it.provider.asked.count("/keys")
        it.provider.make_token = lambda claims: it.provider.sign(claims, kid="made-up")
        for _ in range(3):
            assert problem(await it.log_in(browser)) == (403, "not_vouched_for")
        assert it.provider.asked.count("/keys") == asked


async def test_a_provider_that_is_down_says_so_and_passwords_go_on() -> None:
    async with scene() as it, it.browser() as browser:
        await it.running.post(
            "/api/admin/users", {"name": "root", "role": "admin", "password": "correct horse battery"}
        )
        it.provider.stop()
        assert problem(await browser.get("/login/with/corp")) == (502, "provider_unusable")
        page = await browser.get("/login/with/corp", headers={"Accept": "text/html"})
        assert page.status_code == 502
        assert "The provider cannot be used" in page.text
        login = {"name": "root", "password": "correct horse battery"}
        assert (await browser.post("/api/login", json=login)).status_code == 200


async def test_logging_out_ends_the_session_here_and_at_the_provider() -> None:
    async with scene() as it, it.browser() as browser:
        await it.log_in(browser)
        out = (await browser.post("/api/logout", headers=OWN_PAGE)).json()
        assert out["next"].startswith(f"{it.provider.issuer}/end?client_id=fleet&")
        assert (await it.through_provider(out["next"])).endswith("/login")
        assert it.provider.logouts[0]["id_token_hint"].count(".") == 2
        assert problem(await browser.get("/api/me")) == (401, "unauthenticated")
        await it.log_in(browser)
        it.provider.rotate()
        it.running.deps.sign_in.provider("corp")._keys._fetched_at = None
        out = (await browser.post("/api/logout", headers=OWN_PAGE)).json()
        assert "id_token_hint" not in out["next"], (
            "the provider could not read it, and would say so to the person"
        )
        it.provider.bend_document = {"end_session_endpoint": ""}
        it.running.deps.sign_in.provider("corp")._described = None
        await it.log_in(browser)
        assert (await browser.post("/api/logout", headers=OWN_PAGE)).json()["next"] == "/login"


async def test_a_session_ends_with_the_provider_that_the_settings_no_longer_name() -> None:
    store = MemoryStore()
    async with scene(store=store) as it, it.browser() as browser:
        await it.log_in(browser)
        assert (await me(browser))["role"] == "member"
        cookie, before = {"cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}, settings_of(it.provider, id="old")
    async with scene(store=store, more_providers=[before]) as it, it.browser() as browser:
        assert (await browser.get("/api/me", headers=cookie)).status_code == 200
    async with scene(store=store) as it, it.browser() as browser:
        assert problem(await browser.get("/api/me", headers=cookie)) == (401, "session_ended")
    await store.close()


async def test_the_provider_ends_sessions_by_its_own_word_once() -> None:
    async with scene() as it, it.browser() as first, it.browser() as second, it.browser() as provider:
        await it.log_in(first)
        await it.log_in(second)
        sids = [turn.sid for turn in it.provider.turns.values()]
        at = "/api/login/providers/corp/logout"
        token = it.provider.logout_token(sid=sids[0])
        assert (await provider.post(at, data={"logout_token": token})).status_code == 200
        assert problem(await first.get("/api/me")) == (401, "session_ended")
        await me(second)
        await it.log_in(first)
        assert problem(await provider.post(at, data={"logout_token": token})) == (403, "not_vouched_for")
        as_if = {"nonce": "x", "sub": it.provider.person, "events": {}}
        id_token = it.provider.sign({**it.provider.claims(next(iter(it.provider.turns.values()))), **as_if})
        refused = await provider.post(at, data={"logout_token": id_token})
        assert problem(refused) == (403, "not_vouched_for"), "a token of a log-in is no order to log out"
        lies: list[dict[str, Any]] = [
            {"nonce": "x"},
            {"events": {}},
            {"aud": "another"},
            {"iss": "http://elsewhere"},
            {"exp": 5, "iat": 5},
            {"jti": None},
            {"sub": None},
        ]
        for bent in lies:
            refused = await provider.post(at, data={"logout_token": it.provider.logout_token(**bent)})
            assert problem(refused) == (403, "not_vouched_for"), bent
        await me(second)
        everywhere = it.provider.logout_token()
        assert (await provider.post(at, data={"logout_token": everywhere})).status_code == 200
        for browser in (first, second):
            assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert problem(await provider.post(at, data={"nothing": "x"})) == (400, "malformed")


class FillingStore(MemoryStore):
    """Accepts nothing while its disk is full."""

    is_full = False

    async def write(self, step):  # type: ignore[no-untyped-def]
        if self.is_full:
            raise StoreUnavailable("The disk that holds the database is full; nothing was changed.")
        return await super().write(step)


async def test_the_word_of_a_provider_that_could_not_be_followed_may_be_sent_again() -> None:
    store = FillingStore()
    async with scene(store=store) as it, it.browser() as browser, it.browser() as provider:
        await it.log_in(browser)
        order = {"logout_token": it.provider.logout_token()}
        at = "/api/login/providers/corp/logout"
        store.is_full = True
        assert problem(await provider.post(at, data=order)) == (503, "store_unavailable")
        store.is_full = False
        await me(browser)
        assert (await provider.post(at, data=order)).status_code == 200
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert problem(await provider.post(at, data=order)) == (403, "not_vouched_for")
    await store.close()


async def test_a_ci_job_exchanges_its_token_for_a_short_one_that_acts_for_a_user() -> None:
    rule = CiRule(
        claims={"repository": "org/*", "ref": "main"}, user="ci", permissions=("jobs.read", "admin.users")
    )
    async with scene(ci=[rule]) as it, it.browser() as job:
        now = int(it.running.clock.now())
        good = {
            "iss": it.provider.issuer,
            "aud": "https://fleet",
            "sub": "repo:org/cats",
            "iat": now,
            "exp": now + 300,
            "repository": "org/cats",
            "ref": "main",
        }

        async def exchange(bent: dict[str, object]) -> httpx2.Response:
            return await job.post("/api/login/ci/ci", json={"token": it.provider.sign({**good, **bent})})

        assert problem(await exchange({})) == (409, "user_disabled")
        await it.running.post(
            "/api/admin/users", {"name": "ci", "role": "member", "password": "correct horse battery"}
        )
        first = (await exchange({})).json()
        assert (first["name"], first["permissions"]) == ("ci ci: repo:org/cats", ["jobs.read", "admin.users"])
        async with it.running.as_user(first["token"]) as program:
            assert (await program.get("/api/jobs")).status_code == 200
            assert problem(await program.get("/api/admin/users")) == (403, "forbidden"), "its user may not"
            it.running.clock.at += 901
            assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
        later: dict[str, object] = {"exp": now + 2000}
        bends: list[tuple[dict[str, object], str]] = [
            ({**later, "aud": "fleet"}, "not_vouched_for"),
            ({"exp": now}, "not_vouched_for"),
            ({**later, "iss": "https://elsewhere"}, "not_vouched_for"),
            ({**later, "repository": "evil/cats"}, "no_role"),
            ({**later, "ref": None}, "no_role"),
        ]
        for bent, code in bends:
            assert problem(await exchange(bent)) == (403, code), bent
        unproven = {"token": unsigned({**good, **later})}
        assert problem(await job.post("/api/login/ci/ci", json=unproven)) == (403, "not_vouched_for")
        assert problem(await job.post("/api/login/ci/other", json=unproven)) == (404, "not_found")
        assert (await exchange(later)).status_code == 200
        rows = (await it.running.get("/api/admin/tokens"))["tokens"]
        assert len([one for one in rows if one["name"].startswith("ci ")]) == 1, "the row of the expired one"


async def test_what_a_short_token_makes_ends_with_it() -> None:
    rule = CiRule(claims={"sub": "repo:org/cats"}, user="ci", permissions=("jobs.read",))
    async with scene(ci=[rule]) as it, it.browser() as job:
        await it.running.post(
            "/api/admin/users", {"name": "ci", "role": "member", "password": "correct horse battery"}
        )
        now = int(it.running.clock.now())
        claims = {"iss": it.provider.issuer, "aud": "https://fleet", "sub": "repo:org/cats", "exp": now + 300}
        short = (await job.post("/api/login/ci/ci", json={"token": it.provider.sign(claims)})).json()
        own = {"name": "kept", "permissions": ["jobs.read"]}
        made = []
        async with it.running.as_user(short["token"]) as program:
            for asked_s in (None, 60.0, 1e6):
                answer = await program.post("/api/me/tokens", json={**own, "expires_in_s": asked_s})
                made.append(answer.json())
        assert [made[0]["expires_at"], made[2]["expires_at"]] == [short["expires_at"]] * 2
        assert made[1]["expires_at"] < short["expires_at"]
        it.running.clock.at += 901
        for one in made:
            async with it.running.as_user(one["token"]) as program:
                assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
