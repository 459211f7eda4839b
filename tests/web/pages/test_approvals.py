"""Approvals: a rule is made in the page, holds a job, is shown in words, and is deleted."""

import re

from playwright.async_api import expect

from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def test_a_rule_by_cost_is_made_holds_a_job_and_is_deleted(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/approvals")
    await expect(page.locator("#rules")).to_contain_text("No rule asks for approval.")
    await page.get_by_role("button", name="Create a rule").press("Enter")
    dialog = page.get_by_role("dialog", name="Create a rule")
    await expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    await page.keyboard.type("dear")
    await dialog.get_by_label("May cost more than, in USD").fill("12.50")
    await dialog.get_by_label("Name of the config, with wildcards").fill("sdxl-*")
    await dialog.get_by_label("Names of the people").fill("Nobody At All")
    await dialog.get_by_label("Those who may approve every job need no approval").uncheck()
    await axe(page)
    page_as.watch(page).expect("422")
    await dialog.get_by_role("button", name="Create a rule").click()
    wrong = dialog.get_by_label("Names of the people")
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await expect(dialog.locator("#wrong-people")).to_contain_text("There is no user 'Nobody At All'.")
    await wrong.fill("")
    await dialog.get_by_role("button", name="Create a rule").click()
    row = page.get_by_role("row", name=re.compile("dear"))
    await expect(row).to_contain_text("may cost more than 12.50 USD, or nobody can say what")
    await expect(row).to_contain_text("a config named sdxl-*")
    await expect(row).to_contain_text("1 approval by leads of the job's team")
    await axe(page)

    await row.get_by_role("link", name="Change the rule dear").press("Enter")
    form = page.get_by_role("region", name="Change the rule dear")
    await expect(form.get_by_label("May cost more than, in USD")).to_have_value("12.5")
    await expect(form.get_by_label("Those who may approve every job need no approval")).not_to_be_checked()
    await axe(page)
    await form.get_by_label("May cost more than, in USD").fill("11")
    await form.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("may cost more than 11.00 USD")
    await expect(row).to_contain_text("a config named sdxl-*")

    await stage.machine("gpu-1")
    await stage.running.post("/api/prices", {"price_micros": 2_000_000})
    cheap = await stage.crew.submit("admin", config_name="sdxl-cats", target="worker", time_limit_s=3_600)
    dear = await stage.crew.submit("admin", config_name="sdxl-cats", target="worker", time_limit_s=36_000)
    assert (cheap["status"] != "blocked", dear["status"]) == (True, "blocked"), (cheap, dear)

    await row.get_by_role("button", name="Delete the rule dear").press("Enter")
    await page.get_by_role("dialog", name="Delete this rule?").get_by_role("button", name="Delete").click()
    await expect(page.locator("#rules")).to_contain_text("No rule asks for approval.")
    section = page.get_by_role("region", name="Your jobs waiting for others")
    await expect(section).to_contain_text("dear")
