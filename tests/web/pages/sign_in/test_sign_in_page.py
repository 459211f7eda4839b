"""The log-in with a provider as a person walks through it in a browser: in, with other groups, with new keys, out."""

import asyncio
import os
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from simpletuner_fleet.client import credentials
from simpletuner_fleet.core.people.sign_in.providers import TeamGroups
from tests.e2e.processes import SIMPLETUNER
from tests.http.sign_in_kit import Scene, added_scene, scene
from tests.openid_provider import CLIENT, SECRET
from tests.web.browser import WIDE

WITHIN_S = 30.0


async def walk_in(it: Scene, page: Page) -> None:
    await page.goto(f"{it.running.listening.url}/me")
    await page.get_by_role("link", name="Log in with Corp").click()
    await page.locator("#yes").click()
    await expect(page).to_have_url(f"{it.running.listening.url}/me")


async def the_browser_leads_back(it: Scene, page: Page, folder: Path) -> None:
    """The real command at a real terminal; the browser that it opens is this page."""
    opened, script = folder / "opened", folder / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}.new" && mv "{opened}.new" "{opened}"\n')
    script.chmod(0o700)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DISPLAY": ":9", "BROWSER": str(script)}
    ours, theirs = os.openpty()
    command = await asyncio.create_subprocess_exec(
        SIMPLETUNER,
        "login",
        it.running.listening.url,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        async with asyncio.timeout(WITHIN_S):
            while not opened.exists():
                assert command.returncode is None, os.read(ours, 4096)
                await asyncio.sleep(0.02)
            await page.goto(opened.read_text())
            await expect(page.get_by_text("act as ada")).to_be_visible()
            await page.screenshot(path=str(folder / "browser.png"))
            await page.get_by_role("button", name="Allow").click()
            await expect(page.get_by_text("The terminal is logged in.")).to_be_visible()
            assert await command.wait() == 0, os.read(ours, 4096)
    finally:
        if command.returncode is None:
            command.kill()
            await command.wait()
        os.close(ours)
    await expect(page).to_have_url(f"{it.running.listening.url}/login/terminal?done=yes")
    [kept] = credentials.read(folder / ".config/simpletuner/credentials.toml").servers.values()
    async with it.running.as_user(kept.token) as program:
        assert (await program.get("/api/whoami")).json()["permissions"] == ["*"], "she is an administrator"


async def test_a_person_walks_in_with_changing_groups_and_keys_and_out_again(
    browser: Browser, tmp_path: Path
) -> None:
    async with scene() as it:
        it.provider.form = True
        context = await browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}, locale="en")
        page = await context.new_page()
        await page.goto(f"{it.running.listening.url}/login")
        await expect(page.get_by_label("Password")).to_be_hidden()
        await page.screenshot(path=str(tmp_path / "login.png"))
        await walk_in(it, page)
        await expect(page.get_by_text("You log in with Corp")).to_be_visible()
        it.provider.people["s-ada"]["groups"] = ["ml-admins"]
        it.provider.rotate(keep_old=True)
        it.running.deps.sign_in.provider("corp")._keys._asked_at = None
        other = await (await browser.new_context(locale="en")).new_page()
        await walk_in(it, other)
        await page.reload()
        await expect(page.get_by_text("everything", exact=True)).to_be_visible()
        async with it.browser() as terminal:
            asked = (await terminal.post("/api/login/terminals", json={"name": "laptop"})).json()
            await page.goto(asked["page"])
            await page.screenshot(path=str(tmp_path / "terminal.png"))
            await page.get_by_role("button", name="Allow").click()
            await expect(page.get_by_text("The terminal is logged in.")).to_be_visible()
            given = await terminal.post("/api/login/terminals/claim", json={"secret": asked["secret"]})
            assert given.json()["name"] == "ada"
        await the_browser_leads_back(it, page, tmp_path)
        await page.goto(f"{it.running.listening.url}/me")
        await page.get_by_role("button", name="Log out here").click()
        await expect(page).to_have_url(f"{it.running.listening.url}/login")
        assert len(it.provider.logouts) == 1
        await page.goto(f"{it.running.listening.url}/jobs")
        await expect(page).to_have_url(f"{it.running.listening.url}/login?next=/jobs")
        await context.close()
        await other.context.close()


async def test_an_administrator_adds_a_provider_tests_it_and_switches_it_on_and_off(
    browser: Browser, tmp_path: Path
) -> None:
    async with added_scene(tmp_path) as it:
        it.provider.form = True
        base = it.running.listening.url
        await it.running.post(
            "/api/admin/users", {"name": "root", "role": "admin", "password": "a long password"}
        )
        await it.running.post("/api/teams", {"name": "a.b"})
        context = await browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}, locale="en")
        page = await context.new_page()
        await page.goto(f"{base}/login?next=/admin/users/sign-in")
        await page.get_by_label("Name").fill("root")
        await page.get_by_label("Password").fill("a long password")
        await page.get_by_role("button", name="Log in").click()
        await expect(page).to_have_url(f"{base}/admin/users/sign-in")
        await page.get_by_label("Name", exact=True).fill("corp")
        await page.get_by_label("Words on the button").fill("Corp")
        await page.get_by_label("Issuer").fill(it.provider.issuer)
        await page.get_by_label("Client id").fill(CLIENT)
        await page.get_by_label("Client secret").fill(SECRET)
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("No group of 'corp' has a role")
        await page.get_by_role("textbox", name="Member").first.fill("ml\nresearch")
        await page.get_by_text("Groups and teams").click()
        await page.get_by_role("group", name="a.b").get_by_label("Lead").fill("ml")
        await page.get_by_role("button", name="Add", exact=True).click()
        row = page.locator("#provider-corp")
        await expect(row.get_by_text("not tested as it is now")).to_be_visible()
        [stored] = it.running.fleet.organisation.providers
        assert stored.provider.roles.member == ("ml", "research")
        assert stored.provider.teams == {"a.b": TeamGroups(lead=("ml",))}
        await row.get_by_role("button", name="Test Corp").click()
        await expect(row.get_by_text("It accepts the client id and the secret.")).to_be_visible()
        await expect(row.locator(".badge", has_text="Good")).to_have_count(10)
        await row.get_by_role("button", name="Switch Corp on").click()
        await expect(row.get_by_text("Active")).to_be_visible()
        await page.screenshot(path=str(tmp_path / "providers.png"), full_page=True)
        person = await (await browser.new_context(locale="en")).new_page()
        await walk_in(it, person)
        await row.get_by_role("button", name="Switch Corp off").click()
        dialog = page.get_by_role("dialog", name="Switch this provider off?")
        await expect(dialog).to_contain_text("logged out at once")
        await dialog.get_by_role("button", name="Switch off").click()
        await expect(row.get_by_text("Disabled")).to_be_visible()
        await person.goto(f"{base}/me")
        await expect(person).to_have_url(f"{base}/login?next=/me")
        await expect(person.get_by_role("link", name="Log in with Corp")).to_have_count(0)
        await context.close()
        await person.context.close()
