"""One table of settings: every row can be set, and no two are mistaken for each other."""

import pytest

from simpletuner_fleet.settings import GROUPS, Setting


@pytest.mark.parametrize("rows", GROUPS.values(), ids=GROUPS)
def test_names_variables_and_flags_are_each_used_once_in_a_program(rows: tuple[Setting, ...]) -> None:
    for values in (
        [row.name for row in rows],
        [row.env for row in rows],
        [flag for row in rows for flag in row.flags],
    ):
        assert len(values) == len(set(values))


@pytest.mark.parametrize("rows", GROUPS.values(), ids=GROUPS)
def test_every_setting_has_a_variable_and_a_help(rows: tuple[Setting, ...]) -> None:
    assert [row.name for row in rows if not row.env.startswith("SIMPLETUNER_") or not row.help] == []
