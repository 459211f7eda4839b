"""Two hundred workers and two thousand jobs: lists are there at once all the same."""

from collections.abc import Iterator

import pytest
from playwright.async_api import Page, Request

from tests.e2e.kit import World
from tests.http.api_kit import until
from tests.web.browser import visit
from tests.web.console import Console, Pages, running_console
from tests.web.page_table import page_paths

LISTS = ("/", "/jobs", "/fleet", "/admin/workers")
WITHOUT_LIST = "/help"
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SOON_MS = 500.0
TIMES_WITHOUT_LIST = 3
"""On a machine that is busy with other things every page is late: then a list may be so much later than a plain page."""
TRIES = 5
IDLE_S = 60
IDLE_BYTES_PER_S = 2048


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(World(tmp_path_factory.mktemp("crowd")), workers=200, jobs=2000) as console:
        yield console


async def painted_after_ms(page: Page, path: str) -> float:
    await visit(page, path)
    await page.wait_for_function(PAINTED)
    return float(await page.evaluate(PAINTED))


@pytest.mark.parametrize("path", [path for path in LISTS if path in page_paths()])
async def test_a_long_list_is_painted_within_half_a_second(
    crowded: Console, page_as: Pages, path: str
) -> None:
    page = await page_as(crowded, "admin")
    seen = []
    for _ in range(TRIES):
        plain, full = await painted_after_ms(page, WITHOUT_LIST), await painted_after_ms(page, path)
        print(f"{path}: a plain page is painted after {plain:.0f} ms, this one after {full:.0f} ms")
        if full < max(SOON_MS, TIMES_WITHOUT_LIST * plain):
            return
        seen.append((plain, full))
    pytest.fail(f"{path}: painted after (a plain page, this one) ms: {seen}")


@pytest.mark.parametrize("path", [path for path in LISTS if path in page_paths()])
async def test_a_page_on_which_nothing_happens_asks_for_next_to_nothing(
    crowded: Console, page_as: Pages, path: str
) -> None:
    """A minute of the page's clock, not of ours. The stream brings a ping of a hundred bytes every 15 seconds besides."""
    page = await page_as(crowded, "admin")
    await page.clock.install()
    await visit(page, path)
    asked: list[Request] = []
    answered: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.on("requestfinished", lambda request: answered.append(request))
    await page.clock.run_for(IDLE_S * 1000)
    await until(lambda: len(asked) == len(answered))
    sizes = [await request.sizes() for request in answered]
    spent = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    print(f"{path}: {spent / IDLE_S:.0f} bytes/s in {len(sizes)} answers")
    assert spent / IDLE_S < IDLE_BYTES_PER_S
