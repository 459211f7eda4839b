"""Points on their way, from files that may be longer than there is time for."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.metrics import metric_files, point_sender, reading_time
from simpletuner_fleet.agent.metrics.point_sender import PointSender
from simpletuner_fleet.agent.metrics.tensorboard import EventFolder
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.protocol.metrics import MetricPoint
from tests.agent.metrics.test_metric_files import lines
from tests.agent.metrics.test_tensorboard import NAME, scalars


class Desk:
    """A sender of two files, and what has arrived of them."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / "metrics.jsonl", folder / "training_metrics.jsonl"]
        self.folder, self.ended, self.away = folder, False, False
        self.steps: list[int] = []
        self.tries = 0

    def sender(self, **more: Any) -> PointSender:
        return PointSender(
            "j_1",
            self.files,
            self.folder / "sent.json",
            self._post,
            events=EventFolder(self.folder),
            ended=lambda: self.ended,
            **more,
        )

    async def _post(self, first: int, points: Sequence[MetricPoint]) -> int:
        self.tries += 1
        if self.away:
            raise Unreachable(ConnectionRefusedError(), refused=True)
        assert first == len(self.steps)
        self.steps += [point.step for point in points]
        return len(self.steps)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look has time for a single piece."""
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(point_sender, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(metric_files, "PIECE_LINES", 100)


@pytest.mark.usefixtures("short_turns")
async def test_all_is_sent_of_a_trainer_that_ends_right_after_writing_it(desk: Desk) -> None:
    desk.files[0].write_text(lines(range(1, 3_001)))
    (desk.folder / NAME).write_bytes(b"".join(scalars(step, lr=0.5) for step in range(3_001, 4_001)))
    desk.ended = True
    await desk.sender().send_all()
    assert sorted(desk.steps) == list(range(1, 4_001))


@pytest.mark.usefixtures("short_turns")
async def test_a_file_in_which_nothing_is_found_keeps_nobody_waiting_while_the_trainer_runs(
    desk: Desk,
) -> None:
    desk.files[0].write_bytes(b"no numbers\n" * 100_000)
    desk.files[1].write_text(lines(range(1, 4)))
    sender = desk.sender()
    await sender.send_all()
    assert desk.steps == []
    await sender.send_all()
    assert desk.steps == [1, 2, 3]


async def test_numbers_after_a_file_of_holes_are_sent(desk: Desk) -> None:
    desk.files[0].touch()
    os.truncate(desk.files[0], 2**40)
    desk.files[1].write_text(lines(range(1, 4)))
    desk.ended = True
    await desk.sender().send_all()
    assert desk.steps == [1, 2, 3]


@pytest.mark.usefixtures("short_turns")
async def test_after_the_trainers_end_there_is_so_much_time_to_read_and_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(point_sender, "AFTER_END_S", 0.05)
    desk.files[0].write_text(lines(range(1, 4)) + "no numbers\n" * 1_000_000)
    desk.ended = True
    with caplog.at_level(logging.WARNING):
        await desk.sender().send_all()
    assert desk.steps == [1, 2, 3]
    assert caplog.messages == ["job j_1: there was no time to read all of its numbers"]


async def test_an_orchestrator_that_is_away_takes_none_of_that_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point_sender, "AFTER_END_S", 0.05)
    monkeypatch.setattr(metric_files, "PIECE_LINES", 100)
    desk.files[0].write_text(lines(range(1, 301)))
    desk.ended, desk.away = True, True
    sender = desk.sender()
    for _ in range(100):
        with pytest.raises(Unreachable):
            await sender.send_all()
    desk.away = False
    await sender.send_all()
    assert desk.steps == list(range(1, 301))


async def test_one_that_was_stopped_sends_nothing_more(desk: Desk) -> None:
    desk.files[0].write_text(lines(range(1, 301)))
    await desk.sender(stopped=lambda: True).send_all()
    assert desk.steps == []


async def test_numbers_in_a_folder_whose_name_is_no_text_are_sent_and_not_again_by_a_later_process(
    desk: Desk,
) -> None:
    file = desk.folder / os.fsdecode(b"r\xe9seau") / NAME
    file.parent.mkdir()
    file.write_bytes(scalars(1, loss=0.5))
    await desk.sender().send_all()
    file.write_bytes(scalars(1, loss=0.5) + scalars(2, loss=0.4))
    later = desk.sender()
    await later.load()
    await later.send_all()
    assert desk.steps == [1, 2]
