"""A trainer that tells the truth: what runs when, written by itself to a journal nobody else writes to.

It ticks until its gate opens, and ends with the exit code written in the gate. Standard library only.
"""

import json
import os
import sys
import time

TICK_S = 0.02
CLOCK = time.CLOCK_BOOTTIME


def main() -> int:
    journal_path, gate = sys.argv[1:3]
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(event: str) -> None:
        line = {
            "event": event,
            "job": os.environ["SIMPLETUNER_JOB_ID"],
            "attempt": int(os.environ["SIMPLETUNER_ATTEMPT"]),
            "epoch": int(os.environ["SIMPLETUNER_EPOCH"]),
            "pid": os.getpid(),
            "at": time.clock_gettime(CLOCK),
        }
        os.write(journal, json.dumps(line).encode() + b"\n")

    tell("start")
    print(f"attempt {os.environ['SIMPLETUNER_ATTEMPT']} of {os.environ['SIMPLETUNER_JOB_ID']}", flush=True)
    while not os.path.exists(gate):
        time.sleep(TICK_S)
        tell("tick")
    tell("end")
    with open(gate) as file:
        return int(file.read() or 0)


sys.exit(main())
