"""What `./dev rush` does with ten thousand, here with a few hundred: no ceiling is ever passed, on either database."""

from pathlib import Path

import pytest

from devtools.trials.rush import kept, rush
from simpletuner_fleet.store import open_store


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_what_is_submitted_in_one_moment_never_passes_a_ceiling(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    if database == "postgresql":
        url = request.getfixturevalue("ready_database")
    outcome = await rush(tmp_path / "server", open_store(url), 200)
    assert kept(outcome), outcome
