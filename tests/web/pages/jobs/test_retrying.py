"""Who asks for a retry twice, by a double click or since the answer was lost, gets one job."""

from playwright.async_api import Route, expect

from tests.web.browser import answer_first, visit
from tests.web.console import Pages
from tests.web.stage import Stage


async def ended(stage: Stage, name: str) -> str:
    job_id = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=name)
    await stage.running.post(f"/api/jobs/{job_id}/cancel")
    return job_id


async def jobs_called(stage: Stage, name: str) -> int:
    return sum(job["name"] == name for job in (await stage.running.get("/api/jobs"))["jobs"])


async def lose_answer(route: Route) -> None:
    await route.fetch()
    await route.abort()


async def test_a_double_click_retries_the_selected_jobs_once(stage: Stage, page_as: Pages) -> None:
    job_id = await ended(stage, "cats")
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await page.locator(f"[data-pick={job_id}]").check()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    await page.get_by_role("button", name="Retry selected").dblclick()
    await expect(page.locator("#toasts")).to_contain_text("1 job is queued again.")
    assert len(asked) == 1
    assert await jobs_called(stage, "cats") == 2


async def test_a_retry_whose_answer_was_lost_is_not_made_twice(stage: Stage, page_as: Pages) -> None:
    job_id = await ended(stage, "cats")
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("net::ERR")
    await visit(page, f"/jobs/{job_id}")
    await answer_first(page, "**/retry", lose_answer)
    await page.get_by_role("button", name="Retry", exact=True).click()
    await expect(page.locator("body")).to_contain_text("The server did not respond.")
    await page.get_by_role("button", name="Retry", exact=True).click()
    await page.wait_for_url(lambda address: job_id not in address)
    assert await jobs_called(stage, "cats") == 2
