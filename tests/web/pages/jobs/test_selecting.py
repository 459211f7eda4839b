"""Several jobs are selected at once: what is somebody else's is not acted on, and that is said before."""

import asyncio

from playwright.async_api import Route, expect

from tests.web.browser import assert_all_is_named, axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def test_what_somebody_else_owns_is_selected_to_compare_alone(stage: Stage, page_as: Pages) -> None:
    cats = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="cats")
    dogs = await stage.crew.queue("member", config_name="sdxl-cats", target="worker", name="dogs")
    page = await page_as(stage, "member")
    await visit(page, "/jobs")
    await expect(page.get_by_role("checkbox", name="Select dogs", exact=True)).to_be_visible()
    others = page.get_by_role("checkbox", name="Select cats, somebody else's job: only to compare")
    await expect(others).to_be_visible()
    await page.locator(f"#row-{cats} a.main").focus()
    await page.keyboard.press("x")
    await expect(others).to_be_checked()
    said = page.get_by_role("status").filter(has_text="selected")
    await expect(said).to_contain_text("1 job selected")
    await expect(said).to_contain_text("1 of them is somebody else's: you can only compare it.")
    for name in ("Cancel selected (0)", "Delete selected (0)", "Retry selected (0)"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()
    await page.locator(f"#row-{dogs} a.main").focus()
    await page.keyboard.press("x")
    await expect(said).to_contain_text("2 jobs selected")
    await axe(page)
    await assert_all_is_named(page)
    await page.get_by_role("button", name="Cancel selected (1)").click()
    await expect(page.locator("#batch-cancel-title")).to_have_text("Cancel 1 job?")
    await page.locator("#batch-cancel [data-batch-confirm]").click()
    await expect(page.locator(f"#row-{dogs}")).to_contain_text("Cancelled")
    assert (await stage.running.job(cats))["status"] == "queued"

    await expect(page.get_by_role("button", name="Delete selected (0)")).to_be_disabled()
    await stage.running.post(f"/api/jobs/{cats}/cancel")
    await expect(page.locator(f"#row-{cats}")).to_contain_text("Cancelled")
    for name in ("Delete selected (0)", "Retry selected (0)"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()


async def test_an_administrator_acts_on_everybodys_jobs(stage: Stage, page_as: Pages) -> None:
    dogs = await stage.crew.queue("member", config_name="sdxl-cats", target="worker", name="dogs")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await page.get_by_role("checkbox", name="Select dogs", exact=True).check()
    await expect(page.get_by_role("status").filter(has_text="selected")).to_have_text("1 job selected")
    await page.get_by_role("button", name="Cancel selected (1)").click()
    await page.locator("#batch-cancel [data-batch-confirm]").click()
    await expect(page.locator(f"#row-{dogs}")).to_contain_text("Cancelled")


async def test_while_selected_jobs_are_acted_on_no_other_act_can_be_asked_for(
    stage: Stage, page_as: Pages
) -> None:
    ended = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="cats")
    await stage.running.post(f"/api/jobs/{ended}/cancel")
    waits = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="dogs")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await may_go_on.wait()
        await route.continue_()

    await page.route("**/retry", hold)
    for job in (ended, waits):
        await page.locator(f"[data-pick={job}]").check()
    await page.get_by_role("button", name="Retry selected (1)").click()
    await asked.wait()
    await expect(page.get_by_role("button", name="Cancel selected (1)")).to_be_disabled()
    may_go_on.set()
    await expect(page.locator("#toasts")).to_contain_text("1 job is queued again.")
    await page.get_by_role("button", name="Cancel selected (1)").click()
    await page.locator("#batch-cancel [data-batch-confirm]").click()
    await expect(page.locator(f"#row-{waits}")).to_contain_text("Cancelled")


async def test_what_is_selected_is_not_read_out_again_when_the_list_changes(
    stage: Stage, page_as: Pages
) -> None:
    await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="cats")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await page.get_by_role("checkbox", name="Select cats", exact=True).check()
    await page.evaluate("""() => {
      window.said = 0;
      const said = document.querySelector("[data-batch] [role=status]");
      const seen = new MutationObserver((changes) => { window.said += changes.length; });
      seen.observe(said, { childList: true, subtree: true });
      document.addEventListener("refreshed", () => { window.refreshed = true; });
    }""")
    await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="dogs")
    await expect(page.get_by_role("link", name="dogs")).to_be_visible()
    await page.wait_for_function("window.refreshed")
    assert await page.evaluate("window.said") == 0
    await page.get_by_role("checkbox", name="Select dogs", exact=True).check()
    await page.wait_for_function("window.said > 0")
