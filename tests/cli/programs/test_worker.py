"""What a worker says on its terminal when it ends."""

import os
import subprocess
import sys
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.core.people import tokens
from tests.cli.conftest import FakeServer, problem

WORKER = [sys.executable, "-m", "simpletuner_fleet.cli.main", "worker"]


def test_an_orchestrators_words_cannot_steer_the_workers_terminal(server: FakeServer, tmp_path: Path) -> None:
    refusal = problem(401, "invalid_token", "gone\x1b]0;title\x07\x1b[2J")
    refusal.body["type"] = "urn:simpletuner:problem:invalid_token"
    for path in ("/api/workers/register", "/api/workers/queue"):
        server.on("POST", path, refusal)
        server.on("GET", path, refusal)
    ended = subprocess.run(
        [*WORKER, "--orchestrator-url", server.url, "--work-dir", str(tmp_path / "work"), "--check"],
        env={**os.environ, "SIMPLETUNER_WORKER_TOKEN": tokens.make(tokens.WORKER, bytes(32))},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == ExitCode.AUTH, ended.stderr
    assert b"gone\\x1b]0;title\\x07\\x1b[2J" in ended.stderr
    assert b"\x1b" not in ended.stderr
