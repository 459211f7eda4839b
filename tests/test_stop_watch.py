"""What our own code takes counts, and what the machine takes away does not."""

import os
import signal
import subprocess
import sys
import time

from tests.stop_watch import StopWatch

FROZEN_S = 0.6
PROGRAM = """
import sys, time
from tests.stop_watch import StopWatch
with StopWatch() as watch:
    print("runs", flush=True)
    sys.stdin.readline()
    print(watch.elapsed_s)
"""


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "runs\n"
        began = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        said_s = float(process.stdout.readline())
        assert said_s < time.monotonic() - began - FROZEN_S / 2


def test_time_that_our_own_code_takes_counts() -> None:
    with StopWatch() as watch:
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        assert watch.elapsed_s > 0.2
