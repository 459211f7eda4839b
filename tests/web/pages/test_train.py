"""Configure a training, Train in Cloud → Worker; and the configs that are kept."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.web.pages import train
from simpletuner_fleet.web.parts.jobs.train_fields import FIELDS, STARTER_NAMES, STARTERS
from tests.e2e.kit import World
from tests.http.api_kit import orchestrator
from tests.web.browser import Role, axe, visit
from tests.web.console import Console, Pages, running_console

LONG = 2**60 + 1
SETTINGS = {"model_family": "sdxl", "--seed": 1, "scale": 1.0, "long": LONG, "deep": {"a": [1, {"b": None}]}}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, sleeping: Console) -> Iterator[Console]:
    """One fleet for all of these tests: each has configs of its own, and none changes what another looks at."""
    with running_console(World(tmp_path_factory.mktemp("train")), like=sleeping) as console:
        yield console


def put(console: Console, name: str, bundle: dict[str, Any]) -> None:
    console.world.put(f"/api/configs/{name}", bundle)


def put_by_member(console: Console, name: str, bundle: dict[str, Any]) -> None:
    """It is Bruno's, so that he may change it."""
    cookie = "; ".join(f"{name}={value}" for name, value in console.cookies("member").items())
    headers = {"cookie": cookie, "origin": console.url}
    answer = console.world.client.put(f"{console.url}/api/configs/{name}", json=bundle, headers=headers)
    assert answer.is_success, answer.text


def report_options(world: World, worker: str) -> None:
    """As a worker does that has the trainer."""
    token = world.post("/api/admin/workers", {"name": worker})["token"]
    registration = {"name": worker, "gpus": [], "trainers": ["simpletuner"], "incarnation": "i-1"}
    options = {"trainer": "simpletuner", "options": OPTIONS}
    for path, body in (("register", registration), ("trainer-options", options)):
        answer = world.client.post(
            f"{world.url}/api/workers/{path}", json=body, headers={"X-Worker-Token": token}
        )
        assert answer.is_success, answer.text


def stored(console: Console, name: str) -> dict[str, Any]:
    return dict(console.world.get(f"/api/configs/{name}"))


def settings_in(file: Path) -> dict[str, Any]:
    return read_bundle(json.loads(file.read_text())).settings


def outlook(page: Page) -> Any:
    return page.locator("#outlook")


async def test_a_training_is_configured_and_sent_to_a_worker_by_keyboard(
    ours: Console, page_as: Pages
) -> None:
    world = ours.world
    put(ours, "ticks", world.command(sys.executable, "-c", "print(1)"))
    world.start_worker("bench", labels={"bench": "yes"})
    page = await page_as(ours, "admin")
    await visit(page, "/")
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await page.wait_for_url("**/train")
    await page.get_by_label("Start from", exact=True).select_option(label="ticks")
    await page.wait_for_url("**/train?config=ticks")

    command = page.get_by_label("Command, one argument per line")
    await expect(command).to_have_value(f"{sys.executable}\n-c\nprint(1)")
    await command.fill(f"{sys.executable}\n-c\nprint(2)")
    assert await page.get_by_role("radio", name="Worker").is_checked()
    await page.get_by_label("Labels", exact=True).focus()
    await page.keyboard.type("bench=y*")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("listitem").filter(has_text="bench=y*")).to_be_visible()
    await expect(outlook(page)).to_contain_text("Would start now")
    await expect(outlook(page)).to_contain_text("Matches 1 worker, 1 idle")
    await expect(page.locator("#changes")).to_contain_text("print(2)")
    await expect(page.get_by_label("Save it as version 2 of ticks")).to_be_checked()
    await axe(page)
    await page.get_by_role("button", name="Train in Cloud").press("Enter")

    await page.wait_for_url(re.compile(r"/jobs/j_"))
    job = world.becomes(page.url.rpartition("/")[2], "completed")
    assert (job["config_name"], job["config_version"]) == ("ticks", 2)
    assert stored(ours, "ticks")["settings"]["command"][-1] == "print(2)"

    await visit(page, "/train?config=ticks")
    await expect(page.locator("#changes")).to_contain_text("Nothing changed.")
    await expect(page.locator("#changes").get_by_role("link")).to_have_attribute("href", f"/jobs/{job['id']}")


async def test_form_and_json_stay_in_step_and_lose_nothing(ours: Console, page_as: Pages) -> None:
    put_by_member(ours, "mine", {"settings": SETTINGS, "env": {"A": "1"}})
    page = await page_as(ours, "member")
    await visit(page, "/train?config=mine")
    await page.get_by_role("textbox", name="Seed").fill("7")
    await page.get_by_role("textbox", name="Learning rate").fill("1e-4")
    await page.get_by_role("tab", name="JSON").click()
    text = page.get_by_label("Trainer settings as JSON")
    said = await text.input_value()
    assert '"--seed": 7' in said
    assert '"scale": 1.0' in said
    assert str(LONG) in said
    await text.fill(said.replace('"sdxl"', '"flux",,'))
    await expect(page.locator("#settings-json-wrong")).to_contain_text("line 2")
    await expect(page.get_by_role("button", name="Train in Cloud")).to_have_attribute("aria-disabled", "true")
    await page.get_by_role("tab", name="JSON").press("ArrowLeft")
    await expect(page.get_by_text("Fix it first")).to_be_visible()
    await page.get_by_role("tab", name="Settings").press("ArrowRight")
    await text.fill(said.replace('"sdxl"', '"flux"'))
    await expect(page.locator("#saved-state")).to_have_text("Changed, not saved")
    # It said so before this change, too: what counts is that the draft is kept.
    await page.wait_for_function(
        "() => [localStorage, sessionStorage].some((kept) => Object.values(kept).some((one) => one.includes('flux')))"
    )
    await visit(page, "/configs")
    await visit(page, "/train?config=mine")
    await expect(page.get_by_text("Your earlier changes have been restored.")).to_be_visible()
    await expect(page.get_by_role("combobox", name="Model family")).to_have_value("flux")
    await page.get_by_label("Add a setting").fill("gradient_checkpointing")
    await page.get_by_label("Value", exact=True).fill("true")
    await page.get_by_label("Value", exact=True).press("Enter")
    await expect(page.get_by_label("gradient_checkpointing", exact=True)).to_have_value("true")
    await page.get_by_role("button", name="Save only").click()
    await expect(page.locator("#saved-state")).to_have_text("Version 2")
    assert stored(ours, "mine")["settings"] == SETTINGS | {
        "model_family": "flux",
        "--seed": 7,
        "learning_rate": 1e-4,
        "gradient_checkpointing": True,
    }
    assert stored(ours, "mine")["env"] == {"A": "1"}
    await visit(page, "/train?config=mine")
    await expect(page.get_by_text("Your earlier changes have been restored.")).to_be_hidden()
    changes = ours.world.get("/api/configs/mine/diff")["changes"]
    assert {change["path"] for change in changes} == {
        f"$.settings.{name}" for name in ("model_family", "seed", "learning_rate", "gradient_checkpointing")
    }


async def test_a_config_of_another_is_changed_for_one_s_own_job_and_stays_as_it_was(
    ours: Console, page_as: Pages
) -> None:
    put(ours, "theirs", ours.world.command(sys.executable, "-c", "print(1)"))
    page = await page_as(ours, "member")
    await visit(page, "/train?config=theirs")
    await page.get_by_label("Command, one argument per line").fill(f"{sys.executable}\n-c\nprint(2)")
    await expect(page.locator("#changes")).to_contain_text("print(2)")
    await expect(page.locator("#save-choice")).to_be_hidden()
    await page.get_by_role("button", name="Train in Cloud").click()
    await page.wait_for_url(re.compile(r"/jobs/j_"))
    assert stored(ours, "theirs")["settings"]["command"][-1] == "print(1)"


async def test_a_dataset_that_the_config_needs_is_asked_for_and_chosen(
    ours: Console, page_as: Pages, tmp_path: Path
) -> None:
    folder = tmp_path / "cats"
    folder.mkdir()
    (folder / "1.txt").write_text("a cat")
    assert ours.world.cli("data", "push", str(folder), "--name", "all-cats").returncode == 0
    put(ours, "cats", {"settings": {"a": 1}, "dataloader": [{"dir": "dataset://cats"}]})
    page = await page_as(ours, "member")
    await visit(page, "/train?config=cats")
    await expect(outlook(page)).to_contain_text("The config references the dataset 'cats'")
    tab = page.get_by_role("tab", name="Data")
    await expect(tab).to_have_class("wrong")
    await tab.click()
    await page.get_by_label("Name in the config").fill("cats")
    await page.get_by_label("Dataset", exact=True).select_option(label="all-cats")
    await page.get_by_role("button", name="Add").first.click()
    await expect(page.locator("#mounts")).to_contain_text("dataset://cats")
    await expect(outlook(page)).to_contain_text("Matches")
    await axe(page)
    await page.get_by_role("button", name="Remove cats").click()
    await expect(outlook(page)).to_contain_text("Cannot be submitted yet")


async def test_what_is_wrong_is_named_while_typing_and_nothing_is_sent(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, "/train?new=command")
    await expect(outlook(page)).to_contain_text("Matches")
    command = page.get_by_label("Command, one argument per line")
    await command.fill("")
    await expect(outlook(page)).to_contain_text("settings.command")
    await expect(command).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_role("tab", name="Settings")).to_have_class("wrong")
    said = command.locator("xpath=..").locator(".field-error")
    await expect(said).to_contain_text("command")
    described_by = await command.get_attribute("aria-describedby") or ""
    assert described_by.split()[1:] == [await said.get_attribute("id")], "after the hint"
    await page.get_by_role("tab", name="JSON").click()
    await page.get_by_role("button", name="Train in Cloud").press("Enter")
    await expect(command).to_be_focused()
    await expect(page).to_have_url(re.compile(r"/train\?new=command$"))
    await command.fill("true")
    await page.get_by_label("GPUs", exact=True).fill("16")
    await expect(outlook(page)).to_contain_text("Cannot start as configured")
    await expect(command).not_to_have_attribute("aria-invalid", "true")
    await expect(said).to_have_count(0)
    await axe(page)


async def test_a_job_can_be_sent_off_again_with_its_wishes(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, f"/train?job={fleet.state.jobs['hostile']}")
    await expect(page.locator("#labels .chip")).to_contain_text("gpu_type=?><img*")
    await expect(page.get_by_label("GPUs", exact=True)).to_have_value("1")
    await expect(outlook(page)).to_contain_text("Matches 1 worker")


async def test_a_config_is_imported_compared_exported_and_deleted(
    ours: Console, page_as: Pages, tmp_path: Path
) -> None:
    folder = tmp_path / "import" / "portraits"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"model_family": "sd3", "scale": 1.0, "data_backend_config": "config/data.json"})
    )
    (folder / "data.json").write_text('[{"id": "faces"}]')
    (folder / "prompts.txt").write_text("a face")
    (folder / ".hidden").write_text("no")
    page = await page_as(ours, "admin")
    await visit(page, "/configs")
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("Or choose a folder").set_input_files(folder)
    await expect(page.locator("#import-told")).to_have_text("3 settings read.")
    await expect(page.locator("#import-name")).to_have_value("portraits")
    await page.locator("#import").get_by_role("button", name="Import").click()
    await page.wait_for_url("**/configs/portraits")
    kept = stored(ours, "portraits")
    assert kept["dataloader"] == [{"id": "faces"}]
    assert kept["files"] == {"prompts.txt": "a face"}

    put(ours, "portraits", {"settings": {"model_family": "sd3", "scale": 2.0}})
    await visit(page, "/configs/portraits")
    await expect(page.get_by_role("heading", name="Version 1 to version 2")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="settings.scale")
    await expect(row).to_contain_text("1.0")
    await expect(row).to_contain_text("2.0")
    await axe(page)
    async with page.expect_download() as fetched:
        await page.get_by_role("link", name="Export").click()
    file = await fetched.value
    assert file.suggested_filename == "portraits-v2.json"
    assert settings_in(await file.path()) == {"model_family": "sd3", "scale": 2.0}

    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete portraits").click()
    await page.wait_for_url("**/configs")
    await expect(page.get_by_text("portraits")).to_have_count(0)


def test_looking_ahead_speaks_the_readers_language_and_stores_nothing(fleet: Console) -> None:
    world = fleet.world
    before = world.get("/api/queue/stats")["total"]
    asked = {"config": {"settings": {"num_processes": 0}}}
    answer = world.call("POST", "/train/check", asked, **{"accept-language": "ja"})
    body = answer.json()
    assert answer.status_code == 200
    assert body["ok"] is False
    (wrong,) = body["wrong"]
    assert wrong["path"] == "settings.num_processes"
    assert wrong["text"]
    assert "num_processes must be 1 or more" not in wrong["text"]
    assert "num_processes must be 1 or more" not in body["outlook"]
    hostile = {"config_name": "x<script>", "config": {"settings": {"a": 1}}}
    answer = world.call("POST", "/train/check", hostile)
    assert "<script>" not in answer.json()["outlook"]
    assert [one["path"] for one in answer.json()["wrong"]] == ["config_name"]
    assert world.get("/api/queue/stats")["total"] == before


async def test_where_no_worker_has_joined_the_way_to_one_is_shown() -> None:
    asked = {"config_name": "x", "config": {"settings": {"a": 1}}}
    async with orchestrator(pages=train.ROUTES) as running:
        checked = await running.post("/train/check", asked)
        assert checked["ok"] is True
        assert "The job is at position 1 in the queue." in checked["outlook"]
        assert "/admin/workers/create" in checked["outlook"]
        async with running.as_user(await running.token("queue.submit", "queue.submit.command")) as member:
            answer = await member.post("/train/check", json=asked)
        assert "/admin/workers/create" not in answer.json()["outlook"]


def test_who_may_not_submit_is_told_so(fleet: Console) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in fleet.cookies("viewer").items())
    answer = fleet.world.client.get(fleet.url + "/train", headers={"accept": "text/html", "cookie": cookie})
    assert answer.status_code == 403
    assert "queue.submit" in answer.text


def test_every_beginning_is_a_sound_config_that_its_form_knows() -> None:
    assert set(STARTERS) == set(STARTER_NAMES)
    for bundle in STARTERS.values():
        read = read_bundle(bundle)
        known = {key for field in FIELDS[read.trainer] for key in field.keys}
        assert set(read.settings) <= known


def test_a_priority_that_takes_a_permission_is_offered_to_those_who_have_it(ours: Console) -> None:
    offers: dict[Role, list[str]] = {
        "admin": ["urgent", "high", "normal", "low"],
        "member": ["normal", "low"],
    }
    for role, offered in offers.items():
        cookie = "; ".join(f"{name}={value}" for name, value in ours.cookies(role).items())
        headers = {"accept": "text/html", "cookie": cookie}
        html = ours.world.client.get(f"{ours.url}/train", headers=headers).text
        choices = re.search(r'<select id="priority".*?</select>', html, re.DOTALL)
        assert choices
        assert re.findall(r'value="(\w+)"', choices[0]) == offered


OPTIONS = {
    "version": "4.10.1",
    "options": [
        {"names": ["learning_rate"], "kind": "float"},
        {
            "names": ["max_train_steps"],
            "kind": "int",
            "least": 0,
            "most": 100_000,
            "default": "30000",
            "help": "How long it <b>lasts</b>.",
        },
        {"names": ["model_family"], "kind": "text", "choices": ["sdxl", "flux"]},
        {"names": ["push_to_hub"], "kind": "switch"},
    ],
}


async def test_what_the_trainer_itself_would_say_stands_beside_the_job_and_marks_its_fields(
    ours: Console, page_as: Pages
) -> None:
    world = ours.world
    put(ours, "checked", {"settings": {"model_family": "sdxl", "max_train_steps": 10}})
    page = await page_as(ours, "admin")
    await visit(page, "/train?config=checked")
    await expect(outlook(page)).to_contain_text("The settings were not checked")
    await expect(page.locator("#form")).to_contain_text("No worker has reported the trainer's options yet")

    report_options(world, "teller")
    await visit(page, "/train?config=checked")
    await expect(outlook(page)).to_contain_text("SimpleTuner 4.10.1 accepts these settings.")

    # The form offers what the trainer says of itself: its choices, and all its options by name.
    await expect(page.locator("#form")).to_contain_text(
        "All 4 options of SimpleTuner 4.10.1 can be added by name"
    )
    family = page.get_by_role("combobox", name="Model family")
    offered = "field => [...field.list.options].map((option) => option.value)"
    assert await family.evaluate(offered) == ["sdxl", "flux"]
    new = page.get_by_role("combobox", name="Add a setting")
    assert await new.evaluate(offered) == ["learning_rate", "max_train_steps", "model_family", "push_to_hub"]
    await new.fill("push_to_hub")
    await expect(page.locator("#new-said")).to_have_text("true or false")
    await page.get_by_label("Value").fill("true")
    await page.keyboard.press("Enter")
    switch = page.get_by_role("combobox", name="push_to_hub", exact=True)
    assert await switch.evaluate("field => [field.localName, field.value]") == ["select", "true"]
    await switch.select_option("false")
    await axe(page)

    steps = page.get_by_role("textbox", name="Training steps")
    await page.get_by_role("tab", name="JSON").click()
    await expect(page.get_by_label("Trainer settings as JSON")).to_have_value(
        re.compile('"push_to_hub": false')
    )
    text = page.get_by_label("Trainer settings as JSON")
    await text.fill(
        '{"model_family": "sdxx", "learning_rte": 1, "max_train_steps": "many", "push_to_hub": true}'
    )
    findings = outlook(page).locator(".findings")
    await expect(findings).to_contain_text("SimpleTuner 4.10.1 would reject these settings")
    said = [await one.inner_text() for one in await findings.get_by_role("listitem").all()]
    assert "'model_family' must be one of sdxl, flux, not \"sdxx\". Did you mean 'sdxl'?" in said[0]
    assert "has no option 'learning_rte'. Did you mean 'learning_rate'?" in said[1]
    assert said[3].startswith("Warning:"), "what is only odd comes last"
    await page.get_by_role("tab", name="Settings").click()
    await expect(steps).to_have_attribute("aria-invalid", "true")
    await expect(family).to_have_attribute("aria-invalid", "true")
    await expect(family.locator("xpath=..").locator(".field-error")).to_contain_text("Did you mean 'sdxl'?")
    await expect(page.get_by_role("button", name="Train in Cloud")).not_to_have_attribute(
        "aria-disabled", "true"
    )
    await axe(page)
    await steps.fill("20")
    await expect(steps).not_to_have_attribute("aria-invalid", "true")
    page = await page_as(ours, "admin", language="ja")
    await visit(page, "/train?config=checked")
    await expect(outlook(page)).to_contain_text("SimpleTuner 4.10.1 はこの設定を受け付けます")


async def test_each_field_says_what_the_trainer_says_of_it_and_where_its_bounds_are(
    ours: Console, page_as: Pages
) -> None:
    world = ours.world
    put(ours, "bounded", {"settings": {"model_family": "sdxl", "max_train_steps": 10}})
    report_options(world, "bounds-teller")
    page = await page_as(ours, "admin")
    await visit(page, "/train?config=bounded")
    steps = page.get_by_role("textbox", name="Training steps")
    beside = steps.locator("xpath=..")
    await expect(beside.locator("[data-told]")).to_have_text(
        "0 to 100000 · default: 30000 · How long it <b>lasts</b>."
    )
    await expect(steps).to_have_accessible_description(re.compile("0 to 100000"))
    # What is merely odd keeps nobody from sending the job off.
    await steps.fill("100001")
    await expect(beside.locator(".odd")).to_have_text(
        "SimpleTuner 4.10.1 expects 'max_train_steps' to be at most 100000, not 100001."
    )
    await expect(steps).not_to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_role("button", name="Train in Cloud")).not_to_have_attribute(
        "aria-disabled", "true"
    )
    await axe(page)
    await steps.fill("100000")
    await expect(beside.locator(".odd")).to_have_count(0)
    page = await page_as(ours, "admin", language="pt-BR")
    await visit(page, "/train?config=bounded")
    beside = page.locator("#set-simpletuner-max_train_steps").locator("xpath=..")
    await expect(beside.locator("[data-told]")).to_contain_text("0 a 100000 · padrão: 30000")


async def test_a_trainer_whose_options_nobody_asks_for_is_not_called_unchecked(
    ours: Console, page_as: Pages
) -> None:
    put(ours, "plain", ours.world.command("true"))
    page = await page_as(ours, "admin")
    await visit(page, "/train?config=plain")
    await expect(outlook(page).locator(".verdict")).to_be_visible()
    await expect(outlook(page)).not_to_contain_text("not checked")


async def is_wrong(field: Locator, text: str) -> None:
    """It is marked, and what is wrong stands in its own box."""
    await expect(field).to_have_attribute("aria-invalid", "true")
    box = field.locator("xpath=ancestor::div[contains(concat(' ', @class, ' '), ' field ')][1]")
    await expect(box.locator(".field-error")).to_contain_text(text)


async def test_settings_of_trainers_without_a_schema_are_marked_where_they_stand(
    ours: Console, page_as: Pages
) -> None:
    page = await page_as(ours, "admin")
    await visit(page, "/train?new=command")
    command = page.get_by_role("textbox", name="Command, one argument per line")
    await command.fill("")
    await is_wrong(command, "needs settings.command")
    await command.fill("true")
    await expect(command).not_to_have_attribute("aria-invalid", "true")
    await page.get_by_role("combobox", name="Add a setting").fill("expected_step")
    await page.get_by_label("Value").fill("5")
    await page.keyboard.press("Enter")
    await is_wrong(page.locator("#other-expected_step"), "did you mean 'expected_steps'?")
    await axe(page)
    await page.get_by_role("button", name="Remove expected_step").click()
    send = page.get_by_role("button", name="Train in Cloud")
    await expect(send).not_to_have_attribute("aria-disabled", "true")
    for trainer in ("accelerate", "torchrun"):
        await page.get_by_label("Trainer", exact=True).select_option(trainer)
        script = page.locator(f"#set-{trainer}-script")
        await is_wrong(script, "settings.script")
        await script.fill("/data/train.py")
        processes = page.locator(f"#set-{trainer}-num_processes")
        await processes.fill("many")
        await is_wrong(processes, "num_processes must be a whole number.")
        await processes.fill("")
        await script.fill("")
