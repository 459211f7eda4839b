"""Runs side by side, and their pictures by prompt and step."""

import re

from playwright.async_api import expect

from simpletuner_fleet.core.configs.bundle_diff import MOST_COUNTED, MOST_LISTED
from simpletuner_fleet.web.pages.train import DIFFERENCES_SHOWN
from tests.web.browser import LANGUAGES, barriers, visit
from tests.web.console import Pages
from tests.web.machines import Work, picture
from tests.web.stage import Stage

CHART = "#charts[data-ready=true] .plot"
PROMPTS = ("cat", "dog")


async def run(stage: Stage, name: str, rate: float) -> Work:
    config = {
        "trainer": "simpletuner",
        "settings": {"--learning_rate": rate, "--max_train_steps": 300},
        "files": {"user_prompt_library.json": '{"cat": "a cat in a hat", "dog": "a dog on a log"}'},
    }
    await stage.running.save_config(name, config)
    work = await stage.begin(config_name=name, name=name)
    await work.send_points(
        [
            {"step": step, "at": 1_790_000_000 + step, "values": {"loss": rate / (step + 1)}}
            for step in range(40)
        ]
    )
    for step in (100, 200):
        files = {f"step_{step}_{prompt}_0_256x256.png": picture(step) for prompt in PROMPTS}
        await work.store("artifact", f"samples-{step}", files, step)
    return work


async def test_two_runs_are_compared_by_curve_config_and_picture(stage: Stage, page_as: Pages) -> None:
    await stage.machine()
    await stage.machine("gpu-2")
    one, other = await run(stage, "slow", 0.001), await run(stage, "fast", 0.01)
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await page.get_by_label("Select slow").check()
    await page.get_by_role("button", name="Compare").click()
    await page.wait_for_url(re.compile(rf"/compare\?job={one.job_id}$"))
    await page.get_by_label("Add a job by its id or name").fill("fast")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(rf"job={one.job_id}&job={other.job_id}$"))
    await expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    await expect(page.locator(CHART)).to_have_attribute("aria-label", re.compile(r"slow: .*; fast: "))
    differences = page.locator(".diff-runs tbody tr")
    await expect(differences.filter(has_text="settings.learning_rate")).to_contain_text("0.001")
    await expect(differences.filter(has_text="settings.learning_rate")).to_contain_text("0.01")
    await expect(differences.filter(has_text="max_train_steps")).to_have_count(0)
    comparison = await stage.running.get("/api/compare", job=[one.job_id, other.job_id])
    assert [job["id"] for job in comparison["jobs"]] == [one.job_id, other.job_id]
    (rate,) = [row for row in comparison["differences"] if row["path"] == "$.settings.learning_rate"]
    assert [run["value"] for run in rate["runs"]] == [0.001, 0.01]

    # Four frames, two prompts of two runs, go through the steps together.
    frames = page.locator("[data-frame]")
    await expect(frames).to_have_count(4)
    await expect(frames.first).to_contain_text("a cat in a hat")
    slider = page.get_by_label("Step", exact=True)
    await slider.focus()
    await page.keyboard.press("Home")
    await expect(page.locator("figcaption [data-step]")).to_have_text(["step 100"] * 4)
    await frames.first.locator("[data-picture]").click()
    box = page.locator("#lightbox")
    await expect(box).to_contain_text("slow · a cat in a hat at step 100")
    await page.keyboard.press("ArrowRight")
    await expect(box).to_contain_text("at step 200")
    await page.keyboard.press("ArrowDown")
    await expect(box).to_contain_text("fast · a cat in a hat at step 200")
    assert await barriers(page) == []
    await page.keyboard.press("Escape")
    await expect(box).to_be_hidden()


async def test_the_comparison_speaks_every_language_and_refuses_a_ninth_run(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine()
    work = await run(stage, "alone", 0.001)
    seen = set()
    for language in LANGUAGES:
        page = await page_as(stage, "viewer", language=language)
        await visit(page, f"/compare?job={work.job_id}")
        await expect(page.locator(CHART)).to_have_count(1)
        seen.add(await page.locator("#differences-title").inner_text())
    assert len(seen) == len(LANGUAGES)
    refused = await stage.running.http.get("/api/compare?" + "&".join(f"job=j_{at}" for at in range(9)))
    assert refused.status_code == 422


async def test_pages_say_how_many_changes_they_do_not_show(stage: Stage) -> None:
    running = stage.running
    jobs = []
    for value in (0, 1):
        config = {"trainer": "demo", "settings": {"x": [value] * (MOST_LISTED + 5)}}
        await running.save_config("long", config)
        jobs.append((await running.submit(config_name="long", gpus=0))["job_id"])
    for path in ("/configs/long", f"/jobs/{jobs[1]}/config", f"/compare?job={jobs[0]}&job={jobs[1]}"):
        answer = await running.http.get(path, headers={"Accept": "text/html"})
        assert "5 more changes are not shown." in answer.text, path
    checked = await running.post(
        "/train/check", {"config": {"x": [2] * (MOST_LISTED + 5)}, "config_name": "long"}
    )
    assert checked["changed"] is True
    assert f"{MOST_LISTED - DIFFERENCES_SHOWN + 5 + 1} more changes are not shown.<" in checked["changes"]


async def test_pages_say_that_nobody_has_counted_all_changes(stage: Stage) -> None:
    running = stage.running
    jobs = []
    for value in (0, 1):
        config = {"trainer": "demo", "settings": {"x": [value] * (MOST_LISTED + MOST_COUNTED + 1)}}
        await running.save_config("endless", config)
        jobs.append((await running.submit(config_name="endless", gpus=0))["job_id"])
    for path in ("/configs/endless", f"/jobs/{jobs[1]}/config", f"/compare?job={jobs[0]}&job={jobs[1]}"):
        answer = await running.http.get(path, headers={"Accept": "text/html"})
        assert "more changes are not shown. (at least)<" in answer.text, path
    checked = await running.post("/train/check", {"config": {"x": [2] * 200_000}, "config_name": "endless"})
    assert "more changes are not shown. (at least)<" in checked["changes"]
