"""The log-in with a provider as a person walks through it in a browser: in, with other groups, with new keys, out."""

from pathlib import Path

from playwright.async_api import Browser, Page, expect

from tests.http.sign_in_kit import Scene, scene
from tests.web.browser import WIDE


async def walk_in(it: Scene, page: Page) -> None:
    await page.goto(f"{it.running.listening.url}/me")
    await page.get_by_role("link", name="Log in with Corp").click()
    await page.locator("#yes").click()
    await expect(page).to_have_url(f"{it.running.listening.url}/me")


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
        await page.goto(f"{it.running.listening.url}/me")
        await page.get_by_role("button", name="Log out here").click()
        await expect(page).to_have_url(f"{it.running.listening.url}/login")
        assert len(it.provider.logouts) == 1
        await page.goto(f"{it.running.listening.url}/jobs")
        await expect(page).to_have_url(f"{it.running.listening.url}/login?next=/jobs")
        await context.close()
        await other.context.close()
