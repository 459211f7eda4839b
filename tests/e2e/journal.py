"""Reads what trainers wrote of themselves, and says whether two of one job ever ran at once."""

import json
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct


class Line(Struct, frozen=True):
    event: str
    job: str
    attempt: int
    epoch: int
    pid: int
    at: float


class Run(NamedTuple):
    """One trainer's life as it saw it."""

    epoch: int
    attempt: int
    pid: int
    began: float
    last_seen: float
    ended: bool
    ticks: int


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, job_id: str) -> list[Line]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in (Line(**json.loads(row)) for row in whole) if line.job == job_id]

    def runs(self, job_id: str) -> list[Run]:
        """In the order in which they began; one per start, so that a second start of an epoch shows."""
        runs: list[list[Line]] = []
        for line in self.lines(job_id):
            if line.event == "start":
                runs.append([])
            next(run for run in reversed(runs) if not run or run[0].pid == line.pid).append(line)
        return [
            Run(
                epoch=run[0].epoch,
                attempt=run[0].attempt,
                pid=run[0].pid,
                began=run[0].at,
                last_seen=run[-1].at,
                ended=run[-1].event == "end",
                ticks=sum(line.event == "tick" for line in run),
            )
            for run in runs
        ]

    def assert_one_at_a_time(self, job_id: str) -> list[Run]:
        runs = self.runs(job_id)
        for earlier, later in pairwise(runs):
            assert earlier.last_seen <= later.began, f"two trainers of {job_id} ran at once: {runs}"
            assert earlier.epoch < later.epoch, f"an epoch of {job_id} was started twice: {runs}"
        return runs
