"""Who changes a config and sends it off at once gets the job that they see."""

import asyncio
import re

from playwright.async_api import Page, Route, expect

from tests.web.browser import answer_first, visit
from tests.web.console import Pages
from tests.web.fleet import CONFIGS
from tests.web.stage import Stage

SLOW_CHECK_S = 0.8
CHANGE = """([seed, sends]) => {
  const field = [...document.querySelectorAll('[data-keys~="seed"]')].find((one) => one.checkVisibility());
  field.value = seed;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  if (sends) document.getElementById("send").click();
}"""


async def check_slowly(route: Route) -> None:
    await asyncio.sleep(SLOW_CHECK_S)
    await route.continue_()


async def changed_and_sent(stage: Stage, page_as: Pages) -> Page:
    """Returns the page on which the job was sent in the moment of the change; the server is slow to check it."""
    await stage.machine()
    page = await page_as(stage, "admin")
    await visit(page, "/train?config=sdxl-cats")
    await page.locator("#send[aria-disabled=false]").wait_for()
    await page.route("**/train/check", check_slowly)
    await page.evaluate(CHANGE, ["7", True])
    return page


async def test_a_change_right_before_the_job_is_sent_is_part_of_it(stage: Stage, page_as: Pages) -> None:
    page = await changed_and_sent(stage, page_as)
    await page.wait_for_url(re.compile("/jobs/j_"))
    job_id = page.url.rpartition("/")[2]
    assert (await stage.running.job(job_id))["config_version"] == 2
    assert (await stage.running.get("/api/configs/sdxl-cats"))["settings"]["seed"] == 7


async def test_a_change_after_the_job_was_sent_does_not_change_it(stage: Stage, page_as: Pages) -> None:
    page = await changed_and_sent(stage, page_as)
    async with page.expect_request("**/train/check"):
        await page.evaluate(CHANGE, ["8", False])
    await page.wait_for_url(re.compile("/jobs/j_"))
    assert (await stage.running.get("/api/configs/sdxl-cats"))["settings"]["seed"] == 7


async def test_a_version_that_somebody_else_saves_meanwhile_is_not_the_one_that_runs(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    page = await page_as(stage, "admin")
    await visit(page, "/train?config=sdxl-cats")
    await page.locator("#send[aria-disabled=false]").wait_for()

    async def save_another_first(route: Route) -> None:
        await stage.running.save_config("sdxl-cats", CONFIGS["sd3-ink"])
        await route.continue_()

    await answer_first(page, "**/api/queue/submit", save_another_first)
    await page.evaluate(CHANGE, ["7", True])
    await page.wait_for_url(re.compile("/jobs/j_"))
    assert (await stage.running.get("/api/configs/sdxl-cats"))["version"] == 3
    assert (await stage.running.job(page.url.rpartition("/")[2]))["config_version"] == 2


ASK_SOMETHING = "fetch(location.href).then((answer) => answer.text())"
PRESS_ON = "(button) => { setInterval(() => document.querySelector(button)?.click(), 100) }"
SLOW_PAGE_S = 1.0


async def pressed_until_it_leaves(page: Page, button: str) -> None:
    """Presses the button again and again until the page that it leads to is here, which takes a while."""
    here = page.url

    async def answer_late(route: Route) -> None:
        await asyncio.sleep(SLOW_PAGE_S)
        await route.continue_()

    await page.route(lambda address: "/jobs/j_" in address and address != here, answer_late)
    await page.evaluate(PRESS_ON, button)
    await page.wait_for_url(lambda address: address != here)


async def test_who_presses_twice_sends_one_job(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/train?config=sdxl-cats")
    await page.locator("#send[aria-disabled=false]").wait_for()
    await pressed_until_it_leaves(page, "#send")
    assert len((await stage.running.get("/api/jobs"))["jobs"]) == 1


async def test_who_presses_twice_retries_once(stage: Stage, page_as: Pages) -> None:
    job = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker")
    await stage.running.post(f"/api/jobs/{job}/cancel")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{job}")
    await pressed_until_it_leaves(page, "[data-api$='/retry']")
    assert len((await stage.running.get("/api/jobs"))["jobs"]) == 2


async def test_who_goes_on_by_keyboard_to_the_next_button_means_that_one(
    stage: Stage, page_as: Pages
) -> None:
    team = (await stage.running.post("/api/teams", {"name": "lab"}))["id"]
    users = {one["name"]: one["id"] for one in (await stage.running.get("/api/admin/users"))["users"]}
    for name in ("Bruno", "Chitra"):
        await stage.running.http.put(f"/api/teams/{team}/members/{users[name]}", json={"role": "member"})
    page = await page_as(stage, "admin")
    await visit(page, "/teams")
    first, second = await page.locator("button[data-api*='/members/']").all()
    await first.focus()
    steps = 0
    while not await second.evaluate("button => button === document.activeElement"):
        await page.keyboard.press("Tab")
        steps += 1
    await first.focus()
    for key in ("Enter", *("Tab",) * steps, "Enter"):
        await page.keyboard.press(key)
    await expect(page.locator("button[data-api*='/members/']")).to_have_count(0)


async def test_a_second_press_is_not_for_what_has_moved_under_the_pointer(
    stage: Stage, page_as: Pages
) -> None:
    team = (await stage.running.post("/api/teams", {"name": "lab"}))["id"]
    users = {one["name"]: one["id"] for one in (await stage.running.get("/api/admin/users"))["users"]}
    for name in ("Bruno", "Chitra"):
        await stage.running.http.put(f"/api/teams/{team}/members/{users[name]}", json={"role": "member"})
    page = await page_as(stage, "admin")
    await page.clock.install()
    await visit(page, "/teams")
    await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
    out = page.locator("button[data-api*='/members/']")
    await expect(out).to_have_count(2)
    box = await out.first.bounding_box()
    assert box
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await page.mouse.click(*middle)
    await expect(out).to_have_count(1)
    await page.mouse.click(*middle)
    await page.evaluate(ASK_SOMETHING)
    members = (await stage.running.get(f"/api/teams/{team}"))["members"]
    assert len(members) == 1
    await page.clock.fast_forward(1000)
    await page.mouse.click(*middle)
    await expect(out).to_have_count(0)
