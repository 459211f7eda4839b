"""An ended job is deleted on its page and from the list, once somebody confirms what goes; and a start time is set."""

import re

from playwright.async_api import Page, expect

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def cancelled(stage: Stage, *names: str) -> list[str]:
    ids = [
        await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=name) for name in names
    ]
    for job_id in ids:
        await stage.running.post(f"/api/jobs/{job_id}/cancel")
    return ids


async def lists(page: Page, *names: str) -> None:
    await expect(page.locator("tbody tr[data-job] a.main")).to_have_text([*names])


async def test_ended_jobs_are_deleted_one_by_one_selected_and_all_matching(
    stage: Stage, page_as: Pages
) -> None:
    (cats, dogs, _) = await cancelled(stage, "cats", "dogs", "owls")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{cats}")
    await page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("record, log, curves, checkpoints and artifacts are deleted")
    await dialog.get_by_role("button", name="Delete the job").click()
    await page.wait_for_url(re.compile("/jobs$"))
    await lists(page, "owls", "dogs")

    await page.locator(f"[data-pick={dogs}]").check()
    await page.get_by_role("button", name="Delete selected").first.click()
    await expect(page.locator("#batch-delete-title")).to_have_text("Delete 1 job?")
    await page.locator("#batch-delete [data-batch-confirm]").click()
    await lists(page, "owls")

    await visit(page, "/jobs?q=owls")
    await page.get_by_role("button", name="Act on all matching…").click()
    await page.locator("#matching-act").select_option("delete")
    await page.get_by_role("button", name="Delete 1 job").click()
    await expect(page.locator("tbody tr[data-job]")).to_have_count(0)


async def test_a_start_time_is_set_and_shown_in_the_browsers_own_zone(stage: Stage, page_as: Pages) -> None:
    job_id = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="late")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{job_id}")
    await page.get_by_role("button", name="Edit", exact=True).click()
    soon = await page.evaluate(
        "seconds => { const at = new Date(seconds * 1000 + 3600000);"
        " return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16); }",
        stage.running.clock.at,
    )
    await page.locator("#edit-start").fill(soon)
    await page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    await expect(page.locator("#edit-job")).to_be_hidden()
    await expect(page.locator("main")).to_contain_text("Start no earlier than")
    job = await stage.running.job(job_id)
    assert job["explain"]["code"] == "START_TIME"
    await visit(page, f"/jobs/{job_id}")
    await page.get_by_role("button", name="Edit", exact=True).click()
    await expect(page.locator("#edit-start")).to_have_value(soon)
