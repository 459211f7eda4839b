"""Administration → Settings: what it says of the server comes from the one table of settings."""

import inspect
import re
import sqlite3

from playwright.async_api import expect

from simpletuner_fleet.settings import SERVER
from simpletuner_fleet.web.pages import settings
from simpletuner_fleet.web.pages.settings import FACTS
from tests.web.browser import axe, visit
from tests.web.console import Console, Pages
from tests.web.pages.test_access import ask


def test_the_page_shows_the_settings_that_the_table_says_and_no_others() -> None:
    shown = [fact.setting for _, facts in FACTS for fact in facts if fact.setting]
    assert sorted(shown) == sorted(row.name for row in SERVER if row.on_console)


def test_every_setting_of_the_server_says_whether_the_page_shows_it() -> None:
    assert [row.name for row in SERVER if row.on_console is None] == []
    assert not [row.name for row in SERVER if row.on_console and row.secret], "no secret is shown"


def test_the_names_of_variables_are_typed_in_the_table_alone() -> None:
    assert not re.findall(r"SIMPLETUNER_\w+", inspect.getsource(settings))


def test_the_page_names_the_variable_of_each_setting(fleet: Console) -> None:
    page = ask(fleet, "/admin/settings").text
    assert {row.env for row in SERVER if row.on_console} <= set(re.findall(r"SIMPLETUNER_\w+", page))


async def test_limits_that_cannot_be_read_are_not_shown_as_none_and_can_be_saved_anew(
    own_fleet: Console, page_as: Pages
) -> None:
    world = own_fleet.world
    world.kill_server()
    with sqlite3.connect(world.home / "fleet.db") as connection:
        connection.execute("INSERT OR REPLACE INTO settings (key, value) VALUES ('limits', '{\"global_run')")
    connection.close()
    world.start_server()
    page = await page_as(own_fleet, "admin")
    await visit(page, "/admin/settings")
    await expect(page.locator("#limits .note")).to_contain_text("No job starts until they are saved anew")
    for field, value in (("Total", ""), ("Per user", ""), ("Per team", "3")):
        await expect(page.get_by_label(field)).to_have_value("")
        await page.get_by_label(field).fill(value)
    await axe(page)
    await page.get_by_role("button", name="Save limits").click()
    await expect(page.get_by_text("Limits saved.")).to_be_visible()
    await visit(page, "/admin/settings")
    await expect(page.locator("#limits .note")).to_have_count(0)
    await expect(page.get_by_label("Per team")).to_have_value("3")
