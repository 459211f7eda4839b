"""Administration → Workers: a machine is created, comes in live, is drained, relabelled, given a new token, deleted."""

import json
import re
import shlex
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.async_api import Page, expect

from simpletuner_fleet.core.people import tokens
from tests.e2e.kit import A100
from tests.web.browser import axe, visit
from tests.web.console import Console, Pages
from tests.web.stage import Stage

SOON_MS, PULSE_MS = 20_000, 16_000
expect.set_options(timeout=SOON_MS)


async def commands_of(page: Page) -> str:
    """The command of the tab `pip`, as somebody would copy it."""
    await page.get_by_role("tab", name="pip").click()
    return await page.locator("[data-command=pip]").inner_text()


def try_to_register(console: Console, token: str) -> int:
    body: dict[str, Any] = {"name": "x", "trainers": [], "attempts": []}
    answer = console.world.call("POST", "/api/workers/register", body, **{"X-Worker-Token": token})
    return int(answer.status_code)


async def test_a_worker_is_created_by_keyboard_and_comes_in_live(own_fleet: Console, page_as: Pages) -> None:
    page = await page_as(own_fleet, "admin")
    await visit(page, "/")
    await page.get_by_role("link", name="Workers", exact=True).click()
    await page.get_by_role("link", name="Create Worker").press("Enter")
    await expect(page.get_by_label("Name", exact=True)).to_be_focused()
    await page.keyboard.type("gpu-new")
    await page.get_by_label("Key", exact=True).focus()
    await page.keyboard.type("room")
    await page.keyboard.press("Tab")
    await page.keyboard.type("cellar")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("room=cellar")).to_be_visible()
    await page.get_by_role("button", name="Create Worker").press("Enter")

    await expect(page.get_by_role("heading", name="Start it on the GPU machine")).to_be_focused()
    await expect(page.get_by_text("Waiting for gpu-new")).to_be_visible()
    for way in ("uv", "pip", "systemd", "container", "environment"):
        text = await page.locator(f"[data-command={way}]").text_content() or ""
        assert own_fleet.url in text, way
        assert "gpu-new" in text, way
        assert "--persistent" in text or "SIMPLETUNER_WORKER_PERSISTENT=true" in text, way
        assert tokens.WORKER + "_" in text, way
    await axe(page)

    assert try_to_register(own_fleet, "wt_tooshort") == 401
    await expect(page.get_by_text("used a token that was truncated or mistyped")).to_be_visible()

    pasted = (await commands_of(page)).replace("\\\n", " ")
    secret, *words = shlex.split(pasted.partition("&&")[2])
    variable, _, token = secret.partition("=")
    assert variable == "SIMPLETUNER_WORKER_TOKEN", (
        "every process of the machine can read the words of a command"
    )
    assert words[:2] == ["simpletuner-fleet", "worker"]
    assert token not in " ".join(words)
    own_fleet.world.start(
        "pasted",
        *words[1:],
        *("--work-dir", str(own_fleet.world.home.parent / "pasted")),
        SIMPLETUNER_GPU_INVENTORY=json.dumps(A100),
        SIMPLETUNER_WORKER_TOKEN=token,
    )
    await expect(page.get_by_text("Connected from 127.0.0.1: No TLS")).to_be_visible()
    await expect(page.get_by_text("1 GPU found: NVIDIA A100-SXM4-80GB")).to_be_visible()
    demo = page.get_by_role("button", name="Run the demo job on this machine")
    await expect(demo).to_be_visible()
    await demo.click()
    await page.wait_for_url(re.compile(r"/jobs/j_"))
    await expect(page.get_by_role("heading", level=1, name="demo on gpu-new")).to_be_visible()


async def test_a_token_is_shown_once_and_a_rotated_one_is_recognised(
    own_fleet: Console, page_as: Pages
) -> None:
    old = own_fleet.world.post("/api/admin/workers", {"name": "late", "worker_type": "ephemeral"})
    page = await page_as(own_fleet, "admin")
    await visit(page, f"/admin/workers/create?worker={old['worker_id']}")
    assert old["token"] not in await page.content()
    await page.get_by_role("button", name="Rotate token").click()
    await expect(page.get_by_role("heading", name="Start it on the GPU machine")).to_be_visible()
    command = await commands_of(page)
    assert old["token"] not in command
    assert "--persistent" not in command
    assert try_to_register(own_fleet, old["token"]) == 401
    await expect(page.get_by_text("127.0.0.1 used a token that has been rotated.")).to_be_visible()
    await visit(page, f"/admin/workers/{old['worker_id']}")
    assert tokens.WORKER + "_" not in await page.locator("main").inner_text()
    await expect(page.locator("#events")).to_contain_text("used a token that has been rotated")
    await page.get_by_role("button", name="Rotate token").click()
    await page.get_by_role("dialog").get_by_role("button", name="Rotate token").click()
    await expect(page.get_by_role("heading", name="Start it on the GPU machine")).to_be_focused()
    assert await commands_of(page) != command


async def test_a_list_without_workers_says_what_to_do_and_shows_the_first_one_at_once(
    own_empty: Console, page_as: Pages
) -> None:
    output = own_empty.world.cli("users", "link").stdout
    link = re.search(r"http\S+", output)
    assert link, output
    page = await page_as(own_empty, "nobody")
    await page.goto(link[0])
    await page.get_by_label("Name").fill("Anna")
    await page.get_by_label("Password", exact=True).fill("a long and quiet afternoon")
    await page.get_by_role("button", name="Begin", exact=True).click()
    await page.wait_for_url(own_empty.url + "/")
    await visit(page, "/admin/workers")
    await expect(page.get_by_role("heading", name="No workers yet")).to_be_visible()
    own_empty.world.post("/api/admin/workers", {"name": "first"})
    await expect(page.get_by_role("link", name="first")).to_be_visible()


async def test_a_worker_is_drained_with_a_note_and_resumed(own_fleet: Console, page_as: Pages) -> None:
    page = await page_as(own_fleet, "admin")
    await visit(page, f"/admin/workers/{own_fleet.state.workers['studio']}")
    await page.get_by_role("button", name="Drain").click()
    await page.get_by_label("Note").fill("A new fan")
    await page.get_by_label("Wait for its jobs").select_option("1800")
    await page.get_by_role("button", name="Drain studio").click()
    await expect(page.locator("#draining")).to_contain_text("A new fan")
    await expect(page.locator("#state")).to_contain_text("Draining")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator("#state")).to_contain_text("Idle")


async def test_only_a_worker_that_is_away_can_be_deleted_and_the_page_says_why(
    own_fleet: Console, page_as: Pages
) -> None:
    page = await page_as(own_fleet, "admin")
    await visit(page, f"/admin/workers/{own_fleet.state.workers['atlas-1']}")
    await expect(page.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    await expect(
        page.get_by_text("Only an offline worker can be deleted, and this one is Busy.")
    ).to_be_visible()
    await visit(page, f"/admin/workers/{own_fleet.state.workers['atlas-3']}")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_role("button", name="Delete atlas-3").click()
    await page.wait_for_url("**/admin/workers")
    await expect(page.get_by_role("link", name="titan")).to_be_visible()
    await expect(page.get_by_role("link", name="atlas-3")).to_have_count(0)


async def test_labels_are_edited_as_chips(own_fleet: Console, page_as: Pages) -> None:
    worker_id = own_fleet.state.workers["atlas-1"]
    page = await page_as(own_fleet, "admin")
    await visit(page, f"/admin/workers/{worker_id}")
    await page.get_by_role("button", name="Remove the label room=north").click()
    await page.get_by_label("Key", exact=True).fill("shelf=3, left")
    await page.get_by_role("button", name="Save labels").click()
    await expect(page.get_by_text("Labels saved.")).to_be_visible()
    labels = own_fleet.world.get(f"/api/admin/workers/{worker_id}")["labels"]
    assert labels == {"gpu_type": "a100", "shelf": "3, left"}


async def test_the_list_is_filtered_by_its_address_and_folds_what_has_gone(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, "/admin/workers")
    gone = page.locator("#folded")
    await expect(gone).to_contain_text("1 ephemeral worker has left")
    await expect(gone.get_by_role("link", name="spot-7f3a")).to_be_hidden()
    await page.get_by_role("link", name="Offline").click()
    await expect(page.get_by_role("link", name="spot-7f3a")).to_be_visible()
    await visit(page, "/admin/workers?q=ROOM%3Dnorth")
    rows = page.locator("#list tbody tr")
    await expect(rows).to_have_count(2)
    await visit(page, "/admin/workers?q=nothing-like-it")
    await expect(page.get_by_role("heading", name="No matching worker")).to_be_visible()


async def test_an_open_page_asks_for_the_heartbeats_of_the_workers_that_it_shows(
    stage: Stage, page_as: Pages
) -> None:
    nova, vega = await stage.machine("nova"), await stage.machine("vega")
    page = await page_as(stage, "admin")
    await page.clock.install()
    for path, shown in (("/admin/workers", {nova.id, vega.id}), (f"/admin/workers/{vega.id}", {vega.id})):
        await visit(page, path)
        async with page.expect_request("**/api/admin/pulses*") as asked:
            await page.clock.run_for(PULSE_MS)
        query = urlsplit((await asked.value).url).query
        assert set(parse_qs(query)["ids"][0].split(",")) == shown


async def test_a_worker_that_would_take_no_job_now_does_not_pass_for_one_that_waits_for_one(
    stage: Stage,
) -> None:
    machine = await stage.machine("nova")
    admin = stage.crew.people["admin"]

    async def shown() -> list[str]:
        pages = [await admin.get(path) for path in ("/admin/workers", f"/admin/workers/{machine.id}")]
        return [page.text for page in pages]

    assert [page for page in await shown() if "It accepts no jobs at the moment." in page] == []
    work = await stage.begin()
    await work.report("released")
    for page in await shown():
        assert "It accepts no jobs at the moment." in page
    await machine.beat()
    assert [page for page in await shown() if "It accepts no jobs at the moment." in page] == []
