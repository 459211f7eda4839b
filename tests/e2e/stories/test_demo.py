"""The first thing anybody runs."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FIRST_LOSS_WITHIN_S = 30.0
LOSS = re.compile(rb"loss \d+\.\d+")
SIMPLETUNER = [sys.executable, "-m", "simpletuner_fleet.cli.main"]


@pytest.mark.timeout(240)
def test_the_demo_loses_its_machine_and_goes_on_from_the_checkpoint() -> None:
    done = subprocess.run(
        [*SIMPLETUNER, "demo", "--chaos", "--steps", "600"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1 on demo-worker-1: lost" in done.stdout
    resumed = re.search(r"attempt 2 on demo-worker-2: completed, resumed from step (\d+)", done.stdout)
    assert resumed is not None, done.stdout
    assert int(resumed[1]) >= 75
    assert "kept: model" in done.stdout
    assert "valid: yes" in done.stdout


@pytest.mark.timeout(120)
def test_the_demo_shows_its_first_loss_soon_after_it_was_started() -> None:
    """On a terminal, as a person sees it: server, worker and trainer are up by then."""
    ours, its = pty.openpty()
    began = time.monotonic()
    with subprocess.Popen([*SIMPLETUNER, "demo", "--steps", "24"], stdout=its, stderr=its) as demo:
        os.close(its)
        seen, first_loss_s = b"", None
        while shown := read_if_any(ours):
            seen += shown
            if first_loss_s is None and LOSS.search(seen):
                first_loss_s = time.monotonic() - began
    os.close(ours)
    assert demo.returncode == 0, seen.decode(errors="replace")
    assert first_loss_s is not None
    print(f"first loss after {first_loss_s:.1f} s")
    assert first_loss_s < FIRST_LOSS_WITHIN_S


def read_if_any(terminal: int) -> bytes:
    """Nothing once nobody writes to it any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.timeout(120)
def test_a_demo_whose_terminal_is_closed_leaves_nothing_running() -> None:
    # Tests that were started with nohup ignore the signal, and so would all that they start.
    command = ["env", "--default-signal=HUP", *SIMPLETUNER, "demo", "--steps", "100000", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        started = next(line for line in demo.stdout if "--work-dir" in line)
        folder = Path(started.split()[-1]).parent
        next(line for line in demo.stdout if "4. " in line)
        assert len(running_in(folder)) > 1
        demo.send_signal(signal.SIGHUP)
        demo.stdout.read()
    assert running_in(folder) == []
    assert not folder.exists()


def running_in(folder: Path) -> list[int]:
    """The processes that this demo has started: its folder is in what they were started with."""
    pids = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                started_with = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
                if f"{folder}/".encode() in started_with:
                    pids.append(int(place.name))
    return pids
