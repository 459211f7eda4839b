"""The ground truth, read back: which process of which attempt ran when, by its own word."""

from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, field

from simpletuner_fleet.core.jobs.fencing import Turn

PAUSE_S = 0.25
"""A trainer ticks every 20 ms; a longer silence is printed as a pause."""


class Line(Struct, kw_only=True):
    event: str
    job: str
    epoch: int
    attempt: int
    pid: int
    at: float
    where: str = ""
    gpus: str = ""
    code: int | None = None


class ObservedRun(Struct, kw_only=True):
    """All that the journal says of one attempt."""

    job: str
    epoch: int
    starts: list[Line] = field(default_factory=list)
    ends: list[Line] = field(default_factory=list)
    active_at: list[float] = field(default_factory=list)
    """When any process of it was at work, in order."""

    @property
    def began_at(self) -> float:
        return self.active_at[0]

    @property
    def last_active_at(self) -> float:
        return self.active_at[-1]

    def text(self) -> str:
        pauses = [f"{a:.3f}-{b:.3f}" for a, b in pairwise(self.active_at) if b - a > PAUSE_S]
        ends = [f"{end.at:.3f} with code {end.code}" for end in self.ends]
        return (
            f"epoch {self.epoch}: pids {[start.pid for start in self.starts]} in "
            f"{[start.where for start in self.starts]}, seen {self.began_at:.3f} to {self.last_active_at:.3f}, "
            f"{len(self.active_at)} lines, silent {pauses or 'never'}, ended {ends or 'not by itself'}"
        )


def read_journal(path: Path) -> dict[Turn, ObservedRun]:
    runs: dict[Turn, ObservedRun] = {}
    decoder = msgspec.json.Decoder(Line)
    text = path.read_bytes() if path.exists() else b""
    for row in text.splitlines():
        line = decoder.decode(row)
        run = runs.setdefault(Turn(line.job, line.epoch), ObservedRun(job=line.job, epoch=line.epoch))
        run.active_at.append(line.at)
        if line.event == "start":
            run.starts.append(line)
        elif line.event == "end":
            run.ends.append(line)
    for run in runs.values():
        run.active_at.sort()
    return runs


def overlaps(runs: dict[Turn, ObservedRun]) -> list[tuple[ObservedRun, ObservedRun]]:
    """Returns pairs of attempts at one job of which the older was still at work when the newer had begun."""
    by_job: dict[str, list[ObservedRun]] = {}
    for run in runs.values():
        by_job.setdefault(run.job, []).append(run)
    pairs: list[tuple[ObservedRun, ObservedRun]] = []
    for attempts in by_job.values():
        attempts.sort(key=lambda run: run.epoch)
        pairs += [
            (older, newer)
            for index, older in enumerate(attempts)
            for newer in attempts[index + 1 :]
            if older.last_active_at >= newer.began_at
        ]
    return pairs


def shared_gpus(runs: dict[Turn, ObservedRun]) -> list[tuple[ObservedRun, ObservedRun]]:
    """Returns pairs of attempts that were at work on one GPU at once."""
    by_gpu: dict[tuple[str, str], list[ObservedRun]] = {}
    for run in runs.values():
        for start in run.starts:
            machine = start.where.partition("/attempts/")[0]
            for gpu in filter(None, start.gpus.split(",")):
                by_gpu.setdefault((machine, gpu), []).append(run)
    pairs: list[tuple[ObservedRun, ObservedRun]] = []
    for users in by_gpu.values():
        users.sort(key=lambda run: run.began_at)
        pairs += [(one, other) for one, other in pairwise(users) if one.last_active_at >= other.began_at]
    return pairs
