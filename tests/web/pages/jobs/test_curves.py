"""Curves of a job that runs: true to their peaks, kept as somebody looks at them, and cheap."""

import asyncio
import math
import re
import time
from typing import Any

import pytest
from playwright.async_api import Page, Request, expect

from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.machines import Work
from tests.web.stage import Stage

CHART = "#charts[data-ready=true] .plot"
HIGHEST_DRAWN = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const place = data.findIndex((red, at) => at % 4 === 0 && data[at + 3] > 80 && data[at + 2] - red > 60);
  return Math.floor(place / 4 / width) / height;
}"""
"""How far down, as a share of its height, the first pixel of a curve's colour is that can be told from the paper."""
LONG = 100_000
LOOKED_S = 18
MOST_BYTES_PER_S = 10_000
MOST_CPU_MS_PER_S = 5.0


def points(steps: range, peak: int = -1) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "at": 1_790_000_000 + step,
            "values": {
                "loss": 18_532.0 if step == peak else 1 + math.sin(step) / 3,
                "lr": 0.001,
                "epoch": step / 1000,
            },
        }
        for step in steps
    ]


async def test_a_curve_shows_its_true_peak_and_keeps_its_zoom_and_its_canvas_while_it_grows(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin()
    await work.send_points(points(range(3000), peak=1234))
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}/metrics")
    chart = page.locator(CHART).first
    await expect(page.locator(".panel h3")).to_have_text(["epoch", "loss", "lr"])
    loss = page.locator(CHART).nth(1)
    await expect(loss).to_have_attribute("aria-label", re.compile(r"step 2999.*largest 18,530"))
    await expect(page.locator(".points")).to_contain_text("3,000 steps in")
    assert await loss.locator("canvas").evaluate(HIGHEST_DRAWN) < 0.2
    await loss.locator("canvas").evaluate("(canvas) => { canvas.dataset.mine = 'true'; }")
    box = await loss.locator(".u-over").bounding_box()
    assert box
    await page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + 40)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 40, steps=4)
    await page.mouse.up()
    await expect(page.get_by_role("button", name="Show all")).to_be_visible()
    await page.wait_for_selector("#charts[data-closer]")
    # Closer, each of the three hundred steps is a point of its own.
    await page.get_by_text("Show as table").click()
    await expect(page.get_by_role("cell", name="18,530", exact=True)).to_be_visible()
    await page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    hovered = await loss.locator(".u-legend .u-value").first.inner_text()

    await work.send_points(points(range(3000, 3100)))
    await work.report("running", progress={"step": 3100, "total": 4000})
    await expect(loss).to_have_attribute("aria-label", re.compile(r"step 3099"))
    await expect(page.locator(CHART).nth(1).locator("canvas")).to_have_attribute("data-mine", "true")
    await expect(page.get_by_role("button", name="Show all")).to_be_visible()
    assert await loss.locator(".u-legend .u-value").first.inner_text() == hovered
    await expect(page.get_by_role("cell", name="18,530", exact=True)).to_be_visible()

    await chart.focus()
    await page.keyboard.press("0")
    await expect(page.get_by_role("button", name="Show all")).to_be_hidden()
    await page.get_by_label("X axis").select_option("epoch")
    await expect(page.locator(".u-legend").nth(1)).to_contain_text("Epoch")
    await page.locator("#chart-controls").get_by_text("Numbers").click()
    await page.get_by_label("in one chart").check()
    await expect(page.locator(".panel:not(.small)")).to_have_count(1)
    await page.keyboard.press("Escape")
    await work.report("completed", exit_code=0)
    await expect(page.locator("#state")).to_contain_text("Completed")
    await expect(page.get_by_label("X axis")).to_be_visible()


async def test_the_curves_are_saved_as_a_picture_and_as_a_table(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    work = await stage.begin()
    await work.send_points(points(range(40), peak=7))
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}/metrics")
    await expect(page.locator(CHART)).not_to_have_count(0)
    table = await saved(page, "Table (CSV)")
    lines = table.decode().splitlines()
    assert lines[0] == "job,key,step,at,min,max,last"
    assert f"{work.job_id},loss,7,2026-09-21T14:13:27.000Z,18532,18532,18532" in lines
    assert (await saved(page, "Picture (PNG)")).startswith(b"\x89PNG")


async def saved(page: Page, name: str) -> bytes:
    if not await page.get_by_role("button", name=name).is_visible():
        await page.locator("#chart-controls").get_by_text("Save", exact=True).click()
    async with page.expect_download() as waiting:
        await page.get_by_role("button", name=name).click()
    return (await (await waiting.value).path()).read_bytes()


@pytest.mark.long
async def test_the_page_of_a_running_job_with_many_steps_costs_next_to_nothing(
    stage: Stage, page_as: Pages
) -> None:
    """The server runs in this process: what it spends while the page is open and the job goes on, less what it spends on
    the job alone. Reading the whole curve at the first look is not part of it."""
    await stage.machine()
    work = await stage.begin()
    await work.send_points(points(range(LONG)))
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}")
    await expect(page.locator(CHART)).not_to_have_count(0)
    answered: list[Request] = []
    page.on("requestfinished", lambda request: answered.append(request))
    with_page_ms = await spent_ms(work, LONG)
    sizes = [await request.sizes() for request in answered]
    sent = sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)
    paths = sorted(request.url.removeprefix(stage.url) for request in answered)
    await page.goto("about:blank")
    alone_ms = await spent_ms(work, LONG + LOOKED_S * 10)
    cost = (with_page_ms - alone_ms) / LOOKED_S
    print(
        f"{cost:.1f} ms of CPU and {sent / LOOKED_S:.0f} bytes a second: {len(paths)} answers",
        *paths,
        sep="\n",
    )
    assert sent / LOOKED_S <= MOST_BYTES_PER_S
    assert cost <= MOST_CPU_MS_PER_S


async def spent_ms(work: Work, step: int) -> float:
    began = time.process_time()
    for _ in range(LOOKED_S):
        await work.send_points(points(range(step, step + 10)))
        step += 10
        await work.report("running", progress={"step": step, "total": 2 * LONG, "rate": 10.0})
        await asyncio.sleep(1)
    return (time.process_time() - began) * 1000


async def test_the_controls_of_curves_keep_the_focus_of_who_uses_them_by_keyboard(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await stage.begin()
    await work.send_points(points(range(100)))
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{work.job_id}/metrics")
    await page.locator(CHART).first.wait_for()
    smooth = page.get_by_label("Smoothing")
    await smooth.focus()
    for _ in range(3):
        await page.keyboard.press("ArrowRight")
    await expect(smooth).to_have_value("0.06")
    logarithmic = page.get_by_label("logarithmic")
    await logarithmic.focus()
    await page.keyboard.press("Space")
    await expect(logarithmic).to_be_checked()
    await expect(logarithmic).to_be_focused()
