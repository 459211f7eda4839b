"""Every page, in every language and theme, for everybody: nothing breaks, and nobody is kept out."""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.web.browser import (
    CONTRAST,
    LANGUAGES,
    NARROWEST,
    WIDE,
    Role,
    Watch,
    assert_all_is_named,
    axe,
    prefer,
    resize,
    visit,
    watched_context,
    wear,
)
from tests.web.conftest import ONE_LOOP
from tests.web.console import Console
from tests.web.page_table import PAGES, PageRow, page_paths
from tests.web.stage import Stage

LANDED = [row for row in PAGES if row.path in page_paths()]
WIDER_THAN_THE_WINDOW = """
() => {
  const scrolls = (element) => element !== document.body && getComputedStyle(element).overflowX !== "visible";
  const inside = (element) => element && (scrolls(element) || inside(element.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .filter((element) => !inside(element.parentElement))
    .map((element) => element.outerHTML.slice(0, 120));
}
"""
each_page = pytest.mark.parametrize("row", LANDED, ids=lambda row: f"{row.path} {row.role}")


def test_every_page_of_the_route_table_is_looked_at() -> None:
    assert page_paths() - {row.path for row in PAGES} == set()


Watched = Callable[[Role], Awaitable[tuple[Page, Watch]]]


@pytest_asyncio.fixture(scope="module", loop_scope=ONE_LOOP)
async def watched(browser: Browser, fleet: Console) -> AsyncIterator[Watched]:
    """One page for each role, for all rows: starting a browser's process costs more than most rows do."""
    opened: dict[Role, tuple[Page, Watch]] = {}

    async def page_of(role: Role) -> tuple[Page, Watch]:
        if role not in opened:
            context, watch = await watched_context(browser, fleet.url, cookies=fleet.cookies(role))
            opened[role] = await context.new_page(), watch
        return opened[role]

    yield page_of
    for page, _watch in opened.values():
        await page.context.close()


@each_page
async def test_a_page_is_good_in_five_languages_and_two_themes(
    fleet: Console, watched: Watched, row: PageRow
) -> None:
    """All rules in English; in other languages, and where they show something else, those that can be broken there.

    One language, with long words, is read in a dark window of 320 pixels.
    """
    page, watch = await watched(row.role)
    for turn, language in enumerate(LANGUAGES):
        narrow = language == "pt-BR"
        await prefer(page, fleet.url, language, "dark" if narrow else "light")
        await resize(page, NARROWEST if narrow else WIDE)
        answer = await visit(page, row.url(fleet.state, turn))
        assert answer.status == 200, f"{row.path} in {language}"
        assert (await page.locator("html").get_attribute("lang") or "").startswith(language)
        await assert_all_is_named(page)
        if narrow:
            assert await page.locator("html").get_attribute("data-theme") == "dark"
            width = await page.evaluate("document.scrollingElement.scrollWidth")
            assert width <= NARROWEST[0], await page.evaluate(WIDER_THAN_THE_WINDOW)
        if turn == 0:
            await axe(page)
            await wear(page, "dark")
        if turn < row.variants:
            await axe(page, only=CONTRAST)
    await page.goto("about:blank")
    watch.check()


def ask(fleet: Console, row: PageRow, role: Role) -> httpx2.Response:
    headers = {"accept": "text/html", "cookie": "; ".join(f"{k}={v}" for k, v in fleet.cookies(role).items())}
    return fleet.world.client.get(fleet.url + row.url(fleet.state), headers=headers)


@each_page
def test_a_page_has_a_policy_without_exceptions(fleet: Console, row: PageRow) -> None:
    answer = ask(fleet, row, row.role)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_stranger_is_led_to_the_log_in(stage: Stage) -> None:
    async with stage.running.as_user(None) as stranger:
        for row in LANDED:
            path = row.path.replace("{id}", "x").replace("{name}", "x").replace("{page}", "first-hour")
            answer = await stranger.get(path, headers={"accept": "text/html"})
            if row.role == "nobody":
                assert answer.status_code == 200, path
            else:
                assert answer.status_code == 303, path
                assert answer.headers["location"].startswith("/login?next=/"), path


@each_page
@pytest.mark.parametrize("role", ["member", "viewer"])
def test_others_see_the_page_or_what_is_missing(fleet: Console, row: PageRow, role: Role) -> None:
    answer = ask(fleet, row, role)
    assert answer.status_code in (200, 403)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
