"""The first minute with a new server: the link it prints, a name and a password, and what to do next."""

import re

from playwright.async_api import expect

from tests.web.browser import axe
from tests.web.console import Console, Pages

LINK = re.compile(r"http://\S+/start\?k=\S+")
PASSWORD = "seven calm hours"


def printed_link(console: Console) -> str:
    match = LINK.search(console.world.orchestrator.says("/start?k="))
    assert match
    return match[0]


async def test_the_printed_link_leads_to_a_console_that_says_what_to_do_next(
    own_empty: Console, page_as: Pages
) -> None:
    link = printed_link(own_empty)
    page = await page_as(own_empty, "nobody")
    await page.goto(link)
    await expect(page.get_by_label("Name")).to_be_focused()
    await axe(page)
    await page.get_by_label("Name").fill("Ada")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Begin").click()

    await page.wait_for_url(f"{own_empty.url}/")
    await expect(page.get_by_role("heading", name="Add your first GPU machine")).to_be_visible()
    await expect(page.locator("main .button.primary")).to_have_count(1)
    await expect(page.get_by_text("simpletuner workers create gpu-1", exact=True)).to_be_visible()
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.locator("main").get_by_role("button", name="Copy").first.click()
    assert await page.evaluate("navigator.clipboard.readText()") == "simpletuner workers create gpu-1"
    for path in ("/jobs", "/fleet", "/admin/workers", "/configs"):
        await page.goto(path)
        await expect(page.locator("main .empty h2")).to_be_visible()
    await page.goto("/")
    await page.get_by_role("link", name="Create Worker").click()
    await expect(page.get_by_label("Name", exact=True)).to_be_focused()


async def test_the_link_works_once(own_empty: Console, page_as: Pages) -> None:
    link = printed_link(own_empty)
    first, second = await page_as(own_empty, "nobody"), await page_as(own_empty, "nobody")
    page_as.watch(second).expect("Failed to load resource")
    for page in (first, second):
        await page.goto(link)
        await page.get_by_label("Name").fill("Ada")
        await page.get_by_label("Password").fill(PASSWORD)
    await first.get_by_role("button", name="Begin").click()
    await first.wait_for_url(f"{own_empty.url}/")
    await second.get_by_role("button", name="Begin").click()
    await expect(second.locator("[data-problem]")).not_to_be_empty()
    await second.goto(link)
    await expect(second.get_by_role("heading", name="This link no longer works")).to_be_visible()
    await expect(second.get_by_text("simpletuner users link", exact=True)).to_be_visible()
    await second.get_by_role("link", name="Log in with a name and password").click()
    await second.get_by_label("Name").fill("Ada")
    await second.get_by_label("Password").fill(PASSWORD)
    await second.keyboard.press("Enter")
    await second.wait_for_url(f"{own_empty.url}/")
