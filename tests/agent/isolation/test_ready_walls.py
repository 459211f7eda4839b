"""Walls that stand before their attempt is known: how a folder becomes an attempt's, and when a wall is out of date."""

import os
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.agent.guard.shim_client import ReadyWall
from simpletuner_fleet.agent.isolation.places import JobPath
from simpletuner_fleet.agent.isolation.walls import FIRST_UID, Kind, Walls, WallSurroundings, _Users
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.trainers.contract import Launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="walls are Linux's")


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    file = tmp_path / "granted.txt"
    file.write_text("first")
    return file


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir.open(tmp_path / "state")


def walls_of(state: StateDir, granted: Path, kind: Kind = "namespace") -> Walls:
    about = WallSurroundings(
        home=str(state.path.parent / "home"),
        environment={},
        pythons=(),
        grants=(JobPath(str(granted), False),),
        hidden=(str(state.path),),
    )
    return Walls(kind, about, state.path, 1)


def ready_of(walls: Walls) -> ReadyWall:
    ready = walls.ready()
    assert ready is not None
    return ready


def test_the_folder_behind_it_becomes_the_attempts_and_the_rest_is_added(
    state: StateDir, granted: Path
) -> None:
    walls = walls_of(state, granted)
    ready = ready_of(walls)
    home = (ready.folder / "job" / "home").stat().st_ino
    attempt = state.attempt("a_1")
    assert walls.move_in(ready, attempt)
    assert not ready.folder.exists()
    assert (attempt.job_dir / "home").stat().st_ino == home
    launch = Launch(argv=["true"], env={}, cwd=str(attempt.job_dir))
    _, wall = walls.raise_around(attempt, None, launch, (), ready=ready)
    assert wall is not None
    assert wall.places == [(str(attempt.job_dir), str(attempt.job_dir), "rw")]
    assert (str(granted), str(granted), "ro") in ready.wall.places


def test_an_attempt_that_has_a_folder_keeps_it(state: StateDir, granted: Path) -> None:
    walls = walls_of(state, granted)
    ready = ready_of(walls)
    attempt = state.create_attempt("a_1")
    (attempt.job_dir / "kept").touch()
    assert not walls.move_in(ready, attempt)
    assert (attempt.job_dir / "kept").exists()
    walls.discard(ready)
    assert not ready.folder.exists()


def test_a_wall_is_out_of_date_once_something_it_shows_was_replaced(state: StateDir, granted: Path) -> None:
    walls = walls_of(state, granted)
    ready = ready_of(walls)
    granted.write_text("other words in the same file")
    assert walls.is_up_to_date(ready)
    other = granted.with_name("other")
    other.write_text("another file of the same name")
    other.rename(granted)
    assert not walls.is_up_to_date(ready)
    assert walls.is_up_to_date(ready_of(walls))


def test_what_an_earlier_agent_prepared_is_cleared(state: StateDir, granted: Path) -> None:
    ready = ready_of(walls_of(state, granted))
    walls_of(state, granted).forget_spares()
    assert not ready.folder.exists()


def test_where_nothing_is_built_ahead_nothing_is_prepared(state: StateDir, granted: Path) -> None:
    assert walls_of(state, granted, "landlock").ready() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to give")
def test_ended_attempts_that_keep_their_users_leave_one_for_the_next() -> None:
    users = _Users(1)
    users.hold("adopted", FIRST_UID)
    given = [users.give(f"a_{number}") for number in range(5)]
    assert len({FIRST_UID, *given}) == 6
    assert users.give("a_0") == given[0]
