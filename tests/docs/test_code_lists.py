"""Lists of names that documents write by hand are whole, so that a new one cannot be left out."""

import re
from pathlib import Path

import pytest

from simpletuner_fleet.core.people.permissions import PERMISSIONS
from simpletuner_fleet.core.placement.reasons import Code

DOCS = Path(__file__).parents[2] / "docs"
REASONS = {str(code) for code in Code} - {Code.NOT_WAITING}


@pytest.mark.parametrize(
    ("document", "begins", "names"),
    [
        ("JOB_QUEUE.md", "**Reasons.**", REASONS),
        ("guide.md", "| permission | allows |", set(PERMISSIONS)),
    ],
    ids=["reasons for waiting", "permissions"],
)
def test_every_one_is_there(document: str, begins: str, names: set[str]) -> None:
    passage = (DOCS / document).read_text(encoding="utf-8").split(begins)[1].split("\n\n")[0]
    assert names - set(re.findall(r"`([\w.]+)`", passage)) == set()
