"""Administration → Users, API tokens, Audit, Settings: who may come in, what each may do, and what was done."""

import csv
import io
import re

import httpx2
import msgspec
from playwright.async_api import expect

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.permissions import EVERYTHING, PERMISSIONS
from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.languages import LANGUAGES, spoken_in, translator
from simpletuner_fleet.languages.names import EVENTS
from simpletuner_fleet.web.pages.audit import event_choices
from simpletuner_fleet.web.parts.audit_rows import audit_row, refused_groups
from simpletuner_fleet.web.parts.names import id_of
from simpletuner_fleet.web.parts.permission_names import GROUPS, PRESETS
from tests.web.browser import PHONE, Role, axe, visit
from tests.web.console import Console, Pages
from tests.web.fleet import PEOPLE
from tests.web.machines import PASSWORD
from tests.web.stage import Stage

SOON_MS = 20_000
expect.set_options(timeout=SOON_MS)


def ask(console: Console, path: str, role: Role = "admin") -> httpx2.Response:
    cookie = "; ".join(f"{name}={value}" for name, value in console.cookies(role).items())
    return console.world.client.get(console.url + path, headers={"accept": "text/html", "cookie": cookie})


def entry(seq: int, kind: EventType, **more: object) -> AuditEntry:
    fields = {"actor_id": "u_1", "actor_name": "Anna", "ip": "10.0.0.1", "target_type": "worker", **more}
    return msgspec.convert(
        {"seq": seq, "at": float(seq), "event_type": kind, "target_id": "w_1", "details": {}, **fields},
        AuditEntry,
    )


async def test_a_user_is_invited_chooses_a_password_is_promoted_and_disabled(
    own_fleet: Console, page_as: Pages
) -> None:
    page = await page_as(own_fleet, "admin")
    await visit(page, "/")
    await page.get_by_role("link", name="Users", exact=True).click()
    await page.get_by_role("button", name="Create user").click()
    dialog = page.get_by_role("dialog", name="Create user")
    await dialog.get_by_label("Name").fill("Dora")
    await dialog.get_by_label("Viewer").check()
    await axe(page)
    await dialog.get_by_role("button", name="Create user").click()

    shown = page.get_by_role("dialog", name="One-time link")
    link = await shown.locator("pre").inner_text()
    assert link.startswith(f"{own_fleet.url}/start?k=")
    await axe(page)
    await shown.get_by_role("button", name="Done").click()
    await expect(page.locator("#the-link pre"), "it does not stay in the page").to_have_text("")
    row = page.get_by_role("row", name=re.compile("Dora"))
    await expect(row).to_contain_text("Invited")

    dora = await page_as(own_fleet, "nobody")
    await visit(dora, link.removeprefix(own_fleet.url))
    await dora.locator("input[type=password]").first.fill("a good long password")
    await dora.locator("form button:not([type=button])").first.click()
    await dora.wait_for_url(f"{own_fleet.url}/")

    await row.get_by_role("button", name="Change the role of Dora").click()
    dialog = page.get_by_role("dialog", name="Change role")
    await expect(dialog.get_by_label("Viewer")).to_be_checked()
    await dialog.get_by_label("Member").check()
    await dialog.get_by_role("button", name="Change role").click()
    await expect(row).to_contain_text("Member")
    await expect(row).to_contain_text("Active")

    await row.get_by_role("button", name="Disable Dora").click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(row).to_contain_text("Disabled")
    await dora.goto("/jobs")
    assert "/login" in dora.url
    await row.get_by_role("button", name="Enable Dora").click()
    await expect(row).to_contain_text("Active")


async def test_a_user_is_given_a_password_and_what_is_wrong_with_one_is_told(
    own_fleet: Console, page_as: Pages
) -> None:
    page = await page_as(own_fleet, "admin", language="pt-BR")
    await visit(page, "/admin/users")
    await page.locator("[data-opens=create-user]").first.click()
    form = page.locator("#create-user form")
    await form.locator("[name=name]").fill("Emil")
    await form.locator("[value=given]").check(force=True)
    await form.locator("[name=password]").fill("aaaaaaaaaaaa")
    await form.locator("button:not([type=button])").click()
    page_as.watch(page).expect("422")
    sentence = translator("pt-BR").gettext("This password is too easy to guess.")
    await expect(form.locator("[data-problem]")).to_contain_text(sentence)
    await form.locator("[name=password]").fill("a good long password")
    await form.locator("button:not([type=button])").click()
    await expect(page.locator("#users")).to_contain_text("Emil")
    assert not await page.locator("#the-link").evaluate("dialog => dialog.open"), "nothing to pass on"
    assert await form.locator("[name=password]").input_value() == ""


async def test_who_logged_in_long_ago_is_told_so_and_led_to_the_log_in_and_back(
    own_fleet: Console, page_as: Pages
) -> None:
    gone = own_fleet.world.post("/api/admin/users", {"name": "Gone", "role": "viewer", "password": PASSWORD})
    own_fleet.world.call("DELETE", f"/api/admin/users/{gone['id']}").raise_for_status()
    page = await page_as(own_fleet, "nobody")
    old = {"name": COOKIE, "value": own_fleet.state.old_session, "url": own_fleet.url}
    await page.context.add_cookies([old])  # type: ignore[list-item]
    page_as.watch(page).expect("403")
    await visit(page, "/admin/users")
    await page.get_by_role("button", name="Enable Gone").click()
    refused = page.locator("#users").get_by_role("alert")
    await expect(refused).to_contain_text("You logged in too long ago for this.")
    await expect(refused.get_by_role("link", name="Log in again")).to_have_attribute(
        "href", "/login?next=%2Fadmin%2Fusers"
    )

    await page.get_by_role("button", name="Create user").click()
    dialog = page.get_by_role("dialog", name="Create user")
    await dialog.get_by_label("Name").fill("Dora")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("You logged in too long ago for this.")
    await dialog.get_by_role("link", name="Log in again").click()
    await page.wait_for_url("**/login?next=%2Fadmin%2Fusers")
    await page.get_by_label("Name").fill("Anna")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{own_fleet.url}/admin/users")
    await page.get_by_role("button", name="Enable Gone").click()
    await expect(page.get_by_role("row", name=re.compile("Gone"))).to_contain_text("Active")


async def test_a_session_that_is_ended_leaves_the_list(stage: Stage, page_as: Pages) -> None:
    async with stage.running.as_user(None) as elsewhere:
        credentials = {"name": PEOPLE["admin"], "password": PASSWORD}
        await elsewhere.post("/api/login", json=credentials, headers={"origin": stage.url})
        page = await page_as(stage, "admin")
        await visit(page, "/me")
        await page.get_by_role("button", name="End session").click()
        await expect(page.get_by_role("button", name="End session")).to_have_count(0)
        assert (await elsewhere.get("/api/me")).status_code == 401


async def test_a_token_is_made_shown_once_used_and_revoked(own_fleet: Console, page_as: Pages) -> None:
    page = await page_as(own_fleet, "admin", size=PHONE)
    await visit(page, "/admin/tokens")
    await page.get_by_role("button", name="Create token").first.click()
    dialog = page.get_by_role("dialog", name="Create token")
    await dialog.get_by_label("Name", exact=True).fill("nightly")
    await dialog.get_by_role("button", name="Read only").click()
    await dialog.get_by_label("Submit jobs queue.submit", exact=True).check()
    await dialog.get_by_label("Expires after").select_option(label="7 days")
    await axe(page)
    await dialog.get_by_role("button", name="Create token").click()

    shown = page.get_by_role("dialog", name="New token")
    secret = await shown.locator("[data-once-text]").inner_text()
    assert not tokens.complaint(secret, tokens.API)
    await shown.get_by_role("button", name="Done").click()
    row = page.locator("tr", has_text="nightly")
    await expect(row).to_contain_text("Expires soon")
    await expect(row).to_contain_text("queue.submit")
    await expect(row).to_contain_text("never")

    headers = {"Authorization": f"Bearer {secret}"}
    who = own_fleet.world.client.get(own_fleet.url + "/api/whoami", headers=headers)
    assert sorted(who.json()["permissions"]) == [
        "configs.read",
        "data.read",
        "jobs.read",
        "queue.read",
        "queue.submit",
    ]
    await page.reload()
    await expect(row).not_to_contain_text("never")

    await row.get_by_role("button", name="Revoke nightly").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(page.locator("#tokens")).not_to_contain_text("nightly")
    refused = own_fleet.world.client.get(own_fleet.url + "/api/whoami", headers=headers)
    assert refused.status_code == 401
    await page.reload()
    await expect(page.locator("#over")).to_contain_text("1 token that is no longer valid")


async def test_the_audit_log_is_filtered_verified_and_taken_along(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, "/admin/audit")
    await expect(page.locator("#refused")).to_contain_text("used a token that was truncated or mistyped")
    await page.get_by_role("button", name="Verify").click()
    await expect(page.locator("#verdict")).to_contain_text("The log is intact.")

    await page.get_by_label("Event").select_option("worker.drained")
    await page.get_by_label("Subject").fill("desk-bruno")
    await page.get_by_label("From").fill("2026-01-02T03:04")
    await page.get_by_role("button", name="Find").click()
    await page.wait_for_url(re.compile("event=worker.drained"))
    assert "since=20" in page.url
    assert "actor" not in page.url
    await expect(page.get_by_label("From")).to_have_value("2026-01-02T03:04")
    await expect(page.locator("#entries")).to_contain_text("1 entry")
    row = page.locator("#entries tbody tr")
    await expect(row).to_contain_text("New power supply")
    await expect(row.get_by_role("link", name="desk-bruno")).to_have_attribute(
        "href", f"/admin/workers/{fleet.state.workers['desk-bruno']}"
    )
    await page.get_by_text("Export", exact=True).click()
    async with page.expect_download() as coming:
        await page.get_by_role("link", name="CSV").click()
    taken = (await (await coming.value).path()).read_text()
    rows = list(csv.DictReader(io.StringIO(taken)))
    assert [one["event_type"] for one in rows] == ["worker.drained"]
    await page.get_by_role("link", name="Clear").click()
    await page.wait_for_url(f"{fleet.url}/admin/audit")


async def test_limits_are_set_and_lifted_and_secrets_stored_without_being_shown(
    own_fleet: Console, page_as: Pages
) -> None:
    page = await page_as(own_fleet, "admin")
    await visit(page, "/admin/settings")
    await page.get_by_label("Total").fill("7")
    await page.get_by_role("button", name="Save limits").click()
    await expect(page.get_by_text("Limits saved.")).to_be_visible()
    limits = own_fleet.world.call("GET", "/api/queue/concurrency").json()
    assert limits == {
        "success": True,
        **dict.fromkeys(("global_running", "max_concurrent"), 7),
        **dict.fromkeys(("user_running", "user_max_concurrent")),
        **dict.fromkeys(("team_running", "team_max_concurrent")),
        "enable_fair_share": False,
        "fair_share_half_life_s": 604_800.0,
    }
    await page.reload()
    await expect(page.get_by_label("Total")).to_have_value("7")
    await page.get_by_label("Total").fill("")
    await page.get_by_role("button", name="Save limits").click()
    await expect(page.get_by_text("Limits saved.")).to_be_visible()
    assert own_fleet.world.call("GET", "/api/queue/concurrency").json()["global_running"] is None

    await page.get_by_role("button", name="Store a secret").click()
    dialog = page.get_by_role("dialog", name="Store a secret")
    await dialog.get_by_label("Name").fill("hf-token")
    await dialog.get_by_label("Value").fill("hf_very-secret")
    await dialog.get_by_role("button", name="Store").click()
    row = page.get_by_role("row", name=re.compile("hf-token"))
    await expect(row).to_contain_text("by Anna")
    assert "hf_very-secret" not in await page.content()
    assert await page.locator("#secret-value").input_value() == ""
    await row.get_by_role("button", name="Replace hf-token").click()
    await expect(dialog.get_by_label("Name")).to_have_value("hf-token")
    await dialog.get_by_label("Value").fill("hf_another")
    await dialog.get_by_role("button", name="Store").click()
    await expect(row).to_contain_text("2")
    await row.get_by_role("button", name="Delete hf-token").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator("#secret-list")).to_contain_text("No secrets yet")


def test_a_forbidden_page_names_the_permission_that_is_missing(fleet: Console) -> None:
    for path, permission in (
        ("/admin/users", "admin.users"),
        ("/admin/tokens", "admin.tokens"),
        ("/admin/audit", "admin.audit"),
        ("/admin/settings", "admin.limits"),
    ):
        answer = ask(fleet, path, "member")
        assert answer.status_code == 403
        assert f"<code>{permission}</code>" in answer.text
        assert 'href="/jobs"' in answer.text, "the way on is at hand"
        assert 'href="/admin/users"' not in answer.text


def test_a_filter_that_is_no_time_is_refused_and_none_that_fits_is_calm(fleet: Console) -> None:
    assert ask(fleet, "/admin/audit?since=yesterday").status_code == 422
    answer = ask(fleet, "/admin/audit?actor=nobody-of-this-name")
    assert (answer.status_code, "No matching entries" in answer.text) == (200, True)
    assert ask(fleet, "/admin/audit?page=2").status_code == 200


def test_every_permission_has_words_and_presets_know_only_those() -> None:
    all_names = [name for _, group in GROUPS for name, _ in group]
    assert sorted(all_names) == sorted([*PERMISSIONS, EVERYTHING])
    assert {name for _, names in PRESETS for name in names} <= set(all_names)


def test_every_event_has_a_name_and_can_be_chosen() -> None:
    assert set(EVENTS) == {str(kind) for kind in EventType}
    assert {value for _, group in event_choices() for value, _ in group} == set(EVENTS)


def test_details_of_an_entry_are_told_in_the_reader_s_language() -> None:
    changed = entry(
        3, EventType.WORKER_STATUS_CHANGED, details={"from": "idle", "to": "busy", "name": "gpu-1"}
    )
    ended = entry(
        4, EventType.JOB_FAILED, details={"worker_id": "w_1", "epoch": 9, "failure_class": "killed"}
    )
    for language in LANGUAGES:
        with spoken_in(translator(language.code)) as words:
            row = audit_row(changed, {"w_1": "gpu-1"})
            assert row.target == "gpu-1"
            assert [value for _, value in row.details] == [words.gettext("Idle"), words.gettext("Busy")]
            assert [value for _, value in audit_row(ended, {"w_1": "gpu-1"}).details] == [
                "gpu-1",
                words.gettext("Stopped externally"),
            ]


def test_the_same_refusal_is_told_once_with_how_often_it_happened() -> None:
    def refused(seq: int, ip: str, code: str) -> AuditEntry:
        return entry(seq, EventType.WORKER_REGISTRATION_FAILED, ip=ip, details={"code": code, "why": "no"})

    newest_first = [
        refused(9, "10.0.0.1", "token_rotated"),
        refused(8, "10.0.0.2", "token_rotated"),
        refused(7, "10.0.0.1", "token_rotated"),
        refused(5, "10.0.0.1", "something_new"),
    ]
    groups = refused_groups(newest_first, {"w_1": "gpu-1"})
    assert [(one.count, one.first_at, one.last_at) for one in groups] == [(2, 7, 9), (1, 8, 8), (1, 5, 5)]
    assert groups[0].text == "10.0.0.1 used a token that has been rotated."
    assert groups[2].text == "10.0.0.1 was refused: no"


def test_a_name_is_known_before_it_is_taken_as_an_id() -> None:
    names = {"u_1": "Anna", "t_1": "robot"}
    assert id_of(" anna ", names) == "u_1"
    assert id_of("j_9", names) == "j_9"
    assert id_of("  ", names) is None
