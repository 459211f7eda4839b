"""What changes on the server changes on the page; and a page that is cut off says so."""

import asyncio
import re
import time

import httpx2
import pytest
from playwright.async_api import Page, Route, expect

from tests.e2e.proxy import Proxy
from tests.http.api_kit import until
from tests.web.browser import PATIENCE_MS, answer_first, visit
from tests.web.console import Console, Pages
from tests.web.fleet import CONFIGS
from tests.web.stage import Behind, Stage

SAYS_SO_WITHIN_S = 40.0
RIGHT_AGAIN_WITHIN_S = 5.0
SLOW_MACHINE_S = 5.0
"""What a machine that is busy with other things may add."""
SLOW_ANSWER_S = 0.25
OWN_EVENT_COMES_FIRST_S = 2.0
QUIET_MS, LOOKED_AT_EVERY_MS = 60_000, 16_000
TABS = 10
MARK = "window.notLoadedAgain = true"
MARKED = "window.notLoadedAgain === true"


REGION_IDS = re.compile(r'<\w+[^>]*\bid="([^"]+)"[^>]*\bdata-region=')
OF_THE_FRAME = ('id="words"', 'class="rail"', "<dialog")


@pytest.mark.parametrize("path", ["/", "/jobs", "/fleet", "/admin/workers", "/jobs/{running}"])
def test_an_open_page_fetches_its_regions_without_the_frame_around_them(fleet: Console, path: str) -> None:
    with httpx2.Client(base_url=fleet.url, cookies=fleet.cookies("admin"), trust_env=False) as client:
        address = path.format_map(fleet.state.jobs)
        whole, regions = client.get(address), client.get(address, headers={"x-live": "1"})
    assert REGION_IDS.findall(regions.text) == REGION_IDS.findall(whole.text) != []
    assert [part for part in OF_THE_FRAME if part in whole.text] != []
    assert [part for part in OF_THE_FRAME[:2] if part in regions.text] == []
    assert "x-live" in whole.headers["vary"]


async def watchers(stage: Stage, count: int) -> None:
    """Waits until the server has so many streams of consoles."""
    await until(lambda: stage.running.deps.hub.watcher_count == count, PATIENCE_MS / 1000)


async def test_a_worker_and_its_job_come_and_go_on_open_pages(stage: Stage, page_as: Pages) -> None:
    overview, jobs, workers = [await page_as(stage, "admin") for _ in range(3)]
    await visit(overview, "/")
    await visit(jobs, "/jobs")
    await visit(workers, "/admin/workers")
    for page in (overview, jobs, workers):
        await page.evaluate(MARK)
    machine = await stage.machine("nova")
    await expect(workers.get_by_role("link", name="nova")).to_be_visible()

    work = await stage.begin(name="a quiet sea")
    for page in (overview, jobs):
        await expect(page.get_by_role("link", name="a quiet sea")).to_be_visible()
    await work.train(range(700), 4000, 60.0)
    await expect(jobs.get_by_text("700/4000")).to_be_visible()
    await work.report("completed", exit_code=0)
    await expect(jobs.locator(f"#row-{work.job_id}")).to_contain_text("Completed")
    await machine.goodbye("the end")
    await expect(workers.get_by_role("row", name=re.compile("nova"))).to_contain_text("Offline")
    for page in (jobs, workers):
        assert await page.evaluate(MARKED), page.url


async def test_ten_tabs_share_one_stream_and_all_are_live(stage: Stage, page_as: Pages) -> None:
    first = await page_as(stage, "admin")
    tabs = [first, *[await first.context.new_page() for _ in range(TABS - 1)]]
    for tab in tabs:
        await visit(tab, "/admin/workers")
    await watchers(stage, 1)
    await stage.machine("nova")
    for tab in tabs:
        await tab.bring_to_front()
        await expect(tab.get_by_role("link", name="nova")).to_be_visible()
    await visit(first, "/jobs")
    await watchers(stage, 1)
    for tab in tabs[1:]:
        await tab.close()
    await watchers(stage, 1)
    await first.goto("/login")
    await watchers(stage, 0)


async def test_a_page_that_is_cut_off_says_so_and_is_right_again_soon_after(
    stage: Stage, page_as: Pages
) -> None:
    machine = await stage.machine("nova")
    with Proxy(int(stage.url.rpartition(":")[2])) as proxy:
        page = await page_as(Behind(stage, proxy), "admin")
        page_as.watch(page).expect("net::ERR", "Failed to load resource")
        await visit(page, "/admin/workers")
        row = page.get_by_role("row", name=re.compile("nova"))
        await expect(row).to_contain_text("Idle")
        proxy.stall()
        cut = time.monotonic()
        await machine.goodbye("while nobody sees it")
        await expect(page.locator("#stale")).to_be_visible(timeout=60_000)
        told_after_s = time.monotonic() - cut
        await expect(page.locator("#stale")).to_contain_text(re.compile(r"Showing data from \d+:\d\d:\d\d"))
        assert await page.locator("#list").evaluate("(list) => Number(getComputedStyle(list).opacity) < 1")
        await expect(row).to_contain_text("Idle")

        proxy.heal()
        back = time.monotonic()
        await expect(row).to_contain_text("Offline")
        await expect(page.locator("#stale")).to_be_hidden()
        right_after_s = time.monotonic() - back
        print(f"said after {told_after_s:.1f} s, right again after {right_after_s:.1f} s")
        assert told_after_s < SAYS_SO_WITHIN_S + SLOW_MACHINE_S
        assert right_after_s < RIGHT_AGAIN_WITHIN_S + SLOW_MACHINE_S


async def test_a_server_that_is_slow_to_answer_is_asked_less_often(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/admin/workers")
    asked: list[float] = []

    async def answer_late(route: Route) -> None:
        asked.append(time.monotonic())
        await asyncio.sleep(SLOW_ANSWER_S)
        await route.continue_()

    await page.route(lambda address: address.endswith("/admin/workers"), answer_late)
    for name in ("nova", "vega"):
        await stage.machine(name)
        await expect(page.get_by_role("link", name=name)).to_be_visible()
    assert asked[1] - asked[0] >= 10 * SLOW_ANSWER_S


async def test_a_server_that_restarts_is_found_again(stage: Stage, page_as: Pages) -> None:
    with Proxy(int(stage.url.rpartition(":")[2])) as proxy:
        page = await page_as(Behind(stage, proxy), "admin")
        page_as.watch(page).expect("net::ERR", "Failed to load resource")
        await visit(page, "/admin/workers")
        proxy.reset()
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        await stage.machine("nova")
        await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def test_a_page_that_is_paused_stands_still_until_it_goes_on(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/admin/workers")
    await page.locator("#live").click()
    await expect(page.locator("#live")).to_have_text("Paused")
    seen = await heard_of(page)
    await stage.machine("nova")
    await seen
    await expect(page.get_by_role("link", name="nova")).to_have_count(0)
    await page.locator("#live").click()
    await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def heard_of(page: Page) -> "asyncio.Task[object]":
    """Listens from now on; what it gives is done when the page has heard of a worker."""
    await page.evaluate("""() => { window.heard = new Promise((done) => document.addEventListener(
        "fleet", ({ detail }) => { if (detail.type === "worker") setTimeout(done, 600); })) }""")
    return asyncio.create_task(page.evaluate("() => window.heard"))


async def test_a_page_about_what_somebody_else_deletes_says_so(stage: Stage, page_as: Pages) -> None:
    machine = await stage.machine("nova")
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("404 (Not Found)")
    await visit(page, f"/admin/workers/{machine.id}")
    await answer_first(page, f"**/admin/workers/{machine.id}", lambda route: route.fulfill(status=404))
    await machine.goodbye("the end")
    await expect(page.locator("#state")).to_contain_text("Offline")
    await stage.running.http.delete(f"/api/admin/workers/{machine.id}")
    await expect(page.get_by_text("not_found", exact=True)).to_be_visible()


async def test_a_page_that_deletes_what_it_shows_does_not_ask_for_it_again(
    stage: Stage, page_as: Pages
) -> None:
    machine = await stage.machine("nova")
    await machine.goodbye("the end")
    page = await page_as(stage, "admin")
    await visit(page, f"/admin/workers/{machine.id}")

    async def answer_late(route: Route) -> None:
        answer = await route.fetch()
        await asyncio.sleep(OWN_EVENT_COMES_FIRST_S)
        await route.fulfill(response=answer)

    await page.route("**/api/admin/workers/*", answer_late)
    await page.get_by_role("button", name="Delete").first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="No workers yet")).to_be_visible()


async def test_configs_and_approvals_come_and_go_on_open_pages(stage: Stage, page_as: Pages) -> None:
    configs, one, approvals = [await page_as(stage, "admin") for _ in range(3)]
    page_as.watch(one).expect("404 (Not Found)")
    await stage.running.save_config("ink", CONFIGS["sd3-ink"])
    await visit(configs, "/configs")
    await visit(one, "/configs/ink")
    await visit(approvals, "/approvals")
    await stage.running.save_config("tea", CONFIGS["sd3-ink"])
    await expect(configs.get_by_role("link", name="tea")).to_be_visible()
    await stage.running.save_config("ink", CONFIGS["sdxl-cats"])
    for part in ("#config-state", "#config-content", "#config-versions"):
        await expect(one.locator(part), "what is shown is the version that is marked").to_contain_text(
            re.compile("version 2", re.IGNORECASE)
        )
    await stage.running.http.delete("/api/configs/ink")
    await expect(configs.get_by_role("link", name="ink")).to_have_count(0)
    await expect(one.get_by_text("There is no config 'ink'")).to_be_visible()
    await stage.running.post("/api/approvals/rules", {"name": "all", "config": "*"})
    asked = await stage.crew.submit("member", config_name="tea", name="ask first")
    assert asked["status"] == "blocked"
    await expect(approvals.get_by_role("link", name="ask first")).to_be_visible()


async def test_a_page_that_is_told_of_nothing_looks_by_itself_every_minute(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    await page.clock.install()
    await visit(page, "/teams")
    await stage.running.post("/api/teams", {"name": "lab"})
    await expect(page.get_by_role("heading", name="lab")).to_have_count(0)
    await page.clock.run_for(QUIET_MS + LOOKED_AT_EVERY_MS)
    await expect(page.get_by_text("lab", exact=True).first).to_be_visible()


COUNT_LOOKS = """
const ask = window.fetch;
window.looks = { begun: 0, done: 0 };
window.fetch = async (...given) => {
  const isLook = given[1]?.headers?.["x-live"];
  if (isLook) window.looks.begun += 1;
  try {
    return await ask(...given);
  } finally {
    if (isLook) window.looks.done += 1;
  }
};
"""
ALL_ANSWERED = "() => window.looks.begun === window.looks.done"
PAUSE_MS, QUIET_PAUSES, MOST_PAUSES = 3000, 7, 18
"""Longer than a page that is paced waits, and shorter than one that hears of nothing does before it looks by itself."""


async def comes_to_rest(page: Page) -> bool:
    """Turns the page's clock until nothing has been asked for several times in a row; False where that does not come."""
    quiet = 0
    for _ in range(MOST_PAUSES):
        before = await page.evaluate("window.looks.begun")
        await page.clock.run_for(PAUSE_MS)
        await page.wait_for_function(ALL_ANSWERED, polling=20)
        quiet = quiet + 1 if await page.evaluate("window.looks.begun") == before else 0
        if quiet == QUIET_PAUSES:
            return True
    return False


async def test_a_page_of_other_parts_is_asked_for_again_once_nobody_types(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin()
    await work.say(["one"])
    page = await page_as(stage, "admin")
    await page.add_init_script(COUNT_LOOKS)
    await page.clock.install()
    await visit(page, f"/jobs/{work.job_id}/logs")
    await page.locator("#log-search").focus()
    await work.report("completed", exit_code=0)
    await expect(page.locator("#state")).to_contain_text("Completed")
    assert await comes_to_rest(page), "it asks for itself again and again"
    await expect(page.locator("#delete-job")).not_to_be_attached()
    await page.locator("#log-search").blur()
    await expect(page.locator("#delete-job")).to_be_attached()


WITHOUT_SHARED_WORKERS = "delete window.SharedWorker"
"""As on most phones."""
LOOK_AWAY, LOOK_AGAIN = (
    f"""() => {{ Object.defineProperty(document, "hidden", {{ value: {hidden}, configurable: true }});
    document.dispatchEvent(new Event("visibilitychange")) }}"""
    for hidden in ("true", "false")
)


async def test_what_changes_while_nobody_looks_is_there_when_somebody_does(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    await page.add_init_script(WITHOUT_SHARED_WORKERS)
    await visit(page, "/admin/workers")
    await page.evaluate(LOOK_AWAY)
    await watchers(stage, 0)
    await stage.machine("nova")
    await page.evaluate(LOOK_AGAIN)
    await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def test_a_page_whose_answer_never_comes_asks_again(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "admin")
    await page.clock.install()
    await visit(page, "/admin/workers")
    asked = asyncio.Event()

    async def never_answer(route: Route) -> None:
        asked.set()

    await answer_first(page, lambda address: address.endswith("/admin/workers"), never_answer)
    await stage.machine("nova")
    await asked.wait()
    await page.clock.run_for(QUIET_MS + LOOKED_AT_EVERY_MS)
    await expect(page.get_by_role("link", name="nova")).to_be_visible()


async def test_a_job_that_is_renamed_is_called_so_on_its_open_page(stage: Stage, page_as: Pages) -> None:
    job = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="owls")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{job}")
    await stage.running.http.patch(f"/api/jobs/{job}", json={"name": "hawks $& <i>"})
    await expect(page.get_by_role("heading", level=1)).to_have_text("hawks $& <i>")
    await expect(page).to_have_title(re.compile(r"hawks \$& <i> · SimpleTuner Fleet$"))
    await expect(page.locator("#cancel-job-title")).to_have_text("Cancel hawks $& <i>?")
    await expect(page.locator("#edit-job-title")).to_have_text("Edit hawks $& <i>")


async def test_tags_that_many_jobs_get_at_once_are_shown_on_open_pages(stage: Stage, page_as: Pages) -> None:
    job = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="owls")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{job}")
    everything = {"search": {"config": "sdxl-cats"}, "expected": 1}
    await stage.running.post("/api/matching/tags", {**everything, "add": ["birds"]})
    await expect(page.locator("#writing").get_by_role("link", name="birds")).to_be_visible()
