"""What somebody is editing is not written over what somebody else has changed meanwhile."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from playwright.async_api import Locator, Page, Route, expect

from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.store.sealing import SealedVault
from tests.web.browser import axe, visit
from tests.web.console import Pages
from tests.web.machines import A100, Machine
from tests.web.stage import Stage

TEMPLATES = Path(__file__).parents[3] / "src" / "simpletuner_fleet" / "web" / "templates"
FORM = re.compile(
    r"<form\b[^>]*?data-api=\"(?:\{\{ '|)(?:PUT|PATCH|POST(?= /api/queue/concurrency)) ([^\"{?]+)[^>]*>"
)
"""What a form adds is new; of what it posts, the limits alone are there already."""
EDITS_NOTHING = {
    "/api/me/views/",
    "/api/me",
    "/api/secrets/",
    "/api/pools/",
}
"""Where a name is new, a secret is written that nobody reads, or somebody changes their own password."""
CHANGED = "This has changed since you opened it."
RULE = {"name": "dear", "config": "sdxl-*", "gpus_over": 2}
POOL = {"provider": "process", "trainers": ["demo"], "min_machines": 1, "max_machines": 3}
MAIL = {
    "name": "ops",
    "channel": "webhook",
    "address": "https://hooks.example.org/a",
    "events": ["job.failed"],
}


@pytest.fixture
async def editing(stage: Stage, tmp_path: Path) -> AsyncIterator[Stage]:
    """Pools and notifications can be kept."""
    deps = stage.running.deps
    deps.fleet.vault = SealedVault.at(tmp_path / "key")
    deps.provisioner = Provisioner(deps.fleet, tmp_path, {}, {})
    yield stage
    await deps.provisioner.stop()


class Edit(Struct, frozen=True):
    """A form in which somebody types, while somebody else changes another field and this one of the same thing."""

    path: str
    api: str
    opener: str
    """The name of the button that opens it; empty: it stands in the page."""
    form: str
    own: tuple[str, str]
    """What is typed, and where."""
    other: tuple[str, str]
    """A field that is not touched here, and what it is changed to by the other."""
    body: dict[str, Any]
    method: str = "PATCH"


async def ask(stage: Stage, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await stage.running.http.request(method, path, json=body)
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


async def a_job(stage: Stage) -> Edit:
    job = await stage.crew.queue("admin", config_name="sdxl-cats", target="worker", name="owls", gpus=16)
    return Edit(
        f"/jobs/{job}", f"/api/jobs/{job}", "Edit", "#edit-job-form",
        ("#edit-name", "my owls"), ("#edit-gpus", "9"), {"gpus": 9},
    )  # fmt: skip


async def a_pool(stage: Stage) -> Edit:
    await ask(stage, "PUT", "/api/pools/demo", POOL)
    return Edit(
        "/machines/pools/demo", "/api/pools/demo", "Change", "#edit-pool-form",
        ("#edit-max", "7"), ("#edit-min", "2"), {**POOL, "min_machines": 2}, "PUT",
    )  # fmt: skip


async def an_endpoint(stage: Stage) -> Edit:
    one = (await ask(stage, "POST", "/api/notifications", MAIL))["endpoint"]["id"]
    return Edit(
        f"/notifications?endpoint={one}", f"/api/notifications/{one}", "Change", "#edit-endpoint-form",
        ("#edit-name", "my ops"), ("#edit-scope", "all"), {"scope": "all"},
    )  # fmt: skip


async def a_rule(stage: Stage) -> Edit:
    one = (await ask(stage, "POST", "/api/approvals/rules", RULE))["id"]
    return Edit(
        f"/approvals?rule={one}", f"/api/approvals/rules/{one}", "", "#rule-edit-form",
        ("#changed-rule-config", "mine-*"), ("#changed-rule-gpus", "8"), {**RULE, "gpus_over": 8}, "PUT",
    )  # fmt: skip


async def the_labels_of_a_worker(stage: Stage) -> Edit:
    machine = await stage.machine("nova")
    return Edit(
        f"/admin/workers/{machine.id}", f"/api/admin/workers/{machine.id}", "", "#labels-form",
        ("#labels-key", "rack=r1"), ("#labels-form [data-labels-chips]", "room=north"),
        {"labels": {"room": "north"}},
    )  # fmt: skip


async def the_limits(stage: Stage) -> Edit:
    return Edit(
        "/admin/settings", "/api/queue/concurrency", "", "#limits-form", ("#each", "2"), ("#global", "5"),
        {"global_running": 5, "user_running": None}, "POST",
    )  # fmt: skip


EDITS = [a_job, a_pool, an_endpoint, a_rule]
Prepare = Callable[[Stage], Awaitable[Edit]]


async def opened(page: Page, edit: Edit) -> Locator:
    await visit(page, edit.path)
    if edit.opener:
        await page.get_by_role("button", name=edit.opener, exact=True).first.click()
    return page.locator(edit.form)


async def stand_still(page: Page) -> None:
    """The page hears of nothing, as one whose stream is late."""
    await page.locator("#live").click()
    await expect(page.locator("#live")).to_have_text("Paused")


async def save(form: Locator) -> None:
    await form.locator("button.primary, button:not([type=button])").last.click()


@pytest.mark.parametrize("prepare", EDITS)
async def test_a_save_is_refused_where_somebody_else_has_changed_it_meanwhile(
    editing: Stage, page_as: Pages, prepare: Prepare
) -> None:
    edit = await prepare(editing)
    page = await page_as(editing, "admin")
    await visit(page, edit.path)
    await stand_still(page)
    if edit.opener:
        await page.get_by_role("button", name=edit.opener, exact=True).first.click()
    form = page.locator(edit.form)
    await page.locator(edit.own[0]).fill(edit.own[1])
    await ask(editing, edit.method, edit.api, edit.body)
    await save(form)
    await expect(form.get_by_role("alert")).to_contain_text(CHANGED)
    await expect(page.locator(edit.other[0]), "what was not touched shows what it is now").to_have_value(
        edit.other[1]
    )
    await expect(page.locator(edit.own[0]), "what was typed stays").to_have_value(edit.own[1])
    await axe(page)
    await save(form)
    await expect(form).to_be_hidden()
    await visit(page, edit.path)
    await expect(page.locator(edit.own[0])).to_have_value(edit.own[1])
    await expect(page.locator(edit.other[0])).to_have_value(edit.other[1])


@pytest.mark.parametrize("prepare", [a_job, a_pool])
async def test_an_open_dialog_says_that_somebody_else_changes_it(
    editing: Stage, page_as: Pages, prepare: Prepare
) -> None:
    edit = await prepare(editing)
    page = await page_as(editing, "admin")
    form = await opened(page, edit)
    await ask(editing, edit.method, edit.api, edit.body)
    await expect(form.get_by_role("alert")).to_contain_text(CHANGED)
    await expect(page.locator(edit.other[0])).to_have_value(edit.other[1])


@pytest.mark.parametrize("prepare", [a_job, a_pool, an_endpoint])
async def test_a_dialog_that_is_opened_again_shows_what_was_saved(
    editing: Stage, page_as: Pages, prepare: Prepare
) -> None:
    edit = await prepare(editing)
    page = await page_as(editing, "admin")
    form = await opened(page, edit)
    await page.locator(edit.own[0]).fill(edit.own[1])
    async with page.expect_response(lambda answer: answer.request.headers.get("x-live") == "1"):
        await save(form)
        await expect(form).to_be_hidden()
    await page.wait_for_function("(form) => !document.querySelector(form).matches('[open] *')", arg=edit.form)
    await page.get_by_role("button", name=edit.opener, exact=True).first.click()
    await expect(page.locator(edit.own[0])).to_have_value(edit.own[1])
    await expect(form.get_by_role("alert")).to_have_count(0)
    await page.locator(edit.own[0]).fill("9")
    await form.get_by_role("button", name="Back").click()
    await page.get_by_role("button", name=edit.opener, exact=True).first.click()
    await expect(page.locator(edit.own[0])).to_have_value(edit.own[1])


async def test_labels_of_a_worker_that_somebody_else_sets_are_not_taken_away(
    editing: Stage, page_as: Pages
) -> None:
    edit = await the_labels_of_a_worker(editing)
    page = await page_as(editing, "admin")
    form = await opened(page, edit)
    await stand_still(page)
    await ask(editing, "PATCH", edit.api, edit.body)
    await page.locator("#labels-key").fill("rack=r1")
    await save(form)
    await expect(form.get_by_role("alert")).to_contain_text(CHANGED)
    assert (await editing.running.get(edit.api))["labels"] == {"room": "north"}
    for label in ("room=north", "rack=r1"):
        await expect(page.locator("[data-labels-chips]"), "both have added one").to_contain_text(label)
    await save(form)
    await expect(page.get_by_text("Labels saved.")).to_be_visible()
    assert (await editing.running.get(edit.api))["labels"] == {"room": "north", "rack": "r1"}
    await page.locator("#labels-key").fill("row=7")
    await save(form)
    await expect(page.locator("[data-labels-chips]")).to_contain_text("row=7")
    await expect(form.get_by_role("alert")).to_have_count(0)


async def test_limits_that_somebody_else_sets_are_not_taken_away(editing: Stage, page_as: Pages) -> None:
    edit = await the_limits(editing)
    page = await page_as(editing, "admin")
    form = await opened(page, edit)
    await ask(editing, edit.method, edit.api, edit.body)
    await page.locator(edit.own[0]).fill(edit.own[1])
    await save(form)
    await expect(form.get_by_role("alert")).to_contain_text(CHANGED)
    await expect(page.locator(edit.other[0])).to_have_value(edit.other[1])
    await save(form)
    await expect(page.get_by_text("Limits saved.")).to_be_visible()
    limits = await editing.running.get(edit.api)
    assert (limits["global_running"], limits["user_running"]) == (5, 2)


async def test_labels_stay_in_sight_when_a_worker_comes_with_its_gpus(editing: Stage, page_as: Pages) -> None:
    made = await ask(editing, "POST", "/api/admin/workers", {"name": "nova", "labels": {"room": "north"}})
    page = await page_as(editing, "admin")
    await visit(page, f"/admin/workers/{made['worker_id']}")
    await page.locator("#labels-key").fill("rack=r1")
    await page.locator("[data-labels-add]").click()
    await page.locator("#labels-key").blur()
    machine = await Machine(editing.running, made).come(A100)
    await expect(page.locator("#readings"), "the page has another part now").to_be_attached()
    for label in ("room=north", "rack=r1"):
        await expect(page.locator("[data-labels-chips]")).to_contain_text(label)
    await machine.goodbye("the end")


async def test_a_start_keeps_its_seconds_when_something_else_is_edited(
    editing: Stage, page_as: Pages
) -> None:
    start_at = float(int(editing.running.deps.fleet.clock.now()) // 60 * 60 + 86_430)
    job = await editing.crew.queue(
        "admin", config_name="sdxl-cats", target="worker", not_before=rfc3339(start_at)
    )
    page = await page_as(editing, "admin")
    await visit(page, f"/jobs/{job}")
    await page.get_by_role("button", name="Edit", exact=True).first.click()
    await page.locator("#edit-name").fill("owls")
    await save(page.locator("#edit-job-form"))
    await expect(page.get_by_role("heading", name="owls", exact=True)).to_be_visible()
    after = await editing.running.deps.fleet.read(lambda view: view.job(job))
    assert after is not None
    assert after.start_at == start_at


class Held:
    """What matches is held back until it may go on; all that is sent by this method meanwhile is noted."""

    def __init__(self) -> None:
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.answered: asyncio.Queue[str] = asyncio.Queue()

    async def look(self, route: Route) -> None:
        if "x-live" not in route.request.headers:
            return await route.fallback()
        return await self.all(route)

    async def all(self, route: Route) -> None:
        self.asked.set()
        await self.may_go_on.wait()
        await route.continue_()
        self.answered.put_nowait(route.request.url)


async def two_users(stage: Stage) -> tuple[str, str]:
    eva, bob = [
        await ask(stage, "POST", "/api/admin/users", {"name": name, "role": "viewer"})
        for name in ("Eva", "Bob")
    ]
    return eva["id"], bob["id"]


async def choose_role(page: Page, name: str, role: str) -> Locator:
    await page.get_by_role("button", name=f"Change the role of {name}").click()
    dialog = page.get_by_role("dialog", name="Change role")
    await dialog.get_by_role("radio", name=re.compile(role)).check()
    return dialog


async def roles(stage: Stage, *ids: str) -> list[str]:
    users = await stage.running.deps.fleet.read(lambda view: [view.user(one) for one in ids])
    return [user.role if user else "" for user in users]


async def test_nobody_gets_the_role_that_was_chosen_for_somebody_else(editing: Stage, page_as: Pages) -> None:
    eva, bob = await two_users(editing)
    page = await page_as(editing, "admin")
    await visit(page, "/admin/users")
    await stand_still(page)
    held = Held()
    await page.route("**/admin/users", held.look)
    dialog = await choose_role(page, "Eva", "Member")
    await dialog.get_by_role("button", name="Change role").click()
    await held.asked.wait()
    await page.keyboard.press("Escape")
    await choose_role(page, "Bob", "Administrator")
    held.may_go_on.set()
    await held.answered.get()
    await dialog.get_by_role("button", name="Change role").click()
    await expect(page.get_by_role("row", name=re.compile("Bob"))).to_contain_text("Administrator")
    assert await roles(editing, eva, bob) == ["viewer", "admin"]


async def test_a_late_answer_closes_no_dialog_that_is_about_something_else(
    editing: Stage, page_as: Pages
) -> None:
    eva, bob = await two_users(editing)
    page = await page_as(editing, "admin")
    await visit(page, "/admin/users")
    await stand_still(page)
    held = Held()
    await page.route(f"**/api/admin/users/{eva}", held.all)
    dialog = await choose_role(page, "Eva", "Member")
    await dialog.get_by_role("button", name="Change role").click()
    await held.asked.wait()
    await page.keyboard.press("Escape")
    await choose_role(page, "Bob", "Administrator")
    held.may_go_on.set()
    await expect(page.get_by_role("row", name=re.compile("Eva"), include_hidden=True)).to_contain_text(
        "Member"
    )
    await expect(dialog.get_by_role("radio", name=re.compile("Administrator"))).to_be_checked()
    await dialog.get_by_role("button", name="Change role").click()
    await expect(page.get_by_role("row", name=re.compile("Bob"))).to_contain_text("Administrator")
    assert await roles(editing, eva, bob) == ["member", "admin"]


async def test_what_is_left_before_it_is_sent_is_not_said_to_be_saved(editing: Stage, page_as: Pages) -> None:
    edit = await a_job(editing)
    page = await page_as(editing, "admin")
    form = await opened(page, edit)
    held = Held()
    await page.route(f"**{edit.path}", held.look)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method) if request.method == "PATCH" else None)
    await page.locator(edit.own[0]).fill(edit.own[1])
    await save(form)
    await held.asked.wait()
    await page.keyboard.press("Escape")
    await expect(form).to_be_hidden()
    held.may_go_on.set()
    await held.answered.get()
    await page.get_by_role("button", name=edit.opener, exact=True).first.click()
    await page.locator(edit.own[0]).fill("my other owls")
    await save(form)
    await expect(page.get_by_role("heading", name="my other owls")).to_be_visible()
    assert sent == ["PATCH"]


async def test_a_note_and_a_role_that_somebody_else_has_set_are_not_written_over(
    editing: Stage, page_as: Pages
) -> None:
    job = await editing.crew.queue("admin", config_name="sdxl-cats", target="worker", name="owls")
    page = await page_as(editing, "admin")
    await visit(page, f"/jobs/{job}")
    await page.locator("#write > summary").click()
    await page.locator("#note").fill("mine")
    await page.locator("#write > summary").focus()
    await ask(editing, "PUT", f"/api/jobs/{job}/note", {"note": "theirs"})
    await expect(page.locator("#note-form").get_by_role("alert")).to_contain_text(CHANGED)
    await expect(page.locator(".note-text")).to_have_text("theirs")
    await expect(page.locator("#note")).to_have_value("mine")

    made = await ask(editing, "POST", "/api/admin/users", {"name": "Eva", "role": "member"})
    await visit(page, "/admin/users")
    await stand_still(page)
    await page.get_by_role("button", name="Change the role of Eva").click()
    dialog = page.get_by_role("dialog", name="Change role")
    await ask(editing, "PATCH", f"/api/admin/users/{made['id']}", {"role": "viewer"})
    await dialog.get_by_role("button", name="Change role").click()
    await expect(dialog.get_by_role("alert")).to_contain_text(CHANGED)
    await expect(dialog.get_by_role("radio", name=re.compile("Viewer"))).to_be_checked()
    await dialog.get_by_role("radio", name=re.compile("Administrator")).check()
    await dialog.get_by_role("button", name="Change role").click()
    await expect(page.get_by_role("row", name=re.compile("Eva"))).to_contain_text("Administrator")


def test_every_form_that_changes_what_exists_looks_whether_it_has_changed() -> None:
    forms = [
        (path.name, match)
        for path in sorted(TEMPLATES.rglob("*.html"))
        for match in FORM.finditer(path.read_text("utf-8"))
    ]
    careless = {
        (name, match[1])
        for name, match in forms
        if "data-edits" not in match[0] and match[1] not in EDITS_NOTHING
    }
    assert len(forms) >= 12
    assert careless == set()
