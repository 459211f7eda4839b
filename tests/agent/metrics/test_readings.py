"""A training's numbers, read in turns that are short however much of them there is."""

import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.metrics import metric_files, reading_time, tensorboard
from simpletuner_fleet.agent.metrics.readings import Readings
from tests.agent.metrics.test_metric_files import lines
from tests.agent.metrics.test_tensorboard import NAME, scalars


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has time for a single piece."""
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(metric_files, "PIECE_LINES", 100)
    monkeypatch.setattr(tensorboard, "PIECE_BYTES", 1_000)


@pytest.mark.usefixtures("short_turns")
def test_what_there_was_no_time_for_is_read_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines(range(1, 1_001)))
    (tmp_path / NAME).write_bytes(b"".join(scalars(step, loss=0.5) for step in range(1_001, 2_001)))
    readings = Readings([tmp_path / "metrics.jsonl"], tmp_path)
    points = readings.read(at_once=True)
    assert [point.step for point in points] == list(range(1, 101))
    while readings.behind:
        more = readings.read(at_once=True)
        assert len(more) <= 100
        points += more
    assert sorted(point.step for point in points) == list(range(1, 2_001))
    assert not readings.cut_short


@pytest.mark.usefixtures("short_turns")
def test_a_file_without_end_keeps_no_other_waiting(tmp_path: Path) -> None:
    endless, small = tmp_path / "metrics.jsonl", tmp_path / "training_metrics.jsonl"
    endless.write_bytes(b"no numbers\n" * 100_000)
    small.write_text(lines(range(1, 4)))
    readings = Readings([endless, small], None)
    assert readings.read() == []
    assert [point.step for point in readings.read()] == [1, 2, 3]
    assert readings.behind


@pytest.mark.usefixtures("short_turns")
def test_after_the_trainers_end_reading_ends_as_well(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"no numbers\n" * 1_000_000)
    readings = Readings([tmp_path / "metrics.jsonl"], None, after_end_s=0.05)
    readings.read()
    assert (readings.behind, readings.cut_short) == (True, False)
    while readings.behind:
        readings.read(at_once=True)
    assert readings.cut_short


def test_nobody_who_was_stopped_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_files, "PIECE_LINES", 100)
    (tmp_path / "metrics.jsonl").write_text(lines(range(1, 1_001)))
    readings = Readings([tmp_path / "metrics.jsonl"], None, stopped=lambda: True)
    assert len(readings.read()) == 100
    assert not readings.behind


def test_a_file_of_events_is_one_file_however_many_names_it_has(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(scalars(1, loss=0.5) + scalars(2, loss=0.5))
    for at in range(70):
        os.link(tmp_path / NAME, tmp_path / f"{NAME}.{at}")
    readings = Readings([], tmp_path)
    assert [point.step for point in readings.read(at_once=True)] == [1, 2]
    assert readings.read(at_once=True) == []
    (tmp_path / f"{NAME}.other").write_bytes(scalars(3, loss=0.5))
    assert [point.step for point in readings.read(at_once=True)] == [3]


def test_a_new_file_is_read_though_it_has_the_inode_of_one_that_was_removed(tmp_path: Path) -> None:
    """A file under another name stands for it: whether an inode is used again at once is up to the disk."""
    (tmp_path / NAME).write_bytes(scalars(1, loss=0.5))
    readings = Readings([], tmp_path)
    assert [point.step for point in readings.read(at_once=True)] == [1]
    (tmp_path / NAME).rename(tmp_path / f"{NAME}.1")
    (tmp_path / f"{NAME}.1").write_bytes(scalars(2, loss=0.5))
    assert [point.step for point in readings.read(at_once=True)] == [2]


def test_events_are_given_up_after_so_many_bytes_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "MOST_BYTES", 5_000)
    monkeypatch.setattr(tensorboard, "PIECE_BYTES", 1_000)
    with (tmp_path / NAME).open("wb") as out:
        out.write(tensorboard_picture(100_000))
        out.writelines(scalars(step, loss=0.5) for step in range(1_000))
    readings = Readings([], tmp_path)
    points = readings.read(at_once=True)
    assert 90 < len(points) < 150
    assert readings.gave_up


def tensorboard_picture(size: int) -> bytes:
    length = size.to_bytes(8, "little")
    return length + tensorboard.masked_crc32c(length).to_bytes(4, "little") + b"\0" * (size + 4)
