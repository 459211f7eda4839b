"""What the console tells by itself: a job's end, what is wrong with a field, and where somebody wanted to go."""

import re

from playwright.async_api import expect

from simpletuner_fleet.http.access.sessions import COOKIE
from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.stage import Stage

NOTIFICATIONS = """
window.notified = [];
window.Notification = class {
  static permission = "granted";
  static requestPermission() { return Promise.resolve("granted"); }
  constructor(text, options) { window.notified.push([text, options.tag]); }
};
"""


async def test_the_end_of_a_job_is_told_in_the_title_and_by_a_notification(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin(name="cats")
    page = await page_as(stage, "admin")
    await page.add_init_script(NOTIFICATIONS)
    await visit(page, f"/jobs/{work.job_id}")
    await page.get_by_role("button", name="Tell me when it ends").click()
    await expect(page.get_by_role("button", name="Tell me when it ends")).to_have_attribute(
        "aria-pressed", "true"
    )
    await work.report("running", progress={"step": 100, "total": 400})
    await expect(page).to_have_title(re.compile("▶ 25% cats"))
    # Another page of the console tells it as well.
    elsewhere = await page.context.new_page()
    await elsewhere.add_init_script(NOTIFICATIONS)
    await visit(elsewhere, "/help")
    await work.report("completed", exit_code=0)
    await expect(page).to_have_title(re.compile("● cats"))
    await page.wait_for_function("() => window.notified.length")
    assert await page.evaluate("window.notified") == [["cats has completed.", work.job_id]]
    await expect(page.get_by_role("button", name="Tell me when it ends")).to_have_count(0)


async def test_what_one_user_asked_to_be_told_is_told_to_them(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin(name="cats")
    page = await page_as(stage, "admin")
    await page.add_init_script(NOTIFICATIONS)
    await visit(page, f"/jobs/{work.job_id}")
    await page.get_by_role("button", name="Tell me when it ends").click()
    for role in ("member", "admin"):
        session = {"name": COOKIE, "value": stage.sessions[role], "url": stage.url}
        await page.context.add_cookies([session])  # type: ignore[list-item]
        await visit(page, "/jobs")
        if role == "member":
            await work.report("completed", exit_code=0)
            await expect(page.locator(f"#row-{work.job_id}")).to_contain_text("Completed")
            assert await page.evaluate("window.notified") == []
    await page.wait_for_function("() => window.notified.length")


async def test_a_refused_field_is_marked_and_says_what_is_wrong(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("Failed to load resource")
    await visit(page, "/admin/users")
    await page.get_by_role("button", name="Create user").first.click()
    dialog = page.get_by_role("dialog", name="Create user")
    name = dialog.get_by_label("Name")
    await name.evaluate("(field) => field.removeAttribute('maxlength')")
    await name.fill("a" * 300)
    await dialog.get_by_role("button", name="Create user").click()
    await expect(name).to_have_attribute("aria-invalid", "true")
    await expect(dialog.locator(".field-error")).not_to_be_empty()
    await expect(name).to_be_focused()


async def test_whoever_logs_in_first_comes_to_the_whole_address_they_asked_for(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "nobody")
    await page.goto(f"{stage.url}/jobs?show=failed&q=cats")
    assert page.url == f"{stage.url}/login?next=/jobs%3Fshow%3Dfailed%26q%3Dcats"
    await expect(page.get_by_text("simpletuner users reset-password NAME", exact=True)).to_be_visible()
