"""Times are shown in the reader's own customs, and say in full what they mean."""

from playwright.async_api import expect

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.stage import Stage

WHOLE = """(time) => new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "full", timeStyle: "long" })
  .format(Date.parse(time.dateTime))"""
AN_HOUR_EARLIER = """(time) => {
  time.dateTime = new Date(Date.parse(time.dateTime) - 3600000).toISOString();
}"""


async def test_a_time_that_changes_says_the_new_one_in_full(stage: Stage, page_as: Pages) -> None:
    await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="cats")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    time = page.locator("td.when time")
    await expect(time).to_have_attribute("title", await time.evaluate(WHOLE))
    await time.evaluate(AN_HOUR_EARLIER)
    await expect(time).to_have_text("1 hr. ago")
    await expect(time).to_have_attribute("title", await time.evaluate(WHOLE))
