"""Who changes a config and sends it off at once gets the job that they see."""

import asyncio
import re

from playwright.async_api import Page, Route

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.fleet import CONFIGS
from tests.web.stage import Stage

SLOW_CHECK_S = 0.8
CHANGE = """([seed, sends]) => {
  const field = [...document.querySelectorAll('[data-keys~="seed"]')].find((one) => one.checkVisibility());
  field.value = seed;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  if (sends) document.getElementById("send").click();
}"""


async def check_slowly(route: Route) -> None:
    await asyncio.sleep(SLOW_CHECK_S)
    await route.continue_()


async def changed_and_sent(stage: Stage, page_as: Pages) -> Page:
    """Returns the page on which the job was sent in the moment of the change; the server is slow to check it."""
    await stage.machine()
    page = await page_as(stage, "admin")
    await visit(page, "/train?config=sdxl-cats")
    await page.locator("#send[aria-disabled=false]").wait_for()
    await page.route("**/train/check", check_slowly)
    await page.evaluate(CHANGE, ["7", True])
    return page


async def test_a_change_right_before_the_job_is_sent_is_part_of_it(stage: Stage, page_as: Pages) -> None:
    page = await changed_and_sent(stage, page_as)
    await page.wait_for_url(re.compile("/jobs/j_"))
    job_id = page.url.rpartition("/")[2]
    assert (await stage.running.job(job_id))["config_version"] == 2
    assert (await stage.running.get("/api/configs/sdxl-cats"))["settings"]["seed"] == 7


async def test_a_change_after_the_job_was_sent_does_not_change_it(stage: Stage, page_as: Pages) -> None:
    page = await changed_and_sent(stage, page_as)
    async with page.expect_request("**/train/check"):
        await page.evaluate(CHANGE, ["8", False])
    await page.wait_for_url(re.compile("/jobs/j_"))
    assert (await stage.running.get("/api/configs/sdxl-cats"))["settings"]["seed"] == 7


async def test_a_version_that_somebody_else_saves_meanwhile_is_not_the_one_that_runs(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    page = await page_as(stage, "admin")
    await visit(page, "/train?config=sdxl-cats")
    await page.locator("#send[aria-disabled=false]").wait_for()

    async def save_another_first(route: Route) -> None:
        await stage.running.save_config("sdxl-cats", CONFIGS["sd3-ink"])
        await route.continue_()

    await page.route("**/api/queue/submit", save_another_first, times=1)
    await page.evaluate(CHANGE, ["7", True])
    await page.wait_for_url(re.compile("/jobs/j_"))
    assert (await stage.running.get("/api/configs/sdxl-cats"))["version"] == 3
    assert (await stage.running.job(page.url.rpartition("/")[2]))["config_version"] == 2
