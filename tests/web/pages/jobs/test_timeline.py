"""The last day on the overview, looked at more closely, with the mouse and without."""

import re

from playwright.async_api import expect

from tests.web.browser import barriers, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def test_the_timeline_zooms_and_moves_by_links_and_by_keys(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    await stage.begin(name="on-the-lane")
    page = await page_as(stage, "admin")
    await visit(page, "/?view=fleet")
    timeline, bar = page.locator("#timeline"), page.locator("#timeline a rect.run")
    steps = page.get_by_role("navigation", name="Part of the timeline")
    await expect(bar).to_have_count(1)
    await expect(page.get_by_role("heading", name="Last 24 hours")).to_be_visible()
    for name in ("Zoom out", "Earlier", "Later"):
        await expect(steps.get_by_role("link", name=name)).to_have_attribute("aria-disabled", "true")
    assert await barriers(page) == []

    await steps.get_by_role("link", name="Zoom in").click()
    await page.wait_for_url(re.compile("hours=12&back=6#timeline"))
    await expect(bar).to_have_count(0)
    # The keys work on from here: nobody has to find the timeline again.
    await expect(timeline).to_be_focused()
    await page.keyboard.press("ArrowRight")
    await page.wait_for_url(re.compile("hours=12&back=0#timeline"))
    await expect(bar).to_have_count(1)
    await expect(timeline).to_be_focused()
    await page.keyboard.press("-")
    await page.wait_for_url(re.compile("hours=24&back=0#timeline"))
    await expect(page.get_by_role("heading", name="Last 24 hours")).to_be_visible()
    await page.get_by_text("Show as table").click()
    await expect(page.locator("#day tbody")).to_contain_text("on-the-lane")
