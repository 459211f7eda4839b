"""A loss curve from progress bars alone, as the real trainer draws them."""

import json
import os
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.agent.metrics.bar_points import BarJournal
from simpletuner_fleet.agent.metrics.follower import progress_of
from simpletuner_fleet.agent.metrics.metric_files import latest_bar, latest_points

DRAWN = (
    "\x1b[0mEpoch 1/1, Steps:  {percent}%|##   | {step}/20 [00:01<00:01,  3.27it/s, "
    "grad_absmax=0.003, lr=0.001, step_loss={loss}]\x1b[0m"
)
OTHER = "Processing validation prompts:  50%|#    | 1/2 [00:00<00:00,  1.05it/s]"


def drawn(step: int, loss: float | str) -> str:
    return "\r" + DRAWN.format(percent=5 * step, step=step, loss=loss)


class Desk:
    def __init__(self, folder: Path, since: int = 0) -> None:
        self.log, self.file, self.since = folder / "output.log", folder / "bars.jsonl", since
        self.log.touch()
        self.journal = self.fresh()

    def fresh(self) -> BarJournal:
        return BarJournal(self.log, self.file, self.since, lambda: 7.0)

    def prints(self, text: str, *, ended: bool = False) -> None:
        with self.log.open("a") as file:
            file.write(text)
        self.journal.note(ended)

    def curve(self) -> list[tuple[int, float]]:
        if not self.file.exists():
            return []
        points = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [(point["step"], point["step_loss"]) for point in points]


def test_each_step_is_noted_once_with_the_last_loss_it_was_drawn_with(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.prints(drawn(1, 1.5))
    assert desk.curve() == []
    desk.prints(drawn(1, 1.25) + drawn(2, 1.25))
    desk.prints(drawn(2, 1.125) + "\n" + OTHER + "\n")
    assert desk.curve() == [(1, 1.25)]
    desk.prints(drawn(2, 1.125), ended=True)
    assert desk.curve() == [(1, 1.25), (2, 1.125)]
    desk.journal.note(True)
    assert len(desk.curve()) == 2


def test_a_bar_that_is_cut_in_the_middle_of_a_write_is_read_when_it_is_whole(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    whole = drawn(1, 0.5) + drawn(2, 0.25) + drawn(3, 0.125)
    for at in range(0, len(whole), 7):
        desk.prints(whole[at : at + 7])
    desk.journal.note(True)
    assert desk.curve() == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_bars_that_follow_an_emptying_of_the_output_are_noted(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.prints("a long introduction\n" * 50 + drawn(1, 1.5) + drawn(2, 1.25) + "\n")
    os.truncate(desk.log, 0)
    desk.prints(drawn(3, 1.0) + drawn(4, 0.5), ended=True)
    assert [step for step, _ in desk.curve()] == [1, 2, 3, 4]


def test_an_agent_that_starts_again_notes_no_step_twice(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.prints("".join(drawn(step, step / 8) for step in range(1, 6)))
    desk.journal = desk.fresh()
    desk.prints(drawn(6, 0.75) + drawn(7, 0.875), ended=True)
    assert [step for step, _ in desk.curve()] == [1, 2, 3, 4, 5, 6, 7]


def test_an_attempt_that_goes_on_notes_nothing_of_before(tmp_path: Path) -> None:
    desk = Desk(tmp_path, since=5)
    desk.prints(drawn(5, 0.5) + drawn(6, 0.5) + drawn(7, 0.5), ended=True)
    assert [step for step, _ in desk.curve()] == [6, 7]


def test_a_loss_that_is_no_number_is_noted_as_such(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.prints(drawn(1, "nan") + drawn(2, 0.5), ended=True)
    point = json.loads(desk.file.read_text().splitlines()[0])
    assert point["step_loss"] == "NaN"


def test_bars_without_a_loss_and_endless_lines_are_no_points(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.prints(
        "Steps:  50%|##  | 1/2 [00:01<00:01,  3.27it/s]\r" + "x" * 3_000_000 + "\r" + OTHER, ended=True
    )
    assert desk.curve() == []


@settings(max_examples=50)
@example("Steps:   1%|#| 1/2 [00:00<" + ":".join(["1"] * 230) + ", 1.00it/s, loss=1]")
@given(st.text() | st.integers().map(lambda loss: drawn(1, loss) + drawn(2, f"{loss}" * 40)))
def test_whatever_a_job_prints_its_bars_are_noted_or_passed_over(printed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        desk.log.write_bytes(printed.encode("utf-8", "surrogatepass"))
        desk.journal.note(True)
        assert all(point.step > 0 for point in latest_points(desk.file))
        progress = progress_of([], latest_bar(desk.log))
        assert progress is None or progress["step"] >= 0
