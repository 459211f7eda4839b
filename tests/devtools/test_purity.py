from pathlib import Path

import pytest

from devtools.purity import PURE_PATHS, impure_lines, impurities_in_text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import time", "imports time"),
        ("import os.path", "imports os.path"),
        ("from asyncio import sleep", "imports from asyncio"),
        ("def f():\n    import random", "imports random"),
        ("async def f(): pass", "async def f"),
        ("print('x')", "calls print()"),
        ("open('x')", "calls open()"),
        ("from datetime import datetime\ndatetime.now()", "reads the clock through datetime.now"),
        ("import datetime\ndatetime.datetime.utcnow()", "reads the clock through datetime.datetime.utcnow"),
        ("from datetime import date\nnow = date.today", "reads the clock through date.today"),
    ],
)
def test_an_impure_line_is_named(text: str, complaint: str) -> None:
    assert [what for _, what in impurities_in_text(text)] == [complaint]


def test_time_handed_in_is_pure() -> None:
    text = """
from datetime import datetime, timedelta

def due(now: datetime, after: timedelta) -> datetime:
    return now + after
"""
    assert impurities_in_text(text) == []


def test_a_complaint_says_where(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text("x = 1\nimport uuid\n")
    assert impure_lines((tmp_path,)) == [f"{file}:2: imports uuid"]


def test_a_pure_file_that_was_moved_away_is_not_taken_for_pure(tmp_path: Path) -> None:
    [complaint] = impure_lines((tmp_path / "moved.py",))
    assert complaint.startswith(f"{tmp_path / 'moved.py'}: is not there")


def test_the_core_and_the_inbox_are_pure() -> None:
    assert impure_lines(PURE_PATHS) == []
