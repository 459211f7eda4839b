"""Writes `metrics.jsonl`: one line for each step, in order, none twice."""

import json
import os
from pathlib import Path
from typing import Any

from simpletuner_fleet.trainers.demo.output.files import write_whole


class MetricsLog:
    """Writes `metrics.jsonl`.

    After a resume the steps beyond the checkpoint are made again, so their old lines are dropped.
    """

    def __init__(self, path: Path, *, resumed_from: int) -> None:
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= resumed_from]
        write_whole(path, b"".join(kept))
        self._file = path.open("ab")

    def write(self, entry: dict[str, Any]) -> None:
        """Writes one line. A loss that is not a number becomes NaN or Infinity, as in Python's own json module."""
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Writes the lines to disk with every checkpoint: what comes after it may be lost, what came before may not."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _whole_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
