"""The log-in with a strict provider of others' making, as a person walks through it in a browser and in a terminal."""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from simpletuner_fleet.core.people.sign_in.providers import Provider, TeamGroups
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn, SignInSettings
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.frame.problems import problem_page
from tests.e2e.processes import SIMPLETUNER
from tests.http.api_kit import Running, TurnedClock, orchestrator
from tests.http.sign_in_kit import ROLES
from tests.openid_provider import CLIENT, SECRET
from tests.strict_provider.running import StrictProvider, strict_provider

WITHIN_S = 60.0
TEAMS = {"vision": TeamGroups(lead=("vision-leads",), member=("vision",))}


class WallClock(TurnedClock):
    """The provider's clock cannot be turned."""

    def now(self) -> float:
        return time.time()


class Walk:
    def __init__(self, browser: Browser, running: Running, provider: StrictProvider) -> None:
        self.browser, self.running, self.provider = browser, running, provider
        self.url = running.listening.url

    async def fresh_page(self) -> Page:
        """In a browser that nobody has logged in with."""
        context = await self.browser.new_context(locale="en")
        context.set_default_timeout(WITHIN_S * 1000)
        await context.route(lambda url: "//127.0.0.1:" not in url, _nowhere)
        return await context.new_page()

    async def log_in(self, page: Page, following: str = "/me", *, known: bool = False) -> None:
        """`known`: the provider remembers that this browser was allowed to tell us."""
        await page.goto(f"{self.url}{following}")
        await page.get_by_role("link", name="Log in with Corp").click()
        await page.get_by_placeholder("Enter any login").fill("s-ada")
        await page.get_by_placeholder("and password").fill("any")
        await page.get_by_role("button", name="Sign-in").click()
        if not known:
            await page.get_by_role("button", name="Continue").click()
        await expect(page).to_have_url(f"{self.url}{following}")

    async def has_groups(self, *groups: str) -> None:
        await self.provider.tell(people={"s-ada": {"preferred_username": "ada", "groups": groups}})

    async def places(self) -> dict[str, str]:
        teams = (await self.running.get("/api/teams"))["teams"]
        return {member["name"]: member["role"] for one in teams for member in one["members"]}

    async def role(self) -> str:
        [user] = (await self.running.get("/api/admin/users"))["users"]
        assert (user["name"], user["provider"]) == ("ada", self.provider.issuer)
        return str(user["role"])


async def _nowhere(route: Route) -> None:
    """The provider's own pages would fetch a font from far away."""
    await route.abort()


@asynccontextmanager
async def walk_at(browser: Browser, log_file: Path) -> AsyncIterator[Walk]:
    async with strict_provider(log_file) as provider:
        if provider is None:
            pytest.skip("the npm registry cannot be reached from this machine")
        settings = Provider(
            id="corp",
            title="Corp",
            issuer=provider.issuer,
            client_id=CLIENT,
            client_secret=SECRET,
            scopes=("openid", "profile", "groups"),
            roles=ROLES,
            teams=TEAMS,
        )
        sign_in = SignIn(SignInSettings(providers=(settings,)), time.time, WITHIN_S)
        async with orchestrator(
            clock=WallClock(), sign_in=sign_in, pages=routes.ROUTES, problem_page=problem_page
        ) as running:
            await provider.has_client(running.listening.url, "corp")
            await running.post("/api/teams", {"name": "vision"})
            yield Walk(browser, running, provider)
            await sign_in.close()


async def test_a_strict_provider_is_walked_through_from_the_first_log_in_to_the_last_log_out(
    browser: Browser, tmp_path: Path
) -> None:
    async with walk_at(browser, tmp_path / "provider.log") as walk:
        first, second, third = [await walk.fresh_page() for _ in range(3)]
        await walk.has_groups("ml", "vision-leads")
        await walk.log_in(first)
        await expect(first.get_by_text("You log in with Corp")).to_be_visible()
        assert (await walk.role(), await walk.places()) == ("member", {"ada": "lead"})

        await walk.has_groups("ml-admins", "vision")
        await walk.log_in(second)
        assert (await walk.role(), await walk.places()) == ("admin", {"ada": "member"})
        await first.reload()
        await expect(first.get_by_text("everything", exact=True)).to_be_visible()

        await _the_keys_change(walk, third)
        await _a_terminal_is_let_in(walk, first, tmp_path)
        await _somebody_logs_out_at_the_provider(walk, second)
        await first.goto(f"{walk.url}/me")
        await expect(first.get_by_text("You log in with Corp")).to_be_visible()
        await _somebody_logs_out_here(walk, first)
        for page in (first, second, third):
            await page.context.close()


async def _the_keys_change(walk: Walk, page: Page) -> None:
    [before] = (await walk.provider.tell())["keys"]
    assert (await walk.provider.tell(rotate=True))["keys"] != [before]
    ring = walk.running.deps.sign_in.provider("corp")._keys
    assert [kid for kid, _ in ring._keys] == [before]
    assert ring._asked_at is not None
    ring._asked_at -= 31.0
    await walk.log_in(page)
    await expect(page.get_by_text("You log in with Corp")).to_be_visible()


async def _a_terminal_is_let_in(walk: Walk, page: Page, folder: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONUNBUFFERED": "1"}

    async def simpletuner(*words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            SIMPLETUNER, *words, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )

    terminal = await simpletuner("login", walk.url, "--device")
    assert terminal.stderr
    said = (await asyncio.wait_for(terminal.stderr.readline(), WITHIN_S)).decode()
    asked = re.fullmatch(r"Open (\S+) and compare the code: (\S+)\s*", said)
    assert asked, said
    await page.goto(asked[1])
    await expect(page.get_by_text(asked[2])).to_be_visible()
    await page.get_by_role("button", name="Allow").click()
    _, errors = await asyncio.wait_for(terminal.communicate(), WITHIN_S)
    assert (terminal.returncode, b" as ada" in errors) == (0, True), errors
    who, _ = await asyncio.wait_for((await simpletuner("whoami", "--json")).communicate(), WITHIN_S)
    assert json.loads(who)["permissions"] == ["*"], "what an administrator may, as she is one"


async def _somebody_logs_out_at_the_provider(walk: Walk, page: Page) -> None:
    """The provider tells the server by itself: this browser never comes back to say so."""
    await page.goto(f"{walk.provider.issuer}/session/end")
    await page.get_by_role("button", name="Yes, sign me out").click()
    await expect(page.get_by_text("Sign-out Success")).to_be_visible()
    await page.goto(f"{walk.url}/jobs")
    await expect(page).to_have_url(f"{walk.url}/login?next=/jobs")
    [entry] = (await walk.running.get("/api/audit", event_type="user.logout"))["entries"]
    assert entry["details"]["provider"] == "corp"


async def _somebody_logs_out_here(walk: Walk, page: Page) -> None:
    await page.get_by_role("button", name="Log out here").click()
    await page.get_by_role("button", name="Yes, sign me out").click()
    await expect(page).to_have_url(f"{walk.url}/login")
    await page.goto(f"{walk.url}/jobs")
    await expect(page).to_have_url(f"{walk.url}/login?next=/jobs")
    await walk.log_in(page)
