"""Administration → Settings: what it says of the server comes from the one table of settings."""

import inspect
import re

from simpletuner_fleet.settings import SERVER
from simpletuner_fleet.web.pages import settings
from simpletuner_fleet.web.pages.settings import FACTS
from tests.web.console import Console
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
