"""A run of the tests that is killed leaves no program behind."""

import os
import secrets
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole_run import leftovers

RUN = """
import os, subprocess, time
from tests.whole_run.leftovers import MARK, end_with_this_run
os.environ.pop(MARK, None)
end_with_this_run()
daemon = subprocess.Popen(
    ["sleep", "60"], env={MARK: os.environ[MARK]}, stdout=subprocess.DEVNULL, start_new_session=True
)
print(daemon.pid, flush=True)
time.sleep(60)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


def test_what_a_killed_run_has_started_ends_though_it_has_a_session_of_its_own() -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True
    )
    assert run.stdout
    daemon = os.pidfd_open(int(run.stdout.readline()))
    run.kill()
    run.communicate()
    assert select.select([daemon], [], [], 30)[0]
    os.close(daemon)


def test_what_does_not_end_when_it_is_asked_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_S", 0.0)
    mark = secrets.token_hex(8)
    deaf = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", DEAF], env={leftovers.MARK: mark}, stdout=subprocess.PIPE
    )
    assert deaf.stdout
    deaf.stdout.readline()
    leftovers.end(mark)
    deaf.communicate()
    assert leftovers.marked(mark) == []
