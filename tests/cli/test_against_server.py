"""The commands against the real server: every noun once, over plain HTTP and over TLS."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.main import main
from tests.cli.conftest import Result

pytestmark = pytest.mark.e2e
COMMAND = [sys.executable, "-m", "simpletuner_fleet.cli.main"]
START_TIMEOUT_S = 60.0
DEMO = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


class Machine:
    """The orchestrator's machine: its own home, so that the commands find the server by themselves."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.environ = {"SIMPLETUNER_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "xdg")}
        words = [*COMMAND, "server", "--port", "0", "--no-local", *options]
        with (folder / "server.log").open("w") as log:
            self.process = subprocess.Popen(words, env={**os.environ, **self.environ}, stderr=log)

    def started_info(self) -> dict[str, Any]:
        """What the server says of itself once it is up."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self.folder / "data" / "server.json").exists():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return dict(json.loads((self.folder / "data" / "server.json").read_text()))

    def run(self, *words: str, given: str = "", **environ: str) -> Result:
        """In this process, which is quick, with that machine's environment."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name, value in {**self.environ, **environ}.items():
                patch.setenv(name, value)
            patch.setattr("sys.stdin", io.StringIO(given))
            code = main(list(words))
        return Result(code, out.getvalue(), err.getvalue())

    def data(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.code == 0, done.err
        return done.json

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = Machine(tmp_path_factory.mktemp("machine"))
    started.started_info()
    yield started
    started.stop()


def test_the_admin_is_known_without_a_login(machine: Machine) -> None:
    assert machine.data("whoami")["permissions"] == ["*"]
    assert machine.data("status")["schema"] == "status.v1"


def test_a_workers_life(machine: Machine) -> None:
    made = machine.data("workers", "create", "gpu-1", "--label", "team=nlp")
    assert made["token"].startswith("wt_")
    assert "--persistent" in made["connection_command"]
    assert machine.run("workers", "create", "gpu-1").code == ExitCode.CONFLICT
    assert machine.run("workers", "set-labels", "gpu-1", "team-", "rack=7").code == 0
    assert machine.data("workers", "get", "gpu-1")["labels"] == {"rack": "7"}
    assert [item["name"] for item in machine.data("workers", "list", "--label", "rack=*")["items"]] == [
        "gpu-1"
    ]
    assert machine.run("workers", "drain", "gpu-1", "--note", "fans").code == 0
    assert machine.data("workers", "get", "gpu-1")["drain_note"] == "fans"
    assert machine.run("workers", "resume", made["worker_id"]).code == 0
    assert machine.data("workers", "rotate-token", "gpu-1")["token"] not in ("", made["token"])
    assert machine.run("workers", "delete", "gpu-1").code == 0
    assert machine.run("workers", "get", "gpu-1").code == ExitCode.NOT_FOUND


def test_a_jobs_life_while_it_waits(machine: Machine) -> None:
    config = machine.folder / "demo.json"
    config.write_text(json.dumps(DEMO))
    assert machine.run("configs", "import", str(config)).code == 0
    assert machine.data("configs", "get", "demo")["settings"] == DEMO["settings"]
    submitted = machine.data("jobs", "submit", "demo", "--target", "worker", "--name", "mine")
    job = submitted["job_id"]
    assert submitted["status"] == "queued"
    assert machine.data("jobs", "get", job[:-3])["name"] == "mine"
    assert machine.data("jobs", "explain", job)["code"] in ("NO_WORKERS", "TRAINER_MISSING")
    assert machine.data("jobs", "list", "--status", "queued", "--status", "blocked")["items"][0]["id"] == job
    assert machine.run("jobs", "set-priority", job, "high").code == 0
    assert machine.data("jobs", "get", job)["priority"] == 10
    assert machine.run("jobs", "wait", job, "--timeout", "0.5").code == ExitCode.TIMEOUT
    refused = machine.run("jobs", "submit", "demo", "--gpus", "64", "--no-wait")
    assert refused.code == ExitCode.CANNOT_PLACE
    assert machine.run("jobs", "cancel", job).code == 0
    assert machine.run("jobs", "wait", job, "--for", "terminal").code == 0
    assert machine.run("jobs", "wait", job).code == ExitCode.JOB_FAILED
    again = machine.data("jobs", "retry", job)
    assert again["retry_of"] == job
    assert machine.run("jobs", "cancel", again["id"]).code == 0
    assert machine.run("jobs", "retry", again["id"]).code == 0


def test_the_same_key_submits_once(machine: Machine) -> None:
    config = machine.folder / "once.json"
    config.write_text(json.dumps(DEMO))
    words = ("jobs", "submit", str(config), "--target", "worker", "--idempotency-key", "once")
    assert machine.data(*words)["job_id"] == machine.data(*words)["job_id"]
    assert machine.run(*words, "--gpus", "1").code == ExitCode.CONFLICT


def test_tokens_and_what_they_may_do(machine: Machine) -> None:
    made = machine.data("tokens", "create", "ci", "--permission", "jobs.read", "--expires", "1d")
    limited = {"SIMPLETUNER_API_TOKEN": made["token"]}
    assert machine.run("jobs", "list", **limited).code == 0
    refused = machine.run("workers", "list", **limited)
    assert refused.code == ExitCode.AUTH
    assert "admin.workers" in refused.err
    assert "lacks admin.workers" in machine.run("status", **limited).out
    assert machine.run("tokens", "revoke", "ci").code == 0
    assert machine.run("jobs", "list", **limited).code == ExitCode.AUTH


def test_the_audit_has_it_all_and_is_whole(machine: Machine) -> None:
    machine.data("workers", "create", "audited")
    entries = machine.data("audit", "list", "--event-type", "worker.created", "--since", "1h")["items"]
    assert entries[0]["details"]["name"] == "audited"
    assert machine.data("audit", "verify")["valid"] is True


def test_the_doctor_finds_the_way(machine: Machine) -> None:
    done = machine.run("doctor", "server")
    assert "✓ token: accepted" in done.out
    assert "✓ database:" in done.out
    assert done.code == 0, done.out


def test_tls_is_found_pinned_and_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "--ssl")
    try:
        said = machine.started_info()
        assert machine.data("whoami")["name"] == "admin"
        token = (tmp_path / "data" / "admin_token").read_text()
        elsewhere = {
            "SIMPLETUNER_HOME": str(tmp_path / "other"),
            "XDG_CONFIG_HOME": str(tmp_path / "other-xdg"),
        }
        unknown = machine.run("whoami", "--url", said["url"], **elsewhere)
        assert unknown.code == ExitCode.TLS
        assert "SSL certificate verify failed" in unknown.err
        wrong = machine.run("login", said["url"], "--ssl-fingerprint", "ab" * 32, given=token, **elsewhere)
        assert wrong.code == ExitCode.TLS
        pinned = ("login", said["url"], "--ssl-fingerprint", said["fingerprint"])
        assert machine.run(*pinned, given=token, **elsewhere).code == 0
        assert machine.run("whoami", **elsewhere).code == 0
    finally:
        machine.stop()


@pytest.mark.parametrize(
    ("words", "listing"),
    [
        (("pools", "get", "none"), "simpletuner pools list"),
        (("machines", "get", "m_none"), "simpletuner machines list"),
        (("tokens", "revoke", "none"), "simpletuner tokens list"),
        (("jobs", "artifacts", "j_none"), "simpletuner jobs list"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_what_is_not_there_is_looked_for_in_the_list_of_its_kind(
    machine: Machine, words: tuple[str, ...], listing: str
) -> None:
    done = machine.run(*words)
    assert done.code == ExitCode.NOT_FOUND
    assert re.findall(r"simpletuner \w+ list", done.err) == [listing]
