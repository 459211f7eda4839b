import os
import subprocess
import sys
from pathlib import Path

from simpletuner_fleet.agent.orphans import ATTEMPT_TAG, processes_of, sweep
from tests.agent.shim_fixtures import DOUBLE_FORK, alive, pid_in


def test_processes_of_an_attempt_are_found_by_their_tag_and_ended(tmp_path: Path) -> None:
    environment = {**os.environ, ATTEMPT_TAG: "a_swept"}
    subprocess.run([sys.executable, "-c", DOUBLE_FORK], cwd=tmp_path, env=environment, check=True)
    daemon = pid_in(tmp_path / "daemon.pid")
    assert daemon is not None
    assert processes_of("a_swept") == [daemon]
    assert sweep("a_swept") == 1
    assert not alive(daemon)
    assert processes_of("a_swept") == []


def test_other_attempts_are_left_alone() -> None:
    environment = {**os.environ, ATTEMPT_TAG: "a_12"}
    with subprocess.Popen(["sleep", "600"], env=environment) as other:
        assert sweep("a_1") == 0
        assert alive(other.pid)
        assert sweep("a_12") == 1
        other.wait()


def test_a_sweep_that_finds_nothing_is_quick_and_quiet() -> None:
    assert sweep("a_nobody") == 0
