"""How many jobs a list has: all are counted, or it says that there are more."""

import re

import pytest
from playwright.async_api import Page, expect

from simpletuner_fleet.web.pages import jobs
from tests.web.browser import assert_all_is_named, visit
from tests.web.console import Pages
from tests.web.stage import Stage

ENDED = 6


async def some_end(stage: Stage) -> None:
    for number in range(ENDED):
        job = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=f"cats {number}")
        await stage.running.post(f"/api/jobs/{job}/cancel", {})
    await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="waits")


async def tabs(page: Page) -> list[str]:
    return [" ".join(one.split()) for one in await page.locator(".tabs a").all_inner_texts()]


async def test_whoever_sees_a_part_is_told_at_least_how_many_have_ended(
    stage: Stage, page_as: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOST_ENDED", 4)
    monkeypatch.setattr(jobs, "SECTION_SIZE", 2)
    monkeypatch.setattr(jobs, "PAGE_SIZE", 3)
    await some_end(stage)
    page = await page_as(stage, "member")
    await visit(page, "/jobs")
    assert await tabs(page) == ["All ≥ 5", "Running 0", "Waiting 1", "Failed ≥ 0", "Ended ≥ 4"]
    await expect(page.get_by_role("link", name="View all (at least 4)")).to_have_count(1)
    await assert_all_is_named(page)
    await visit(page, "/jobs?show=ended")
    await expect(page.locator(".range")).to_have_text(re.compile("3 / at least 4$"))
    await page.get_by_role("link", name="Next").click()
    await expect(page.locator(".range")).to_have_text(re.compile("6 / 6$"))

    await visit(page, "/jobs?q=waits")
    assert await tabs(page) == ["All 1", "Running 0", "Waiting 1", "Failed 0", "Ended 0"]
    whole = await page_as(stage, "admin")
    await visit(whole, "/jobs")
    assert await tabs(whole) == ["All 7", "Running 0", "Waiting 1", "Failed 0", "Ended 6"]
    await visit(whole, "/jobs?q=cats")
    await expect(whole.locator(".range")).to_have_text(re.compile("3 / at least 5$"))
    listed = await stage.running.get("/api/jobs", q="cats", limit="2")
    assert (listed["total"], listed["at_least"], listed["by_state"]["cancelled"]) == (7, False, 6), (
        "all, as documented"
    )
