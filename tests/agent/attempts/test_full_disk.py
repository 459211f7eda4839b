"""A worker whose disk takes no more gives back what it cannot start, whatever it was about to write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SMALL_DISK = 'mount -t tmpfs -o size=4m,nr_inodes=300 none "$0" && exec "$@"'
NO_ROOM = "No space left on device"
NOT_STARTED = "start_failed worker: "
BEGAN = ("stopped ", "exited unclear: None")
"""SimpleTuner is not there: its process may have ended before it was stopped."""


def seen_on_a_small_disk(folder: Path, told_by: str) -> dict[str, list[str]]:
    story = [sys.executable, "-m", told_by, str(folder)]
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
            command = [*unshare, "sh", "-c", SMALL_DISK, str(folder), *story]
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            seen: dict[str, list[str]] = json.loads(ran.stdout)
            return seen
    pytest.skip("this machine allows no file system of its own")


def test_a_disk_that_takes_no_more_is_no_fault_of_the_job(tmp_path: Path) -> None:
    """With each further file that it still takes something else cannot be written, until all can."""
    seen = seen_on_a_small_disk(tmp_path, "tests.agent.attempts.full_disk_story")
    for where, endings in seen.items():
        assert [one for one in endings if not one.startswith((NOT_STARTED, *BEGAN))] == [], where
        assert endings[0].startswith(NOT_STARTED), where
        assert all(NO_ROOM in one for one in endings if one.startswith(NOT_STARTED) and where != "checkpoint")
        assert where == "checkpoint" or endings[-1].startswith(BEGAN), where
    for trainer in ("command", "simpletuner"):
        assert f"{NOT_STARTED}cannot make shim.sock: {NO_ROOM}" in seen[f"{trainer} inodes"]
    assert "the checkpoint needs" in seen["checkpoint"][0]


def test_a_worker_that_starts_on_a_full_disk_separates_its_jobs_as_on_any_other(tmp_path: Path) -> None:
    """Or it does not start: a wall that the disk has no room for is not one that this machine does not allow."""
    seen = seen_on_a_small_disk(tmp_path, "tests.agent.attempts.full_start_story")
    usual = seen["plenty"][0]
    assert set(seen["inodes"]) == {usual, "no room"}
    assert (seen["inodes"][0], seen["inodes"][-1]) == ("no room", usual)
    assert seen["kept room"] == [usual, usual], "what its last start has left is room for the next"
    assert seen["waited"] == [usual]
    assert seen["left"] == ["no room"] * 2, "a machine that is paid for by the hour does not wait"
