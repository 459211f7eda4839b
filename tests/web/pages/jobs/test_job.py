"""The page of a job: what it shows, and what is done from it by clicking."""

import re

from playwright.async_api import expect

from tests.web.browser import visit
from tests.web.console import Console, Pages
from tests.web.stage import Stage

CHART = "#charts[data-ready=true] canvas"
ALL_LOADED = "() => [...document.images].every((image) => image.complete && image.naturalWidth > 0)"


async def test_a_running_job_shows_curves_samples_and_what_would_be_lost(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, f"/jobs/{fleet.state.jobs['running']}")
    await expect(page.locator(CHART)).not_to_have_count(0)
    await expect(page.locator("#progress")).to_contain_text("2600")
    await expect(page.locator("#progress")).to_contain_text("100 steps")
    await expect(page.locator("#progress")).to_contain_text("safe: step 2500")
    await expect(page.locator("#samples img")).to_have_count(1)
    await page.locator("#samples").scroll_into_view_if_needed()
    await page.wait_for_function(ALL_LOADED)
    await page.get_by_text("Show as table").click()
    await expect(page.get_by_role("columnheader", name="loss", exact=True)).to_be_visible()


async def test_a_job_that_was_resumed_says_where(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, f"/jobs/{fleet.state.jobs['resumed']}")
    attempts = page.locator("#attempts tbody tr")
    await expect(attempts).to_have_count(2)
    await expect(page.locator("#attempts")).to_contain_text("3000")


async def test_a_failed_job_says_what_happened_and_what_to_do(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, f"/jobs/{fleet.state.jobs['failed']}")
    failure = page.locator("#failure")
    await expect(failure).to_contain_text("CUDA out of memory")
    await failure.get_by_role("link", name="View log").click()
    await page.get_by_role("button", name="First error").click()
    await expect(page.locator(".line.now")).to_contain_text("Traceback (most recent call last)")


async def test_a_job_is_cancelled_with_a_checkpoint_first_and_tried_again(
    stage: Stage, page_as: Pages
) -> None:
    machine = await stage.machine()
    work = await stage.begin(name="to be stopped")
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(page.get_by_label("Save a checkpoint first, if the trainer supports it")).to_be_checked()
    await page.get_by_role("button", name="Cancel the job").click()
    asked = await machine.events.next("job_cancel")
    assert asked["job_id"] == work.job_id
    assert asked["save_s"] > 0
    await expect(page.locator("#state")).to_contain_text("Cancelling")

    await work.report("cancelled", exit_signal=15)
    await expect(page.locator("#state")).to_contain_text("Cancelled")
    await page.get_by_role("button", name="Retry").click()
    await page.wait_for_url(re.compile(rf"/jobs/(?!{work.job_id})j_"))
    await expect(page.get_by_role("link", name=work.job_id)).to_be_visible()


async def test_a_waiting_job_gets_another_priority_and_the_page_follows_it_as_it_starts_and_fails(
    stage: Stage, page_as: Pages
) -> None:
    machine = await stage.machine()
    first = await stage.begin(gpus=2)
    waiting = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", gpus=2)
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{waiting}")
    await expect(page.get_by_role("heading", name="Why it is waiting")).to_be_visible()
    await first.report("running", progress={"step": 10, "total": 100, "rate": 0.1, "eta_s": 4810})
    await page.reload()
    start = page.locator("#start")
    await expect(start).to_contain_text(
        re.compile("Starts in about 1h 20m: gpu-1 is busy with sdxl-cats until")
    )
    await expect(start).to_contain_text("By that job's own rate; nobody is ahead of it.")
    outlook = await stage.running.get(f"/api/jobs/{waiting}/outlook")
    assert (outlook["start"]["worker"], outlook["start"]["job_id"]) == ("gpu-1", first.job_id)
    await page.locator("#job-actions").get_by_text("Priority").click()
    await page.get_by_role("button", name="Urgent").click()
    await expect(page.get_by_text("Why it is waiting")).to_be_visible()
    await expect(page.locator("#job-actions [aria-current=true]")).to_have_text("Urgent")
    assert (await stage.running.job(waiting))["priority"] > 0

    await first.report("completed", exit_code=0)
    second = await machine.hold()
    assert second.job_id == waiting
    await second.report("running")
    await expect(page.locator("#state")).to_contain_text("Running")
    await expect(page.get_by_role("heading", name="Why it is waiting")).to_be_hidden()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    keep = page.get_by_label("Save a checkpoint first, if the trainer supports it")
    await expect(keep).to_be_checked()
    await keep.uncheck()
    await second.train(range(40), 4000, 4.0)
    await expect(page.locator("#progress")).to_contain_text("40")
    await expect(keep).not_to_be_checked()
    await page.get_by_role("button", name="Back").click()
    await expect(page.locator(CHART)).not_to_have_count(0)

    await second.report("failed", exit_code=1, error="it broke", last_lines="ValueError: no such column")
    await expect(page.locator("#failure")).to_contain_text("ValueError: no such column")
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()


async def test_an_open_menu_stays_open_while_the_page_lives(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin()
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}")
    menu = page.locator("#job-actions details")
    await menu.locator("summary").click()
    await work.train(range(10), 4000, 4.0)
    await expect(page.locator("#progress")).to_contain_text("10")
    await expect(menu).to_have_attribute("open", "")


async def test_events_of_one_moment_stand_in_their_order_with_seconds(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin()
    await work.report("failed", exit_code=1)
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}/events")
    names = await page.locator("#events tbody td.lead").all_inner_texts()
    assert names == [
        "Job failed",
        "Job started",
        "Job accepted by its worker",
        "Job dispatched",
        "Job submitted",
    ]
    times = await page.locator("#events tbody td:first-child").all_inner_texts()
    assert all(re.search(r"\d:\d\d:\d\d", time) for time in times), times
    audit = (await stage.running.get("/api/audit", target_id=work.job_id))["entries"]
    assert len({entry["at"] for entry in audit}) < len(audit), "some of them are of one moment"


async def test_a_member_is_not_alarmed_by_what_failed_for_others(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin(name="of-somebody-else")
    await work.report("failed", exit_code=1)
    admin, member = await page_as(stage, "admin"), await page_as(stage, "member")
    await visit(admin, "/?view=fleet")
    await expect(admin.locator("main")).to_contain_text("of-somebody-else")
    await visit(member, "/")
    await expect(member.locator("main")).to_contain_text("All clear.")


async def test_a_job_that_comes_back_to_the_queue_while_its_page_is_open_can_be_edited_there(
    stage: Stage, page_as: Pages
) -> None:
    machine = await stage.machine()
    work = await stage.begin()
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}")
    await expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(0)
    await machine.goodbye("the end")
    await page.get_by_role("button", name="Edit", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
