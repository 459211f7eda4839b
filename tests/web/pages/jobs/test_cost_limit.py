"""A cost limit: given in the form, shown and raised on the job's page."""

import re

from playwright.async_api import expect

from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def test_a_cost_limit_is_given_shown_and_raised(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await stage.machine("gpu-1")
    await visit(page, "/train?config=sdxl-cats")
    limit = page.get_by_label("Maximum for the whole job (USD)")
    await limit.fill("5.00")
    await page.get_by_text("More options").click()
    await page.get_by_label("When the maximum cost is near").select_option("finish")
    await expect(page.locator("#outlook")).to_contain_text("the price of matching workers is not known")
    await axe(page)
    await page.get_by_role("button", name="Train in Cloud").click()
    await page.wait_for_url(re.compile(r"/jobs/j_"))
    await expect(page.locator("#cost-limit")).to_contain_text("0.00 USD of 5.00 USD spent")
    await expect(page.locator("#cost-limit")).to_contain_text("the running attempt may finish")
    await page.get_by_role("button", name="Edit", exact=True).click()
    dialog = page.locator("#edit-job")
    await dialog.get_by_label("Maximum for the whole job (USD)").fill("7.50")
    await dialog.get_by_label("When the maximum cost is near").select_option("stop")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog).to_be_hidden()
    await expect(page.locator("#cost-limit")).to_contain_text("of 7.50 USD spent")
    await expect(page.locator("#cost-limit")).not_to_contain_text("may finish")
