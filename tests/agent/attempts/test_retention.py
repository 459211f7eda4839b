"""A worker's disk does not fill with what nobody needs, and keeps what is nowhere else."""

import os
import shutil
import time
from pathlib import Path

import pytest

from simpletuner_fleet.agent.attempts.retention import (
    DAY_S,
    NOT_STORED,
    EndedFolder,
    KeepLimits,
    choose,
    tidy,
    with_disk_room,
)
from simpletuner_fleet.agent.state_dir import DELIVERED, StateDir
from simpletuner_fleet.core.worker_errors import StateDirError

PLENTY = KeepLimits(free_gb=0.0)


def folder(
    state: StateDir, name: str, days_ago: float = 0.0, *, marks: tuple[str, ...] = (DELIVERED,)
) -> None:
    attempt = state.create_attempt(name)
    (attempt.output_dir / "model").write_bytes(b"weights")
    for mark in marks:
        (attempt.path / mark).touch()
        ended_at = time.time() - days_ago * DAY_S
        os.utime(attempt.path / mark, (ended_at, ended_at))


def names(state: StateDir) -> set[str]:
    return {attempt.attempt_id for attempt in state.attempts()}


def test_the_newest_few_stay_and_none_for_longer_than_its_days() -> None:
    ended = [EndedFolder(f"a_{day}", -day * DAY_S) for day in range(10)]
    assert choose(ended, KeepLimits(attempts=3, days=100.0), 0.0) == [f"a_{day}" for day in range(9, 2, -1)]
    assert choose(ended, KeepLimits(attempts=100, days=7.5), 0.0) == ["a_9", "a_8"]
    assert choose(ended, KeepLimits(attempts=100, days=100.0), 0.0) == []


def test_what_is_not_stored_or_still_owed_or_held_stays_whatever_the_limits(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as state:
        folder(state, "a_done", 30)
        folder(state, "a_running", 30, marks=())
        folder(state, "a_unstored", 30, marks=(DELIVERED, NOT_STORED))
        folder(state, "a_held", 30)
        none = KeepLimits(attempts=1, days=0.0, free_gb=1e9)
        assert tidy(state, none, {"a_held"}) == ["a_done"]
        assert names(state) == {"a_running", "a_unstored", "a_held"}
        assert tidy(state, none, {"a_held"}) == []


def test_a_disk_that_runs_short_takes_the_oldest_first_and_no_more_than_needed(tmp_path: Path) -> None:
    with StateDir.open(tmp_path) as state:
        for day in range(3):
            folder(state, f"a_{day}", day)
        assert tidy(state, PLENTY, set()) == []
        assert tidy(state, KeepLimits(free_gb=1e9), set()) in ([], ["a_2", "a_1", "a_0"])


def test_a_folder_that_cannot_be_removed_keeps_no_other_from_it(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        for name in ("a_1", "a_2"):
            folder(state, name, days_ago=30)
        (state.attempt("a_1").path / "order.json").mkdir()  # no file that could be unlinked
        assert tidy(state, PLENTY, ()) == ["a_2"]


def test_a_copy_that_somebody_has_laid_beside_them_stays_and_keeps_nothing_from_going(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        folder(state, "a_1", days_ago=30)
        copy = state.path / "attempts" / "a_1 (kept)"
        shutil.copytree(state.attempt("a_1").path, copy)
        assert tidy(state, PLENTY, ()) == ["a_1"]
        assert copy.is_dir()


async def test_at_a_start_room_is_made_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        for name, marks in (("a_1", (DELIVERED,)), ("a_2", (DELIVERED, NOT_STORED)), ("a_3", ())):
            folder(state, name, marks=marks)
        await with_disk_room(state, PLENTY, lambda: None)
        assert names(state) == {"a_1", "a_2", "a_3"}
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 0))
        await with_disk_room(state, PLENTY, lambda: None)
        assert names(state) == {"a_1", "a_2", "a_3"}, "as much room as it wants to keep"
        seen = await with_disk_room(state, KeepLimits(), lambda: names(state))
        assert seen == {"a_2", "a_3"}


async def test_a_worker_without_room_says_so_instead_of_trying_its_walls(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        (state.path / "room").mkdir()  # as little to be written as on a full disk
        tried: list[None] = []
        with pytest.raises(StateDirError, match="cannot be used"):
            await with_disk_room(state, PLENTY, lambda: tried.append(None), waits=True)
        assert not tried
