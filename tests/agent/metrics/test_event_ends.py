"""What the ends of TensorBoard's files tell, whatever stands before and after it."""

import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.metrics import event_ends
from simpletuner_fleet.agent.metrics.event_ends import last_point
from tests.agent.metrics.test_tensorboard import NAME, event, record, scalars, sized

PICTURE = record(event(20, sized(1, sized(4, bytes(100_000)))))
PATIENCE_S = 30.0


def last_step(folder: Path, since: int = 0) -> int | None:
    point = last_point(folder, since, PATIENCE_S)
    return point.step if point else None


def test_the_last_step_is_found_without_reading_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_ends, "BLOCK_BYTES", 4096)
    unread = record(event(0, sized(1, b"x" * 30_000))) * 20
    (tmp_path / NAME).write_bytes(unread + b"".join(scalars(step, loss=0.5) for step in range(300)))
    assert last_step(tmp_path) == 299
    assert last_step(tmp_path, since=300) is None


def test_the_furthest_of_several_files_counts(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(scalars(7, loss=0.5))
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / NAME).write_bytes(scalars(20, loss=0.5) + scalars(3, other=1.0))
    assert last_step(tmp_path) == 20


def test_pictures_after_the_last_step_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_ends, "BLOCK_BYTES", 16 * 1024)
    (tmp_path / NAME).write_bytes(scalars(19, loss=0.5) + scalars(20, loss=0.5) + PICTURE * 4)
    assert last_step(tmp_path) == 20


def test_a_record_that_is_cut_off_at_the_end_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(scalars(19, loss=0.5) + scalars(20, loss=0.5)[:-3])
    assert last_step(tmp_path) == 19


@pytest.mark.parametrize("content", [b"", bytes(5_000), b"\x00" * 6 + b"\x09" * 5_000, os.urandom(5_000)])
def test_a_file_without_a_record_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert last_step(tmp_path) is None


def test_a_file_that_holds_nothing_but_beginnings_is_given_up_in_time(tmp_path: Path) -> None:
    beginning = b"\x01\x00\x00\x00\x00\x00\x00\x00\x09\x09\x09\x09\x09"
    (tmp_path / NAME).write_bytes(beginning * 1_000_000)
    assert last_point(tmp_path, 0, 0.01) is None
