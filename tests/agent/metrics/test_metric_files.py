"""Files of numbers while they are written, also such as nobody could read to their end."""

import json
import logging
import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.metrics import metric_files
from simpletuner_fleet.agent.metrics.metric_files import MetricFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def lines(steps: range, loss: float = 0.5) -> str:
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step in steps)


def read_on(file: MetricFile) -> list[int]:
    """Returns the steps of all that is new, read piece by piece."""
    steps = []
    while piece := file.peek(10**6):
        file.take(piece)
        steps += [point.step for point in piece.points]
        if not piece.more:
            break
    return steps


def test_a_file_of_holes_is_given_up_unread_and_that_is_said(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.touch()
    os.truncate(path, 2**40)
    file = MetricFile(path)
    with caplog.at_level(logging.WARNING):
        assert file.peek(10) is None
        assert file.peek(10) is None
    assert file.given_up
    (message,) = caplog.messages
    assert message == f"no more numbers are read from '{path}': there is too much in it"


@pytest.mark.parametrize(("limit", "most"), [("MOST_BYTES", 2_000), ("MOST_LINES", 50)])
def test_a_file_is_read_so_far_and_then_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(metric_files, limit, most)
    monkeypatch.setattr(metric_files, "PIECE_LINES", 10)
    path.write_text(lines(range(1, 10_001)))
    file = MetricFile(path)
    steps = read_on(file)
    assert steps == list(range(1, len(steps) + 1))
    assert 50 <= len(steps) < 100
    assert file.given_up


def test_lines_with_nothing_in_them_are_read_a_few_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million of them were read at once, and each cost what a line with numbers costs."""
    monkeypatch.setattr(metric_files, "PIECE_LINES", 1_000)
    path.write_bytes(b"\n" * 10_000)
    piece = MetricFile(path).peek(10)
    assert piece is not None
    assert (piece.offset, piece.more) == (1_000, True)


def test_a_long_file_is_read_wholly_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_files, "PIECE_BYTES", 1_000)
    path.write_text(lines(range(1, 2_001)))
    assert read_on(MetricFile(path)) == list(range(1, 2_001))


def test_a_file_written_anew_is_compared_in_pieces_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_files, "PIECE_LINES", 10)
    path.write_text(lines(range(1, 101)))
    file = MetricFile(path)
    read_on(file)
    path.write_text(lines(range(1, 81)) + lines(range(81, 121), loss=0.25))
    piece = file.peek(1000)
    assert piece is not None
    assert (piece.points, piece.kept, piece.more) == ([], 10, True)
    assert read_on(file) == list(range(81, 121))
    assert read_on(file) == []


def test_a_file_seen_while_it_was_written_anew_tells_nothing_twice(path: Path) -> None:
    path.write_text(lines(range(1, 101)))
    file = MetricFile(path)
    read_on(file)
    for steps in (range(1, 1), range(1, 31), range(1, 101)):
        path.write_text(lines(steps))
        assert read_on(file) == []
    path.write_text(lines(range(1, 31)))
    assert read_on(file) == []
    path.write_text(lines(range(1, 31)) + lines(range(31, 33), loss=0.25))
    assert read_on(file) == [31, 32]


def test_what_an_earlier_process_read_is_known_when_it_is_written_anew(path: Path) -> None:
    path.write_text(lines(range(1, 31)))
    before, after = MetricFile(path), MetricFile(path)
    read_on(before)
    after.restore(before.offset, before.tail)
    path.write_text(lines(range(1, 21)) + lines(range(21, 41), loss=0.25))
    assert read_on(after) == list(range(21, 41))
