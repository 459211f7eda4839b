"""A trainer that computes and prints, by turns to its output and to a file of its own: always the same work.

What the two kinds of turns cost is compared within one process on one core, seconds apart, so that a machine whose speed
changes from minute to minute changes it for both.
"""

import hashlib
import json
import os
import sys
import time
from typing import BinaryIO

LINE = b"step %010d loss 0.123456 lr 1.0e-04 grad 0.98 rate 3.21 it/s, as a trainer would print it again and again\n"
LINES_PER_MIB = 1024 * 1024 // len(LINE % 0)
TURN_MIB = 32
ROUNDS = 1_800_000
"""About 0.1 s for each MiB printed: a gigabyte in under two minutes, which no real trainer prints."""
REST_S = 0.3
"""After each turn, so that what is sent on late counts for nobody else."""


def main(mib: int, answer_file: str, own_file: str) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    digest = hashlib.sha256()
    times: dict[str, list[float]] = {"output": [], "own_file": []}
    with open(own_file, "wb") as file:
        for turn in range(mib // TURN_MIB):
            both = [("output", sys.stdout.buffer), ("own_file", file)]
            for name, target in both if turn % 2 else reversed(both):
                times[name].append(_turn(target, turn, digest if name == "output" else hashlib.sha256()))
                time.sleep(REST_S)
    with open(answer_file, "w") as answer:
        json.dump({**times, "sha256": digest.hexdigest(), "ended_at": time.time()}, answer)


def _turn(target: BinaryIO, turn: int, digest: "hashlib._Hash") -> float:
    began = time.monotonic()
    for part in range(turn * TURN_MIB, (turn + 1) * TURN_MIB):
        sum(number * number for number in range(ROUNDS))
        lines = [LINE % number for number in range(part * LINES_PER_MIB, (part + 1) * LINES_PER_MIB)]
        for at in range(0, len(lines), 100):
            target.write(b"".join(lines[at : at + 100]))
            target.flush()
        digest.update(b"".join(lines))
    return time.monotonic() - began


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
