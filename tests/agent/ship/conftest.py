"""What the tests of uploads share."""

from pathlib import Path

import pytest

from simpletuner_fleet.trainers.contract import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("config", "output"):
        (tmp_path / name).mkdir()
    return Paths(attempt_dir=tmp_path, config_dir=tmp_path / "config", output_dir=tmp_path / "output")
