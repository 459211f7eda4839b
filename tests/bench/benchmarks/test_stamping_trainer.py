import subprocess
import time
from pathlib import Path

from bench.benchmarks.stamping_trainer import TrainerRun, command, gaps_ms, read_runs


def test_stamps_become_runs_and_the_gaps_between_them() -> None:
    runs = read_runs("S 1000000\nE 3000000\nS 8000000\nE 9000000\nS 9500000\nE 9600000\n")
    assert runs == [
        TrainerRun(1_000_000, 3_000_000),
        TrainerRun(8_000_000, 9_000_000),
        TrainerRun(9_500_000, 9_600_000),
    ]
    assert gaps_ms(runs) == [5.0, 0.5]


def test_the_trainer_notes_when_it_starts_and_when_it_ends(tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    before = time.time_ns()
    subprocess.run(command(tmp_path, stamps, 20), check=True)
    subprocess.run(command(tmp_path, stamps, 20), check=True)
    first, second = read_runs(stamps.read_text())
    assert (
        before <= first.started_ns <= first.ended_ns <= second.started_ns <= second.ended_ns <= time.time_ns()
    )
