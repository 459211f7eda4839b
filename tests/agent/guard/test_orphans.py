import os
import secrets
import subprocess
import sys
from pathlib import Path

from simpletuner_fleet.agent.guard.orphans import ATTEMPT_TAG, processes_of, sweep
from tests.agent.shim_fixtures import DOUBLE_FORK, alive, pid_in


def test_processes_of_an_attempt_are_found_by_their_tag_and_ended(tmp_path: Path) -> None:
    attempt = f"a_{secrets.token_hex(6)}"
    environment = {**os.environ, ATTEMPT_TAG: attempt}
    subprocess.run([sys.executable, "-c", DOUBLE_FORK], cwd=tmp_path, env=environment, check=True)
    daemon = pid_in(tmp_path / "daemon.pid")
    assert daemon is not None
    assert processes_of(attempt) == [daemon]
    assert sweep(attempt) == 1
    assert not alive(daemon)
    assert processes_of(attempt) == []


def test_other_attempts_are_left_alone() -> None:
    attempt = f"a_{secrets.token_hex(6)}"
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, ATTEMPT_TAG: f"{attempt}2"})
    try:
        assert sweep(attempt) == 0
        assert alive(other.pid)
        assert sweep(f"{attempt}2") == 1
    finally:
        other.kill()
        other.wait()


def test_a_sweep_that_finds_nothing_is_quick_and_quiet() -> None:
    assert sweep("a_nobody") == 0
