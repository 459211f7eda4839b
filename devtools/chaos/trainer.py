"""A trainer that tells the truth: what of it runs when, in a journal nobody else writes to. Standard library only.

Arguments: the journal, seconds to run, the exit code, and its behaviour: `plain`, `forks` (leaves a double-forked child
that ticks as well) or `stubborn` (does not heed SIGTERM).
"""

import json
import os
import signal
import sys
import time

TICK_S = 0.02
CHILD_LIVES_S = 30.0


class Journal:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **more: object) -> None:
        """One write per line: lines of different processes never mix."""
        line = {
            "event": event,
            "job": os.environ["SIMPLETUNER_JOB_ID"],
            "epoch": int(os.environ["SIMPLETUNER_EPOCH"]),
            "attempt": int(os.environ["SIMPLETUNER_ATTEMPT"]),
            "pid": os.getpid(),
            "at": time.clock_gettime(time.CLOCK_BOOTTIME),
            **more,
        }
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def tick_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(TICK_S)
            self.write("tick")


def leave_child(journal: Journal) -> None:
    """Does what a careless trainer does: starts a daemon that has no parent and no session of its trainer any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            journal.write("child")
            journal.tick_for(CHILD_LIVES_S)
        os._exit(0)
    os.wait()


def main() -> int:
    path, run_s, exit_code, behaviour = sys.argv[1:5]
    journal = Journal(path)
    where = os.environ["SIMPLETUNER_OUTPUT_DIR"]
    journal.write("start", where=where, gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    print(f"attempt {os.environ['SIMPLETUNER_ATTEMPT']} begins", flush=True)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "forks":
        leave_child(journal)
    journal.tick_for(float(run_s))
    print("done", flush=True)
    journal.write("end", code=int(exit_code))
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main())
