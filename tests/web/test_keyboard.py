"""Without a mouse: a training is submitted, watched and cancelled, and a worker created. One always sees where one is."""

import re

from playwright.async_api import Locator, Page, expect

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.fleet import CONFIGS
from tests.web.stage import Stage

MOST_TABS = 80
RINGED = """
(element) => {
  const drawn = (one) => {
    const style = getComputedStyle(one);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  };
  return drawn(element) || [...element.parentElement.children].some(drawn) || drawn(element.parentElement);
}
"""


async def tab_to(page: Page, wanted: Locator, key: str = "Tab") -> None:
    """By this key alone; wherever it stops on the way, the focus can be seen."""
    target = await wanted.element_handle()
    for _ in range(MOST_TABS):
        await page.keyboard.press(key)
        held = (await page.evaluate_handle("document.activeElement")).as_element()
        assert held
        assert await held.evaluate(RINGED), await held.evaluate("(one) => one.outerHTML.slice(0, 200)")
        if await page.evaluate("([one, other]) => one === other", [held, target]):
            return
    raise AssertionError(f"{wanted} is not reached by {key}")


async def go(page: Page, key: str, path: str) -> None:
    await page.keyboard.press("g")
    await page.keyboard.press(key)
    await page.wait_for_url(f"**{path}")
    await page.wait_for_selector("#live[data-state=live]")


async def test_a_training_is_submitted_watched_and_cancelled(stage: Stage, page_as: Pages) -> None:
    machine = await stage.machine()
    await stage.running.save_config("tea-house", CONFIGS["sd3-ink"])
    page = await page_as(stage, "admin")
    await visit(page, "/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await go(page, "t", "/train")
    pick = page.get_by_label("Start from", exact=True)
    await tab_to(page, pick)
    await page.keyboard.type("tea")
    await page.wait_for_url("**/train?config=tea-house")
    await tab_to(page, page.get_by_role("button", name="Train in Cloud"))
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/jobs/j_"))
    work = await machine.hold()
    await work.report("running")
    await work.train(range(30), 6000, 3.0)
    await expect(page.locator("#progress")).to_contain_text("30")

    await go(page, "j", "/jobs")
    await page.keyboard.press("j")
    await expect(page.get_by_role("link", name="tea-house").first).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/jobs/{work.job_id}")
    await page.wait_for_selector("#live[data-state=live]")
    await tab_to(page, page.get_by_role("button", name="Cancel", exact=True))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await tab_to(page, page.get_by_role("button", name="Cancel the job"))
    await page.keyboard.press("Enter")
    await machine.events.next("job_cancel")
    await work.report("cancelled", exit_signal=15)
    await expect(page.locator("#state")).to_contain_text("Cancelled")


async def test_a_worker_is_created(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/")
    await go(page, "w", "/admin/workers")
    await tab_to(page, page.get_by_role("link", name="Create Worker").first)
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Name", exact=True)).to_be_focused()
    await page.keyboard.type("gpu-7")
    await tab_to(page, page.get_by_role("radio", name=re.compile("Persistent")))
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("radio", name=re.compile("Ephemeral"))).to_be_checked()
    await tab_to(page, page.get_by_role("button", name="Create Worker"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Start it on the GPU machine")).to_be_focused()
    await expect(page.get_by_text("Waiting for gpu-7")).to_be_visible()


async def test_the_keys_are_listed_and_can_be_turned_off(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keyboard")
    await expect(sheet).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(sheet).to_be_hidden()
    await page.keyboard.press("/")
    await expect(page.locator("main [data-search]")).to_be_focused()
    await page.keyboard.type("?gj")
    await expect(sheet).to_be_hidden()
    await expect(page.locator("main [data-search]")).to_have_value("?gj")

    await page.keyboard.press("Escape")
    await page.locator("main [data-search]").blur()
    await page.keyboard.press("?")
    await page.get_by_label("Enable single-key shortcuts").press("Space")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(sheet).to_be_hidden()


async def test_a_button_that_has_acted_keeps_the_focus(stage: Stage, page_as: Pages) -> None:
    machine = await stage.machine()
    await stage.running.post(f"/api/admin/workers/{machine.id}/drain", {})
    page = await page_as(stage, "admin")
    await visit(page, f"/admin/workers/{machine.id}")
    await page.get_by_role("button", name="Resume").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#worker-actions").get_by_role("button", name="Drain")).to_be_focused()
