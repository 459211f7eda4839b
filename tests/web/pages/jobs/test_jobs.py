"""The list of jobs as somebody works with it: found, sorted, kept, acted on together; and what one job can be changed by."""

import re

import pytest
from playwright.async_api import Page, expect

from simpletuner_fleet.queries import explainer
from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.fleet import PEOPLE
from tests.web.stage import Stage


async def three_wait(stage: Stage) -> dict[str, str]:
    ids = {
        name: await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name=name)
        for name in ("owls", "cats", "dogs")
    }
    for name in ("owls", "cats"):
        await stage.running.post(f"/api/jobs/{ids[name]}/tags", {"add": ["paper"]})
    return ids


async def lists(page: Page, *names: str) -> None:
    await expect(page.locator("tbody tr[data-job] a.main")).to_have_text([*names])


async def test_jobs_are_found_sorted_kept_as_a_view_and_acted_on_together(
    stage: Stage, page_as: Pages
) -> None:
    ids = await three_wait(stage)
    page = await page_as(stage, "admin")
    await visit(page, "/jobs")
    await lists(page, "owls", "cats", "dogs")
    await page.locator("#more-filters > summary").click()
    await page.locator("#find-tag").fill("paper")
    await page.locator("#sort").select_option("name")
    await page.get_by_role("button", name="Find", exact=True).click()
    await lists(page, "cats", "owls")

    await page.locator(".views > summary").click()
    await page.get_by_role("button", name="Save this view…").click()
    await page.locator("#view-name").fill("for the paper")
    await page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    await page.wait_for_url(re.compile("/jobs$"))
    await lists(page, "owls", "cats", "dogs")
    await page.locator(".views > summary").click()
    await page.get_by_role("link", name="for the paper").click()
    await lists(page, "cats", "owls")

    await page.get_by_role("button", name="Act on all matching…").click()
    await page.locator("#matching-act").select_option("tags")
    await page.locator("#matching-add").fill("sent")
    await page.get_by_role("button", name="Change the tags of 2 jobs").click()
    await expect(page.locator("#matching")).to_be_hidden()
    tagged = await stage.running.get("/api/jobs", tag="sent")
    assert {job["id"] for job in tagged["jobs"]} == {ids["owls"], ids["cats"]}

    await page.keyboard.press("Control+k")
    # A page called Notifications has these letters as well, and all three are of a config that has them.
    await page.keyboard.type("ca")
    await expect(page.locator("#palette-list [role=option]").first).to_contain_text("cats · j_")
    await page.keyboard.press("Control+a")
    await page.keyboard.type("dogs")
    await expect(page.locator("#palette-list [role=option]").first).to_contain_text("dogs · j_")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(f"/jobs/{ids['dogs']}$"))


async def test_an_act_on_at_least_so_many_says_so(
    stage: Stage, page_as: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explainer, "MOST_GROUPS", 2)
    for number in range(3):
        labels = {"rack": f"r{number}"}
        await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", worker_labels=labels)
    reason = (await stage.running.get("/api/queue"))["jobs"][0]["explain"]["code"]
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs?reason={reason}")
    await page.get_by_role("button", name="Act on all matching…").click()
    await page.locator("#matching-act").select_option("cancel")
    await page.get_by_role("button", name="Cancel at least 2 jobs").click()
    await expect(page.locator("#matching")).to_be_hidden()
    await expect(page.locator("tbody tr[data-job]")).to_have_count(1)


async def test_a_waiting_job_is_edited_in_place_and_a_checkpoint_pinned_and_forked_from(
    stage: Stage, page_as: Pages
) -> None:
    waiting = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="owls", gpus=16)
    page = await page_as(stage, "admin")
    await visit(page, f"/jobs/{waiting}")
    await page.get_by_role("button", name="Edit", exact=True).click()
    await page.locator("#edit-gpus").fill("9")
    await page.locator("#edit-labels").fill("rack=r7")
    await page.locator("#edit-job").get_by_role("button", name="Save", exact=True).click()
    await expect(page.locator("#edit-job")).to_be_hidden()
    job = await stage.running.job(waiting)
    assert (job["requires"]["gpus"], job["requires"]["worker_labels"]) == (9, {"rack": "r7"})

    await stage.machine()
    too_large = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", gpus=16)
    await visit(page, f"/jobs/{too_large}")
    await page.locator("#now-with").get_by_role("button", name="Use this").first.click()
    await expect(page.locator("#now-with")).to_have_count(0)
    assert (await stage.running.job(too_large))["worker_id"]

    await stage.machine("gpu-2")
    work = await stage.begin(name="cats")
    await work.checkpoint(100)
    await visit(page, f"/jobs/{work.job_id}/checkpoints")
    await page.get_by_role("button", name="Pin", exact=True).click()
    await expect(page.get_by_role("button", name="Unpin")).to_be_visible()
    await expect(page.locator(".chip", has_text="pinned")).to_be_visible()
    await page.get_by_role("link", name="Fork from here").click()
    await page.wait_for_url(re.compile(rf"/train\?job={work.job_id}&resume_from={work.job_id}(:|%3A)100"))


async def rows_of(page: Page) -> list[str]:
    rows = page.locator("tbody tr[data-job]")
    ids: list[str] = await rows.evaluate_all("rows => rows.map((row) => row.dataset.job)")
    return ids


async def turn(page: Page, link: str) -> list[str]:
    """Goes to the next or the previous page by its own link."""
    before = await rows_of(page)
    await page.locator(f"nav.pages a[rel={link}]").click()
    await expect(page.locator("tbody tr[data-job]").first).not_to_have_attribute("data-job", before[0])
    return await rows_of(page)


async def many_wait(stage: Stage, count: int) -> None:
    for number in range(count):
        name = f"run-{number * 37 % count:03}"
        await stage.crew.queue(
            "admin", config_name="sdxl-cats", target="worker", name=name, priority=number % 5
        )


async def test_the_pages_of_a_list_are_the_same_there_and_back(stage: Stage, page_as: Pages) -> None:
    await many_wait(stage, 101)
    page = await page_as(stage, "admin")
    await visit(page, "/jobs?sort=name")
    first = await rows_of(page)
    second = await turn(page, "next")
    third = await turn(page, "next")
    await expect(page.locator("nav.pages a[rel=next]")).to_have_count(0)
    assert [len(first), len(second), len(third)] == [50, 50, 1]
    assert first + second + third == await ids_by(stage, "name")
    assert await turn(page, "prev") == second
    assert await turn(page, "prev") == first
    await expect(page.locator("nav.pages a[rel=prev]")).to_have_count(0)


async def test_each_heading_orders_the_list_and_turns_it_round(stage: Stage, page_as: Pages) -> None:
    await many_wait(stage, 8)
    page = await page_as(stage, "admin")
    await visit(page, "/jobs?sort=config&column=priority&column=attempt")
    headings = {"Priority": "priority", "Attempt": "attempts", "When": "created", "Job": "name"}
    for title, sort in headings.items():
        heading = page.get_by_role("columnheader", name=title)
        for text in (sort, f"-{sort}"):
            await heading.get_by_role("link").click()
            await expect(page).to_have_url(re.compile(rf"[?&]sort={text}(&|$)"))
            await expect(heading).to_have_attribute("aria-sort", re.compile("ascending|descending"))
            assert await rows_of(page) == await ids_by(stage, text), text


async def ids_by(stage: Stage, sort: str) -> list[str]:
    return [job["id"] for job in (await stage.running.get("/api/jobs", sort=sort, limit=200))["jobs"]]


async def test_jobs_are_found_by_owner_worker_and_label_and_each_says_whose_it_is(
    stage: Stage, page_as: Pages
) -> None:
    await stage.machine("gpu-1")
    on_worker = await stage.begin(name="owls")
    labelled = await stage.crew.queue(
        "admin", config_name="sdxl-cats", target="worker", name="cats", worker_labels={"rack": "r7"}
    )
    members = await stage.crew.queue("member", config_name="sdxl-cats", target="worker", name="dogs", gpus=16)
    page = await page_as(stage, "admin")
    for field, text, job_id in (
        ("owner", PEOPLE["member"], members),
        ("worker", "gpu-1", on_worker.job_id),
        ("label", "rack=r7", labelled),
    ):
        await visit(page, "/jobs")
        await page.locator("#more-filters > summary").click()
        await page.locator(f"#find-{field}").fill(text)
        await page.get_by_role("button", name="Find", exact=True).click()
        await expect(page.locator("tbody tr[data-job]")).to_have_count(1)
        assert await rows_of(page) == [job_id]
    await visit(page, "/jobs?sort=name")
    owners = page.locator("tbody td.owner-cell")
    await expect(owners).to_have_text([PEOPLE["admin"], PEOPLE["member"], PEOPLE["admin"]])
