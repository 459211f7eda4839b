"""The first thing anybody runs."""

import re
import subprocess
import sys

import pytest

SIMPLETUNER = [sys.executable, "-m", "simpletuner_fleet.cli.main"]


@pytest.mark.timeout(240)
def test_the_demo_loses_its_machine_and_goes_on_from_the_checkpoint() -> None:
    done = subprocess.run(
        [*SIMPLETUNER, "demo", "--chaos", "--steps", "600"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1 on demo-worker-1: lost" in done.stdout
    resumed = re.search(r"attempt 2 on demo-worker-2: completed, resumed from step (\d+)", done.stdout)
    assert resumed is not None, done.stdout
    assert int(resumed[1]) >= 75
    assert "kept: model" in done.stdout
    assert "valid: True" in done.stdout
