"""The cache lets go only of what is its own."""

from pathlib import Path

import pytest

from simpletuner_fleet.agent.data.data_cache import DataCache


@pytest.mark.parametrize("outside", ["{precious}", "../../precious", "../precious", "", ".", ".."])
def test_an_attempt_with_a_path_for_a_name_costs_nothing_outside(tmp_path: Path, outside: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    cache = DataCache.open(tmp_path / "cache", None)
    try:
        cache.release(outside.format(precious=precious))
        assert (precious / "kept").exists()
        assert (tmp_path / "cache" / "views").is_dir()
    finally:
        cache.close()
