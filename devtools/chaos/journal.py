"""The ground truth, read back: which process of which attempt ran when, by its own word."""

from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, field

Turn = tuple[str, int]
"""A job and the epoch of one attempt at it."""
PAUSE_S = 0.25
"""A trainer ticks every 20 ms; a longer silence is told as a pause."""


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


class Run(Struct, kw_only=True):
    """All that was seen of one attempt."""

    job: str
    epoch: int
    starts: list[Line] = field(default_factory=list)
    ends: list[Line] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    """When any process of it was at work, in order."""

    @property
    def began(self) -> float:
        return self.seen[0]

    @property
    def last_seen(self) -> float:
        return self.seen[-1]

    def told(self) -> str:
        pauses = [f"{a:.3f}-{b:.3f}" for a, b in pairwise(self.seen) if b - a > PAUSE_S]
        ends = [f"{end.at:.3f} with code {end.code}" for end in self.ends]
        return (
            f"epoch {self.epoch}: pids {[start.pid for start in self.starts]} in "
            f"{[start.where for start in self.starts]}, seen {self.began:.3f} to {self.last_seen:.3f}, "
            f"{len(self.seen)} lines, silent {pauses or 'never'}, ended {ends or 'not by itself'}"
        )


def read_journal(path: Path) -> dict[Turn, Run]:
    runs: dict[Turn, Run] = {}
    decoder = msgspec.json.Decoder(Line)
    text = path.read_bytes() if path.exists() else b""
    for row in text.splitlines():
        line = decoder.decode(row)
        run = runs.setdefault((line.job, line.epoch), Run(job=line.job, epoch=line.epoch))
        run.seen.append(line.at)
        if line.event == "start":
            run.starts.append(line)
        elif line.event == "end":
            run.ends.append(line)
    for run in runs.values():
        run.seen.sort()
    return runs


def overlaps(runs: dict[Turn, Run]) -> list[tuple[Run, Run]]:
    """Pairs of attempts at one job of which the older was still at work when the newer had begun."""
    by_job: dict[str, list[Run]] = {}
    for run in runs.values():
        by_job.setdefault(run.job, []).append(run)
    found = []
    for of_job in by_job.values():
        of_job.sort(key=lambda run: run.epoch)
        found += [
            (older, newer)
            for at, older in enumerate(of_job)
            for newer in of_job[at + 1 :]
            if older.last_seen >= newer.began
        ]
    return found


def shared_gpus(runs: dict[Turn, Run]) -> list[tuple[Run, Run]]:
    """Pairs of attempts that were at work on one GPU at once."""
    by_gpu: dict[tuple[str, str], list[Run]] = {}
    for run in runs.values():
        for start in run.starts:
            machine = start.where.partition("/attempts/")[0]
            for gpu in filter(None, start.gpus.split(",")):
                by_gpu.setdefault((machine, gpu), []).append(run)
    found = []
    for users in by_gpu.values():
        users.sort(key=lambda run: run.began)
        found += [(one, other) for one, other in pairwise(users) if one.last_seen >= other.began]
    return found
