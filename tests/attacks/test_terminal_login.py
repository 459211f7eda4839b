"""Attacks on the log-in whose answer a browser carries to the terminal beside it (RFC 8252, RFC 7636)."""

import asyncio
import secrets
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from simpletuner_fleet.core.people.sign_in.loopback import challenge_of
from tests.http.sign_in_kit import OWN_PAGE, problem, scene

ASK, ANSWER, CLAIM, EXCHANGE = (
    f"/api/login/terminals{part}" for part in ("", "/answer", "/claim", "/exchange")
)


class Terminal:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.verifier, self.state = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.asked: dict[str, Any] = {}

    async def ask(self) -> "Terminal":
        mine = {"port": 40_000, "challenge": challenge_of(self.verifier), "state": self.state}
        answer = await self.client.post(ASK, json={"name": "laptop", "loopback": mine})
        assert answer.status_code == 200, answer.text
        self.asked = answer.json()
        return self

    async def allowed_by(self, browser: httpx2.AsyncClient, *, allow: bool = True) -> str:
        """Returns the code that the browser carries."""
        body = {"code": self.asked["code"], "allow": allow}
        answer = await browser.post(ANSWER, json=body, headers=OWN_PAGE)
        assert answer.status_code == 200, answer.text
        address = urlsplit(str(answer.json()["next"]))
        assert (address.scheme, address.netloc, address.path) == ("http", "127.0.0.1:40000", "/signed-in")
        said = parse_qs(address.query)
        assert said["state"] == [self.state]
        return said.get("code", [""])[0]

    async def exchange(self, code: str, verifier: str | None = None) -> httpx2.Response:
        return await self.client.post(EXCHANGE, json={"code": code, "verifier": verifier or self.verifier})


async def test_a_code_is_for_one_terminal_once_and_for_a_minute() -> None:
    async with scene() as it, it.browser() as client, it.browser() as browser:
        await it.log_in(browser)
        terminal = await Terminal(client).ask()
        page = (await browser.get(terminal.asked["page"])).text
        assert "laptop" in page
        assert "for 90 days" in page
        code = await terminal.allowed_by(browser)
        given = (await terminal.exchange(code)).json()
        assert given["name"] == "ada"
        async with it.running.as_user(given["token"]) as program:
            may = (await program.get("/api/whoami")).json()["permissions"]
            assert "jobs.read" in may
            assert "*" not in may
            assert problem(await terminal.exchange(code)) == (404, "not_found"), "replayed"
            assert problem(await program.get("/api/jobs")) == (401, "invalid_token"), "and taken back"
        [revoked] = await it.audited("token.revoked")
        assert revoked["details"]["why"] == "replayed"
        assert problem(await terminal.exchange(code)) == (404, "not_found")
        assert len(await it.audited("token.revoked")) == 1
        [made] = await it.audited("token.created")
        assert made["actor"] == "ada"

        mistaken = await Terminal(client).ask()
        code = await mistaken.allowed_by(browser)
        assert problem(await mistaken.exchange(code, secrets.token_urlsafe(32))) == (404, "not_found")
        assert problem(await mistaken.exchange(code)) == (404, "not_found"), "a wrong try uses it up"

        late = await Terminal(client).ask()
        code = await late.allowed_by(browser)
        it.running.clock.at += 60
        assert problem(await late.exchange(code)) == (404, "not_found")
        assert len(await it.audited("token.created")) == 1


async def test_a_secret_that_comes_again_while_its_token_is_in_use_takes_the_token_back() -> None:
    async with scene() as it, it.browser() as client, it.browser() as browser:
        await it.log_in(browser)
        asked = (await client.post(ASK, json={"name": "laptop"})).json()
        answered = await browser.post(ANSWER, json={"code": asked["code"], "allow": True}, headers=OWN_PAGE)
        assert answered.status_code == 200, answered.text
        given = (await client.post(CLAIM, json={"secret": asked["secret"]})).json()
        assert (await client.post(CLAIM, json={"secret": asked["secret"]})).json() == given, "a lost answer"
        async with it.running.as_user(given["token"]) as program:
            assert (await program.get("/api/whoami")).status_code == 200
            stolen = await client.post(CLAIM, json={"secret": asked["secret"]})
            assert problem(stolen) == (404, "not_found")
            assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
        assert problem(await client.post(CLAIM, json={"secret": asked["secret"]})) == (404, "not_found")
        assert len(await it.audited("token.revoked")) == 1


async def test_a_code_that_comes_twice_at_once_gives_nobody_a_token_that_works() -> None:
    async with scene() as it, it.browser() as client, it.browser() as browser:
        await it.log_in(browser)
        terminal = await Terminal(client).ask()
        code = await terminal.allowed_by(browser)
        answers = await asyncio.gather(*(terminal.exchange(code) for _ in range(4)))
        for one in answers:
            if one.status_code == 200:
                async with it.running.as_user(one.json()["token"]) as program:
                    assert problem(await program.get("/api/jobs")) == (401, "invalid_token")
        assert sum(one.status_code == 200 for one in answers) <= 1


async def test_a_code_of_one_person_is_not_taken_by_another() -> None:
    async with scene() as it, it.browser() as client, it.browser() as ada, it.browser() as bob:
        await it.log_in(ada)
        hers, his = await Terminal(client).ask(), await Terminal(client).ask()
        code = await hers.allowed_by(ada)
        assert problem(await his.exchange(code)) == (404, "not_found"), "bob has seen ada's code"
        it.provider.person, it.provider.people["s-bob"] = (
            "s-bob",
            {"preferred_username": "bob", "groups": ["ml"]},
        )
        await it.log_in(bob)
        again = await Terminal(client).ask()
        code = await again.allowed_by(ada)
        answered = await bob.post(ANSWER, json={"code": again.asked["code"], "allow": True}, headers=OWN_PAGE)
        assert problem(answered) == (404, "not_found"), "what ada has answered is answered"
        assert (await again.exchange(code)).json()["name"] == "ada"
        left = await Terminal(client).ask()
        code = await left.allowed_by(ada)
        [user] = [one for one in (await it.running.get("/api/admin/users"))["users"] if one["name"] == "ada"]
        await it.running.http.patch(f"/api/admin/users/{user['id']}", json={"disabled": True})
        assert problem(await left.exchange(code)) == (403, "forbidden")


async def test_no_request_leads_the_browser_elsewhere() -> None:
    async with scene() as it, it.browser() as client:
        fit = {"port": 40_000, "challenge": "c" * 43, "state": "s" * 43}
        for bad in (
            {"port": 22},
            {"port": "40000@evil.example/"},
            {"redirect_uri": "https://evil.example/"},
            {"host": "evil.example"},
            {"challenge": ""},
            {"state": "short"},
            {"state": "s" * 43 + "&code=x"},
        ):
            refused = await client.post(ASK, json={"name": "laptop", "loopback": {**fit, **bad}})
            assert refused.status_code == 422, bad


async def test_only_a_click_on_our_own_page_lets_a_terminal_in() -> None:
    async with scene() as it, it.browser() as client, it.browser() as browser:
        terminal = await Terminal(client).ask()
        assert terminal.asked["secret"] == "", "there is nothing to ask with from elsewhere"
        page = await browser.get(terminal.asked["page"], headers={"Accept": "text/html"})
        assert page.status_code == 303, "who is nobody logs in first"
        await it.log_in(browser)
        code = terminal.asked["code"]
        await browser.get(f"{terminal.asked['page']}&allow=true&done=yes")
        assert (await browser.get(ANSWER, params={"code": code, "allow": "true"})).status_code in {404, 405}
        body = {"code": code, "allow": True}
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert problem(await browser.post(ANSWER, json=body, headers=headers)) == (403, "foreign_origin")
        form = await browser.post(ANSWER, data={"code": code, "allow": "true"}, headers=OWN_PAGE)
        assert form.status_code in {400, 415, 422}
        assert problem(await client.post(ANSWER, json=body))[0] == 401
        for guess in ("", "x", code):
            assert problem(await client.post(CLAIM, json={"secret": guess})) == (404, "not_found")
            assert problem(await terminal.exchange(guess)) == (404, "not_found")
        assert await terminal.allowed_by(browser, allow=False) == ""
        assert problem(await browser.post(ANSWER, json=body, headers=OWN_PAGE)) == (404, "not_found")
        for empty in ("", "None"):
            assert problem(await terminal.exchange(empty)) == (404, "not_found")
        assert not await it.audited("token.created")
