"""`simpletuner login --web`: what a terminal asks, what a person answers, and what comes of it."""

import httpx2

from tests.http.sign_in_kit import OWN_PAGE, Scene, problem, scene

ASK, ANSWER, CLAIM = (f"/api/login/terminals{part}" for part in ("", "/answer", "/claim"))


async def asked(terminal: httpx2.AsyncClient) -> dict[str, str]:
    answer = await terminal.post(ASK, json={"name": "laptop"})
    assert answer.status_code == 200, answer.text
    waiting: dict[str, str] = answer.json()
    return waiting


async def claim(terminal: httpx2.AsyncClient, waiting: dict[str, str]) -> httpx2.Response:
    return await terminal.post(CLAIM, json={"secret": waiting["secret"]})


async def answer(browser: httpx2.AsyncClient, code: str, *, allow: bool) -> httpx2.Response:
    return await browser.post(ANSWER, json={"code": code, "allow": allow}, headers=OWN_PAGE)


async def in_browser(it: Scene, browser: httpx2.AsyncClient, waiting: dict[str, str]) -> str:
    page = await browser.get(waiting["page"], headers={"Accept": "text/html"})
    assert page.status_code == 303, "who is not logged in is led to the log-in first"
    assert page.headers["location"].startswith("/login?next=/login/terminal%3Fcode")
    await it.log_in(browser)
    return (await browser.get(waiting["page"])).text


async def test_a_person_lets_a_terminal_in_which_then_acts_for_them() -> None:
    async with scene() as it, it.browser() as terminal, it.browser() as browser:
        waiting = await asked(terminal)
        page = await in_browser(it, browser, waiting)
        assert waiting["code"] in page
        assert "laptop" in page
        assert (await claim(terminal, waiting)).json() == {"token": None, "name": None}
        assert (
            await answer(browser, waiting["code"].lower().replace("-", ""), allow=True)
        ).status_code == 200
        given = (await claim(terminal, waiting)).json()
        assert given["name"] == "ada"
        assert (await claim(terminal, waiting)).json() == given, "a lost answer may be asked for again"
        async with it.running.as_user(given["token"]) as program:
            who = (await program.get("/api/whoami")).json()
            assert "jobs.read" in who["permissions"]
            assert "*" not in who["permissions"]
            assert problem(await program.get("/api/admin/users")) == (403, "forbidden")
            assert problem(await answer(program, waiting["code"], allow=True)) == (409, "not_a_user")
            it.provider.people["s-ada"]["groups"] = []
            await it.log_in(browser)
            assert problem(await program.get("/api/jobs")) == (401, "invalid_token")


async def test_a_code_is_answered_once_and_dies_with_its_time() -> None:
    async with scene() as it, it.browser() as terminal, it.browser() as browser:
        await it.log_in(browser)
        refused = await asked(terminal)
        assert (await answer(browser, refused["code"], allow=False)).status_code == 200
        assert problem(await claim(terminal, refused)) == (404, "not_found")
        assert problem(await answer(browser, refused["code"], allow=True)) == (404, "not_found")
        late = await asked(terminal)
        it.running.clock.at += 601
        assert problem(await answer(browser, late["code"], allow=True)) == (404, "not_found")
        assert problem(await claim(terminal, late)) == (404, "not_found")
        assert problem(await terminal.post(ANSWER, json={"code": late["code"], "allow": True}))[0] == 401
        other = await asked(terminal)
        foreign = await browser.post(
            ANSWER, json={"code": other["code"], "allow": True}, headers={"Origin": "https://evil.example"}
        )
        assert problem(foreign) == (403, "foreign_origin")
        for _ in range(19):
            await asked(terminal)
        assert problem(await terminal.post(ASK, json={})) == (429, "too_many_requests")
