"""A trainer that tells the truth: what of it runs when, in a journal nobody else writes to. Standard library only.

Arguments: the journal, seconds to run, the exit code, and its manners: `plain`, `forks` (leaves a double-forked child
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

    def tell(self, event: str, **more: object) -> None:
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
            self.tell("tick")


def leave_child(journal: Journal) -> None:
    """What a careless trainer does: a daemon that has no parent and no session of its trainer any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            journal.tell("child")
            journal.tick_for(CHILD_LIVES_S)
        os._exit(0)
    os.wait()


def main() -> int:
    path, run_s, exit_code, manners = sys.argv[1:5]
    journal = Journal(path)
    where = os.environ["SIMPLETUNER_OUTPUT_DIR"]
    journal.tell("start", where=where, gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    print(f"attempt {os.environ['SIMPLETUNER_ATTEMPT']} begins", flush=True)
    if manners == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manners == "forks":
        leave_child(journal)
    journal.tick_for(float(run_s))
    print("done", flush=True)
    journal.tell("end", code=int(exit_code))
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main())
