"""Builds a wall as a trial, to learn whether this machine allows it: an order on stdin, the problem on stdout.

It is run as `python -I -S shim_trial.py`, with the parts of the shim: what a trial shows is what an attempt will get.
"""

import json
import os
import select
import signal
import sys


def main() -> int:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    order = json.load(sys.stdin)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # as in the shim: a keeper is woken by it
    trainers = __import__("shim_trainer")
    starting = trainers.begin(order["wall"], __import__("shim_wall"))
    starting.prepare(order, [])
    problem = starting.go().removeprefix(trainers.LACKS)
    status = 0
    if not problem:
        # Whoever stands for the trainer tells its status, and may stay until we end.
        select.select([starting.status], [], [])
        status = int.from_bytes(os.read(starting.status, 4), sys.byteorder)
    if not problem and status:
        problem = f"the trial ended with status {os.waitstatus_to_exitcode(status)}"
    print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
