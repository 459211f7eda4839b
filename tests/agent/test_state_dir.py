import os
import subprocess
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.agent.state_dir import StateDir, default_state_dir
from simpletuner_fleet.core.worker_errors import StateDirError, StateDirInUse
from simpletuner_fleet.protocol.messages import JobSubmit


def offer() -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=4,
        config_name="c",
        config={"command": ["true"]},
        trainer="command",
        upload_endpoint="/u",
        upload_token="ut_secret",
    )


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker" / "gpu-1") as state:
        assert state.path.stat().st_mode & 0o777 == 0o700


def test_the_home_id_is_made_once_and_kept(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "one") as state:
        home = state.home
    with StateDir.open(tmp_path / "one") as again, StateDir.open(tmp_path / "two") as other:
        assert again.home == home
        assert other.home != home


def test_a_second_agent_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "w"):
        program = (
            "import sys; from pathlib import Path; from simpletuner_fleet.agent.state_dir import *\n"
            "try: StateDir.open(Path(sys.argv[1]))\nexcept StateDirInUse: print('refused')"
        )
        second = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "w"], capture_output=True, text=True, check=True
        )
        assert second.stdout == "refused\n"
        with pytest.raises(StateDirInUse, match="Another worker is using"):
            StateDir.open(tmp_path / "w")
    StateDir.open(tmp_path / "w").close()


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StateDirError, match="Others may write"):
        StateDir.open(shared)


def test_a_path_that_is_no_folder_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="cannot be used"):
        StateDir.open(tmp_path / "file" / "below")


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", ".hidden", "a\0b", "x" * 129])
def test_names_are_ids_and_never_paths(tmp_path: Path, name: str) -> None:
    with StateDir.open(tmp_path / "w") as state, pytest.raises(StateDirError):
        state.create_attempt(name)
    with pytest.raises(StateDirError):
        default_state_dir(name)


def test_an_attempts_folder_holds_its_order_and_goes_when_told(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "w") as state:
        attempt = state.create_attempt("a_1")
        assert attempt.load_order() is None
        attempt.save_order(offer())
        assert attempt.load_order() == offer()
        assert attempt.order_file.stat().st_mode & 0o077 == 0
        assert attempt.output_dir.is_dir()
        assert attempt.config_dir.is_dir()
        assert state.attempts() == [attempt]
        attempt.retire()
        assert attempt.retired
        assert b"ut_secret" not in attempt.order_file.read_bytes()
        state.remove_attempt("a_1")
        assert state.attempts() == []


def test_an_attempt_is_done_though_the_disk_takes_no_order_without_its_token(tmp_path: Path) -> None:
    """Nobody would remove its folder else, and what it has filled would stay full."""
    with StateDir.open(tmp_path / "w") as state:
        attempt = state.create_attempt("a_1")
        attempt.save_order(offer())
        (attempt.path / ".order.json.tmp").mkdir()
        attempt.retire()
        assert attempt.retired
        assert not attempt.order_file.exists()


@pytest.mark.parametrize("left", [b'{"job_id":', b'{"job_id":"\xff\xfe"}', b""])
def test_an_order_that_the_disk_has_lost_is_none(tmp_path: Path, left: bytes) -> None:
    with StateDir.open(tmp_path / "w") as state:
        attempt = state.create_attempt("a_1")
        attempt.order_file.write_bytes(left)
        assert attempt.load_order() is None


def test_the_lock_does_not_outlive_a_killed_agent(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from simpletuner_fleet.agent.state_dir import StateDir\n"
        "StateDir.open(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "w"], check=False, env=dict(os.environ))
    StateDir.open(tmp_path / "w").close()
