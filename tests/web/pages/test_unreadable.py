"""Settings that cannot be read: no page says that there are none, and each can be set anew or deleted there."""

import sqlite3

from playwright.async_api import expect

from tests.web.browser import axe, visit
from tests.web.console import Console, Pages

CUT_OFF = '{"id":"x_1","na'


def damage(console: Console, *keys: str) -> None:
    world = console.world
    world.kill_server()
    with sqlite3.connect(world.home / "fleet.db") as connection:
        connection.executemany(
            "INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", [(key, CUT_OFF) for key in keys]
        )
    connection.close()
    world.start_server()


async def test_limits_that_cannot_be_read_are_not_shown_as_none_and_can_be_saved_anew(
    own_fleet: Console, page_as: Pages
) -> None:
    damage(own_fleet, "limits")
    page = await page_as(own_fleet, "admin")
    await visit(page, "/admin/settings")
    await expect(page.locator("#limits .note")).to_contain_text("No job starts until they are saved anew")
    for field, value in (("Total", ""), ("Per user", ""), ("Per team", "3")):
        await expect(page.get_by_label(field)).to_have_value("")
        await page.get_by_label(field).fill(value)
    await axe(page)
    await page.get_by_role("button", name="Save limits").click()
    await expect(page.get_by_text("Limits saved.")).to_be_visible()
    await expect(page.locator("#limits .note"), "on the page as it stands").to_have_count(0)
    await expect(page.get_by_label("Per team")).to_have_value("3")
    await visit(page, "/admin/settings")
    await expect(page.locator("#limits .note")).to_have_count(0)
    await expect(page.get_by_label("Per team")).to_have_value("3")


async def test_a_secret_that_cannot_be_read_is_named_and_can_be_deleted(
    own_fleet: Console, page_as: Pages
) -> None:
    damage(own_fleet, "secret:hub")
    page = await page_as(own_fleet, "admin")
    await visit(page, "/admin/settings")
    note = page.locator("#secrets .note", has_text="hub cannot be read, so no job gets it")
    await expect(note).to_have_count(1)
    await expect(page.get_by_text("No secrets yet")).to_have_count(0)
    await axe(page)
    await note.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(note).to_have_count(0)


async def test_what_cannot_be_read_stands_on_its_page_and_can_be_deleted_there(
    own_fleet: Console, page_as: Pages
) -> None:
    pages = {
        "quota:x_1": ("/quotas", "There are no quotas", "Take away"),
        "price_rule:x_1": ("/usage", "No GPU prices are set", "Delete"),
        "approval_rule:x_1": ("/approvals", "No rule asks for approval", "Delete"),
        "team:x_1": ("/teams", "You belong to none", "Delete"),
    }
    damage(own_fleet, *pages)
    page, member = await page_as(own_fleet, "admin"), await page_as(own_fleet, "member")
    await visit(member, "/quotas")
    note = member.locator(".note", has_text="x_1 cannot be read")
    await expect(note).to_have_count(1)
    await expect(note.get_by_role("button")).to_have_count(0)
    await expect(member.get_by_text("No quota concerns you")).to_have_count(0)
    await expect(member.get_by_text("Nobody knows whether a quota concerns you")).to_be_visible()
    for path, none, button in pages.values():
        await visit(page, path)
        note = page.locator(".note", has_text="x_1 cannot be read")
        await expect(note).to_have_count(1)
        await expect(page.get_by_text(none)).to_have_count(0)
        await axe(page)
        await note.get_by_role("button", name="Delete x_1").click()
        await page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()
        await expect(note).to_have_count(0)
