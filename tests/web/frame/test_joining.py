"""A page joins the stream that all tabs of its browser share, and misses nothing before that."""

import asyncio
from collections.abc import Awaitable, Callable

from playwright.async_api import Page, Route, expect

from tests.web.browser import SETTLED, visit
from tests.web.console import Pages
from tests.web.fleet import PEOPLE
from tests.web.stage import Stage


async def visit_while(page: Page, path: str, change: Callable[[], Awaitable[object]]) -> None:
    """Visits the page; the change is made after the server's answer and before the page's scripts."""
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await may_go_on.wait()
        await route.continue_()

    # The route stays: taking it away while the page loads is one more thing that the browser has to wait for.
    await page.route("**/js/frame/app.js", hold)
    # Only until the answer comes: a page that is held here on purpose does not use up the patience for its loading.
    await page.goto(path, wait_until="commit")
    await asked.wait()
    await change()
    may_go_on.set()
    await page.wait_for_selector(SETTLED, state="attached")


async def test_what_changes_before_the_first_page_is_live_is_shown(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit_while(page, "/admin/workers", lambda: stage.machine("nova"))
    await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def test_what_changes_before_a_further_tab_is_live_is_shown(stage: Stage, page_as: Pages) -> None:
    first = await page_as(stage, "admin")
    await visit(first, "/jobs")
    tab = await first.context.new_page()
    await visit_while(tab, "/admin/workers", lambda: stage.machine("nova"))
    await expect(tab.get_by_role("link", name="nova")).to_be_visible()


async def test_a_page_of_somebody_who_logged_out_becomes_that_of_who_logged_in_since(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await expect(page.locator(".rail-foot")).to_contain_text(PEOPLE["admin"])
    session = stage.cookies("member")
    await page.context.add_cookies(
        [{"name": name, "value": value, "url": stage.url} for name, value in session.items()]
    )
    await stage.crew.queue("member", config_name="sdxl-cats", target="worker", name="cats")
    await expect(page.locator(".rail-foot")).to_contain_text(PEOPLE["member"])
