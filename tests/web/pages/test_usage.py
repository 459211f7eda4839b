"""Usage: a price is set in the page, a job says what it costs, and the report shows it."""

from playwright.async_api import expect

from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def test_a_price_is_set_and_what_was_used_is_shown(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await stage.machine("gpu-1")
    await visit(page, "/usage")
    await expect(page.locator("#idle")).to_contain_text("What that costs is not known")
    await page.get_by_role("button", name="Set a price").first.click()
    dialog = page.get_by_role("dialog", name="Set a price")
    await dialog.get_by_label("A GPU-hour, in USD").fill("0.085")
    await dialog.get_by_label("Name of the GPU, with wildcards").fill("*A100*")
    await axe(page)
    await dialog.get_by_role("button", name="Set a price").click()
    prices = page.get_by_role("region", name="Prices")
    await expect(prices).to_contain_text("0.085 USD")
    work = await stage.begin()
    await visit(page, f"/jobs/{work.job_id}")
    await expect(page.locator("#facts")).to_contain_text("USD an hour")
    await visit(page, "/usage?by=gpu")
    await expect(page.get_by_role("region", name="Used")).to_contain_text("A100")
    await axe(page)
    await visit(page, "/quotas")
    await page.get_by_role("button", name="Set a quota").first.click()
    dialog = page.get_by_role("dialog", name="Set a quota")
    await dialog.get_by_label("What").select_option("money_month")
    await dialog.get_by_label("Whose").select_option("all")
    await dialog.get_by_label("Ceiling", exact=True).fill("12.50")
    await dialog.get_by_role("button", name="Set a quota").click()
    await expect(page.locator("#all-quotas")).to_contain_text("12.50 USD")
