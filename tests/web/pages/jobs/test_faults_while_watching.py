"""A server that refuses for a moment, and jobs that change while somebody decides: the page stays right."""

import asyncio
import math
import re
from typing import Any

from playwright.async_api import Page, Route, expect

from simpletuner_fleet.web.frame.assets import ASSETS
from tests.web.browser import answer_first, visit
from tests.web.console import Pages
from tests.web.machines import Work
from tests.web.stage import Stage

KEPT_OF_A_LINE = f"""async () => {{
  const {{ LogLines }} = await import("{ASSETS.url("js/jobs/log-lines.js")}");
  const lines = new LogLines(document.createElement("div"));
  for (let step = 0; step < 5000; step += 1) lines.stream(`\\rsteps: ${{step}}`, step, null);
  const overwritten = lines.open.text.length;
  const shown = lines.box.textContent;
  lines.stream("\\r", 6000, null);
  lines.stream("next", 6001, null);
  const after = lines.box.textContent;
  for (let turn = 0; turn < 400; turn += 1) lines.stream("x".repeat(1000), 7000 + turn, null);
  return {{ overwritten, shown, after, endless: lines.open.text.length, drawn: lines.box.textContent.length }};
}}"""
MOST_OF_A_LINE = 16_000


def points(steps: range) -> list[dict[str, Any]]:
    return [
        {"step": step, "at": 1_790_000_000 + step, "values": {"loss": 1 + math.sin(step) / 3}}
        for step in steps
    ]


async def trains(work: Work, steps: range) -> None:
    await work.send_points(points(steps))
    await work.report("running", progress={"step": steps.stop, "total": 100, "loss": 1.0})


async def refuse(route: Route) -> None:
    await route.fulfill(status=503, content_type="text/plain", body="in a moment")


async def running(stage: Stage) -> Work:
    await stage.machine()
    return await stage.begin()


async def test_curves_stay_while_the_server_refuses_and_grow_again(stage: Stage, page_as: Pages) -> None:
    work = await running(stage)
    await work.send_points(points(range(10)))
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("503")
    await visit(page, f"/jobs/{work.job_id}/metrics")
    chart = page.locator("#charts .plot")
    await expect(chart).to_have_attribute("aria-label", re.compile("step 9,"))
    await answer_first(page, "**/metrics?*", refuse)
    async with page.expect_response(lambda answer: answer.status == 503):
        await trains(work, range(10, 12))
    await expect(chart).to_be_visible()
    await trains(work, range(12, 31))
    await expect(chart).to_have_attribute("aria-label", re.compile("step 30,"))


async def test_curves_that_were_refused_at_first_are_drawn_when_they_come(
    stage: Stage, page_as: Pages
) -> None:
    work = await running(stage)
    await work.send_points(points(range(10)))
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("503")
    await answer_first(page, "**/metrics?*", refuse)
    await visit(page, f"/jobs/{work.job_id}/metrics")
    await expect(page.locator("#charts")).to_have_text("The server refused. 503")
    await trains(work, range(10, 12))
    await expect(page.locator("#charts .plot")).to_be_visible()
    await expect(page.locator("#charts")).not_to_contain_text("refused")


async def test_a_log_that_was_refused_for_a_moment_is_followed_again(stage: Stage, page_as: Pages) -> None:
    work = await running(stage)
    await work.say(["one"])
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("503")
    await answer_first(page, "**/logs?*follow=true*", refuse)
    async with page.expect_response(lambda answer: answer.status == 503):
        await visit(page, f"/jobs/{work.job_id}/logs")
    await work.say(["two"])
    await expect(page.locator(".line")).to_have_text(["one", "two"])


async def test_of_a_line_that_is_written_over_for_hours_only_the_last_state_is_kept(
    stage: Stage, page_as: Pages
) -> None:
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    kept = await page.evaluate(KEPT_OF_A_LINE)
    assert kept["shown"] == "steps: 4999"
    assert kept["overwritten"] < 20
    assert kept["after"] == "next", "a return at the end of a piece is not forgotten"
    assert kept["endless"] <= MOST_OF_A_LINE
    assert kept["drawn"] <= MOST_OF_A_LINE


async def test_a_search_that_is_refused_is_over(stage: Stage, page_as: Pages) -> None:
    work = await running(stage)
    await work.say(["one"])
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("422", "400")
    await visit(page, f"/jobs/{work.job_id}/logs")
    await page.locator("[data-log-regex]").check()
    await page.locator("[data-log-search]").fill("(")
    await expect(page.locator("#toasts .is-bad")).to_be_visible()
    await expect(page.locator("[data-log-count]")).to_have_text("")


async def pick(page: Page, *ids: str) -> None:
    for job_id in ids:
        await page.locator(f"[data-pick={job_id}]").check()


async def test_only_the_jobs_that_were_asked_about_are_deleted(stage: Stage, page_as: Pages) -> None:
    ended, waiting = [
        await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=name)
        for name in ("cats", "owls")
    ]
    await stage.running.post(f"/api/jobs/{ended}/cancel", {})
    page = await page_as(stage, "admin")
    await visit(page, "/jobs?show=")
    await pick(page, ended, waiting)
    await page.get_by_role("button", name="Delete selected").first.click()
    await expect(page.locator("#batch-delete-title")).to_have_text("Delete 1 job?")
    await stage.running.post(f"/api/jobs/{waiting}/cancel", {})
    await expect(page.locator(f"#row-{waiting}")).to_have_attribute("data-delete", "true")
    await page.locator("#batch-delete [data-batch-confirm]").click()
    await expect(page.locator("#toasts")).to_contain_text("1 job is deleted.")
    await expect(page.locator(f"#row-{ended}")).to_have_count(0)
    await expect(page.locator(f"#row-{waiting}")).to_be_visible()


async def test_a_number_that_comes_late_is_not_taken_for_another_act(stage: Stage, page_as: Pages) -> None:
    ended, _ = [
        await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=name)
        for name in ("cats", "owls")
    ]
    await stage.running.post(f"/api/jobs/{ended}/cancel", {})
    later = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="dogs")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs?q=s&show=")
    await page.get_by_role("button", name="Act on all matching…").click()
    await expect(page.locator("[data-matching-go]")).to_have_text("Cancel 2 jobs")
    await page.locator("#matching-act").select_option("tags")
    await expect(page.locator("[data-matching-go]")).to_have_text("Change the tags of 3 jobs")
    go_on = asyncio.Event()

    async def hold(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    await answer_first(page, "**/api/matching/count", hold)
    await page.locator("#matching-act").select_option("cancel")
    await page.locator("#matching-act").select_option("delete")
    await expect(page.locator("[data-matching-go]")).to_have_text("Delete 1 job")
    async with page.expect_response("**/api/matching/count"):
        go_on.set()
    await page.evaluate("fetch(location.href).then((answer) => answer.text())")
    await expect(page.locator("[data-matching-go]")).to_have_text("Delete 1 job")
    assert (await stage.running.job(later))["status"] == "queued"
