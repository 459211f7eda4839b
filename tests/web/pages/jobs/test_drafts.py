"""What somebody changed and did not save is kept in their tab, and is nobody else's."""

from playwright.async_api import expect

from tests.web.browser import Role, visit
from tests.web.console import Pages
from tests.web.stage import Stage

ADDRESS = "/train?config=sdxl-cats"


async def test_a_draft_is_kept_for_who_wrote_it_and_not_shown_to_who_logs_in_after_them(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")

    async def log_in(role: Role) -> None:
        await page.context.add_cookies(
            [{"name": name, "value": value, "url": stage.url} for name, value in stage.cookies(role).items()]
        )
        await visit(page, ADDRESS)
        await page.locator("#send[aria-disabled]").wait_for()

    await log_in("admin")
    await page.get_by_label("Seed").first.fill("77")
    await expect(page.locator("#saved-state")).to_have_text("Changed, not saved")
    await log_in("member")
    await expect(page.locator("#kept-draft")).to_be_hidden()
    await expect(page.get_by_label("Seed").first).not_to_have_value("77")
    await log_in("admin")
    await expect(page.locator("#kept-draft")).to_be_visible()
    await expect(page.get_by_label("Seed").first).to_have_value("77")
