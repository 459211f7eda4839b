"""A trainer that computes and prints: always the same work, so that its time tells who was in its way."""

import hashlib
import json
import os
import sys
import time

LINE = b"step %010d loss 0.123456 lr 1.0e-04 grad 0.98 rate 3.21 it/s, as a trainer would print it again and again\n"
LINES_PER_MIB = 1024 * 1024 // len(LINE % 0)
ROUNDS = 600_000


def main(mib: int, told: str) -> None:
    # One core for the whole run, the same in every run: moving about costs more than what is to be measured.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    digest = hashlib.sha256()
    out = sys.stdout.buffer
    began, began_cpu = time.monotonic(), time.process_time()
    for part in range(mib):
        sum(number * number for number in range(ROUNDS))
        lines = [LINE % number for number in range(part * LINES_PER_MIB, (part + 1) * LINES_PER_MIB)]
        for at in range(0, len(lines), 100):
            out.write(b"".join(lines[at : at + 100]))
            out.flush()
        digest.update(b"".join(lines))
    found = {
        "wall_s": time.monotonic() - began,
        "cpu_s": time.process_time() - began_cpu,
        "sha256": digest.hexdigest(),
        "ended_at": time.time(),
    }
    with open(told, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
