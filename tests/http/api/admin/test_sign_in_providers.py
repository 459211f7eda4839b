"""Providers that administrators add while the server runs: offered at once, tested, and gone with their sessions."""

import time
from pathlib import Path
from typing import Any

import httpx2

from simpletuner_fleet.http.access.limits import Buckets, Rate
from tests.http.api_kit import ADMIN
from tests.http.sign_in_kit import Scene, added_scene, problem, settings_of, wanted
from tests.openid_provider import SECRET, openid_provider

PROVIDERS = "/api/admin/sign-in/providers"
CORP = f"{PROVIDERS}/corp"


async def add(it: Scene, **changed: Any) -> dict[str, Any]:
    answer = await it.running.http.post(PROVIDERS, json=wanted(it.provider, **changed))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def offered(it: Scene) -> list[str]:
    async with it.browser() as browser:
        return [one["id"] for one in (await browser.get("/api/login/providers")).json()["providers"]]


async def test_one_that_is_added_is_offered_at_once_and_its_secret_is_never_shown(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it, it.browser() as browser:
        assert await offered(it) == []
        made = await add(it, title="", hosts=["ID.example.org"])
        base = it.running.listening.url
        assert (made["title"], made["source"], made["has_secret"], made["hosts"]) == (
            *("corp", "added", True),
            ["id.example.org"],
        )
        assert (made["redirect_uri"], made["logout_uri"], made["backchannel_uri"]) == (
            f"{base}/login/back/corp",
            f"{base}/login",
            f"{base}/api/login/providers/corp/logout",
        )
        assert await offered(it) == ["corp"]
        assert (await it.log_in(browser)).status_code == 303
        assert (await browser.get("/api/me")).json()["role"] == "member"
        seen = await it.running.http.get(PROVIDERS)
        assert seen.json()["providers"][0]["sessions"] == 1
        audit = await it.running.http.get("/api/audit")
        settings = it.running.deps.fleet.organisation.providers[0]
        stored = await it.running.deps.fleet.read(lambda view: view.setting("sign_in_provider:corp"))
        for shown in (seen.text, audit.text, repr(settings), stored or ""):
            assert SECRET not in shown
        [added] = await it.audited("sign_in.provider_added")
        assert (added["details"]["issuer"], added["details"]["enabled"]) == (it.provider.issuer, True)


async def test_what_nobody_could_log_in_with_is_refused_at_its_field(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it:
        bad: dict[str, Any] = {
            "id": "Corp!",
            "issuer": "http://id.example.org",
            "client_id": " ",
            "scopes": ["profile"],
            "roles": {"own": {"approver": []}},
            "leeway_s": -1,
            "hosts": ["https://id.example.org"],
        }
        for name, value in bad.items():
            answer = await it.running.http.post(PROVIDERS, json=wanted(it.provider, **{name: value}))
            assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, f"$.{name}"), name
        for name in ("id", "issuer"):
            twin = wanted(it.provider, **({"id": "other"} if name == "issuer" else {"issuer": "https://x"}))
            await it.running.http.post(PROVIDERS, json=wanted(it.provider))
            assert problem(await it.running.http.post(PROVIDERS, json=twin)) == (409, "conflict"), name
        assert await offered(it) == ["corp"]


async def test_whoever_manages_users_alone_sees_providers_and_changes_none(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it:
        await add(it)
        body = {"name": "narrow", "permissions": ["admin.users"]}
        token = (await it.running.http.post("/api/admin/tokens", json=body)).json()["token"]
        async with it.running.as_user(token) as narrow:
            assert (await narrow.get(PROVIDERS)).status_code == 200
            tried = (
                await narrow.post(PROVIDERS, json=wanted(it.provider, id="mine", issuer="https://mine")),
                await narrow.patch(CORP, json={"roles": {"admin": ["all"]}}),
                await narrow.delete(CORP),
            )
            assert [problem(one) for one in tried] == [(403, "forbidden")] * 3


async def logged_in(it: Scene, browser: httpx2.AsyncClient) -> None:
    assert (await it.log_in(browser)).status_code == 303
    assert (await browser.get("/api/me")).status_code == 200


async def test_switched_off_or_deleted_its_sessions_end_and_its_users_stay(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it, it.browser() as browser:
        await add(it)
        await logged_in(it, browser)
        off = await it.running.http.patch(CORP, json={"enabled": False})
        assert (off.json()["enabled"], off.json()["sessions"]) == (False, 0)
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert await offered(it) == []
        assert problem(await browser.get("/login/with/corp")) == (404, "not_found")
        await it.running.http.patch(CORP, json={"enabled": True})
        await logged_in(it, browser)
        assert (await it.running.http.delete(CORP)).json()["id"] == "corp"
        assert problem(await browser.get("/api/me")) == (401, "session_ended")
        assert problem(await it.running.http.delete(CORP)) == (404, "not_found")
        users = (await it.running.get("/api/admin/users"))["users"]
        assert [(one["name"], one["disabled_at"]) for one in users] == [("ada", None)]
        changed = await it.audited("sign_in.provider_changed")
        assert [one["details"]["changed"] for one in changed] == [["enabled"], ["enabled"]]
        assert len(await it.audited("sign_in.provider_deleted")) == 1
        assert [one["details"] for one in await it.audited("user.logout")] == [{"provider": "corp"}] * 2


async def test_one_that_is_changed_while_somebody_is_on_their_way_lets_them_in_no_more(
    tmp_path: Path,
) -> None:
    """The walk began with the old one: neither its answer nor the person it vouches for counts for the new one."""
    async with added_scene(tmp_path) as it, it.browser() as browser:
        await add(it)
        back = await it.through_provider(await it.to_provider(browser))
        with openid_provider(it.running.clock.now) as other:
            moved = {"issuer": other.issuer, "client_secret": SECRET}
            assert (await it.running.http.patch(CORP, json=moved)).status_code == 200
            assert problem(await browser.get(back)) == (403, "sign_in_lost")
            assert other.asked == []
            again = {"issuer": it.provider.issuer, "client_secret": SECRET}
            await it.running.http.patch(CORP, json=again)
        back = await it.through_provider(await it.to_provider(browser))
        base, sign = it.running.listening.url, it.provider.sign

        def deleted_first(claims: dict[str, Any]) -> str:
            """The administrator is faster than the provider, which is about to answer the server."""
            with httpx2.Client(headers={"Authorization": f"Bearer {ADMIN}"}, trust_env=False) as admin:
                assert admin.delete(f"{base}{CORP}").status_code == 200
            return sign(claims)

        it.provider.make_token = deleted_first
        assert problem(await browser.get(back)) == (403, "sign_in_failed")
        assert (await browser.get("/api/me")).status_code == 401
        assert (await it.audited("user.login")) == []


async def test_a_secret_is_never_shown_to_another_issuer(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it:
        await add(it)
        moved = await it.running.http.patch(CORP, json={"issuer": "https://elsewhere.example.org"})
        assert (moved.status_code, moved.json()["errors"][0]["path"]) == (422, "$.client_secret")
        fleet = it.running.deps.fleet
        row = fleet.organisation.providers[0]
        added = it.running.deps.sign_in.added
        assert getattr(added.opened(row), "client_secret", "") == SECRET
        (tmp_path / "secrets.key").write_text("damaged")
        assert added.opened(row) is None
        (tmp_path / "secrets.key").unlink()
        assert added.opened(row) is None
        [shown] = (await it.running.get(PROVIDERS))["providers"]
        assert shown["problem"].startswith("Its secret cannot be opened")


async def test_one_of_the_file_is_shown_tested_and_not_changed_and_stands_before_a_twin(
    tmp_path: Path,
) -> None:
    with openid_provider() as elsewhere:
        filed = settings_of(elsewhere, title="From the file")
        async with added_scene(tmp_path, filed=[filed]) as it:
            elsewhere.redirect_uris.add(f"{it.running.listening.url}/login/back/corp")
            [shown] = (await it.running.get(PROVIDERS))["providers"]
            assert (shown["source"], shown["enabled"], shown["created_at"]) == ("file", True, None)
            for answer in (
                await it.running.http.patch(CORP, json={"title": "mine"}),
                await it.running.http.delete(CORP),
                await it.running.http.post(PROVIDERS, json=wanted(it.provider)),
                await it.running.http.post(PROVIDERS, json=wanted(elsewhere, id="other")),
            ):
                assert problem(answer) == (409, "conflict")
            assert (await it.running.http.post(f"{CORP}/test")).json()["state"] == "good"


GOOD = ["discovery", "issuer", "places", "signatures", "pkce", "scopes", "keys", "redirect", "client"]


async def outcome(it: Scene) -> dict[str, tuple[str, str]]:
    it.running.deps.noted_trials = Buckets(Rate(100.0, 100), time.monotonic)
    answer = await it.running.http.post(f"{CORP}/test")
    assert answer.status_code == 200, answer.text
    return {one["name"]: (one["state"], one["said"]) for one in answer.json()["checks"]}


async def test_the_test_says_of_each_check_what_came_of_it(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it:
        await add(it, enabled=False)
        good = await outcome(it)
        assert [(name, state) for name, (state, _) in good.items()] == [(name, "good") for name in GOOD]
        [shown] = (await it.running.get(PROVIDERS))["providers"]
        assert shown["trial"]["state"] == "good"
        assert [one["details"]["result"] for one in await it.audited("sign_in.provider_tested")] == ["good"]
        await it.running.http.patch(CORP, json={"client_secret": "wrong"})
        assert (await it.running.get(PROVIDERS))["providers"][0]["trial"] is None
        assert (await outcome(it))["client"][0] == "bad"
        it.provider.redirect_uris.clear()
        assert (await outcome(it))["redirect"] == ("bad", "It refuses to begin a log-in: it answers 400.")
        bent: dict[str, tuple[dict[str, Any], str]] = {
            "issuer": ({"issuer": f"{it.provider.issuer}/"}, "bad"),
            "places": ({"token_endpoint": "https://other.example.org/token"}, "bad"),
            "signatures": ({"id_token_signing_alg_values_supported": ["HS256", "none"]}, "bad"),
            "pkce": ({"code_challenge_methods_supported": ["plain"]}, "bad"),
            "scopes": ({"scopes_supported": ["openid"]}, "bad"),
            "keys": ({"id_token_signing_alg_values_supported": ["RS256"]}, "bad"),
        }
        for name, (document, state) in bent.items():
            it.provider.bend_document = document
            assert (await outcome(it))[name][0] == state, name
        it.provider.bend_document = {"code_challenge_methods_supported": None, "scopes_supported": None}
        answers = await outcome(it)
        assert (answers["pkce"][0], answers["scopes"][0]) == ("not_made", "not_made")


async def test_what_comes_after_a_failed_check_was_not_made_and_is_not_good(tmp_path: Path) -> None:
    async with added_scene(tmp_path) as it:
        await add(it)
        it.provider.bend_document = {"issuer": "https://another.example.org"}
        answers = await outcome(it)
        assert {answers[name][0] for name in ("keys", "redirect", "client")} == {"not_made"}
        assert not {"/keys", "/token", "/authorize"} & set(it.provider.asked)
        it.provider.stop()
        answers = await outcome(it)
        assert answers.pop("discovery")[0] == "bad"
        assert {state for state, _ in answers.values()} == {"not_made"}


async def test_no_private_network_is_called_that_the_owner_has_not_named(tmp_path: Path) -> None:
    async with added_scene(tmp_path, networks=()) as it, it.browser() as browser:
        await add(it)
        state, said = (await outcome(it))["discovery"]
        assert (state, "--notify-network" in said) == ("bad", True)
        assert problem(await browser.get("/login/with/corp")) == (502, "provider_unusable")
        assert it.provider.asked == []
