"""systemd units: what stands in them, what does not, and what is left when they are removed."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from simpletuner_fleet.cli.programs.service_unit import quoted
from simpletuner_fleet.core.people import tokens
from tests.cli.conftest import Run

TOKEN = tokens.make(tokens.WORKER, bytes(range(32)))
WORKER = ("worker", "--orchestrator-url", "https://10.0.0.5:8001", "--name", "gpu-1", "--persistent")


def test_a_worker_is_installed_with_its_token_beside_the_unit(run: Run, tmp_path: Path) -> None:
    result = run("service", "install", *WORKER, "--worker-token", TOKEN, "--root", str(tmp_path))
    assert result.code == 0, result.err
    unit = (tmp_path / "etc/systemd/system/simpletuner-worker.service").read_text()
    assert "worker --orchestrator-url https://10.0.0.5:8001 --name gpu-1 --persistent" in unit
    assert '--worker-token-file "${CREDENTIALS_DIRECTORY}/worker-token"' in unit
    assert "LoadCredential=worker-token:/etc/simpletuner/worker-token\n" in unit
    assert "RestartPreventExitStatus=2 4 5 10\n" in unit
    assert TOKEN not in unit + result.out + result.err
    kept = tmp_path / "etc/simpletuner/worker-token"
    assert kept.read_text().strip() == TOKEN
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_worker_has_a_user_of_its_own_and_may_write_where_it_was_told(run: Run, tmp_path: Path) -> None:
    grants = ("--job-path", "/data:ro", "--job-path", "/models:rw", "--work-dir", "/scratch")
    result = run("service", "install", *WORKER, *grants, "--worker-token", TOKEN, "--root", str(tmp_path))
    assert result.code == 0, result.err
    unit = (tmp_path / "etc/systemd/system/simpletuner-worker.service").read_text()
    assert "User=simpletuner-worker\n" in unit
    assert "--job-path /data:ro --job-path /models:rw" in unit
    for line in (
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "ProtectHome=read-only",
    ):
        assert f"{line}\n" in unit
    written = [line.removeprefix("ReadWritePaths=") for line in unit.splitlines() if "ReadWritePaths" in line]
    assert written == ["/scratch", "/models"]
    users = (tmp_path / "etc/sysusers.d/simpletuner-worker.conf").read_text()
    assert users.startswith("u simpletuner-worker - ")


def test_root_keeps_the_rights_to_give_each_job_a_user(run: Run) -> None:
    result = run("service", "print", *WORKER, "--worker-token", TOKEN, "--run-as", "root")
    assert "CapabilityBoundingSet" not in result.out
    assert "NoNewPrivileges" not in result.out


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own reader of units")
def test_systemd_understands_the_unit(run: Run, tmp_path: Path) -> None:
    run("service", "install", *WORKER, "--worker-token", TOKEN, "--root", str(tmp_path))
    file = tmp_path / "etc/systemd/system/simpletuner-worker.service"
    words = ["systemd-analyze", "verify", "--man=no", str(file)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    # Before 254 systemd leaves that line out and says so: the worker then has no limits for its jobs.
    wrong = [line for line in said.splitlines() if "Unknown key 'DelegateSubgroup'" not in line]
    assert "simpletuner-worker.service" not in "\n".join(wrong), said


def test_what_was_removed_leaves_no_token_behind(run: Run, tmp_path: Path) -> None:
    run("service", "install", *WORKER, "--worker-token", TOKEN, "--root", str(tmp_path))
    assert run("service", "uninstall", "worker", "--root", str(tmp_path)).code == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    again = run("service", "uninstall", "worker", "--root", str(tmp_path))
    assert again.code == 3
    assert "simpletuner-worker.service is not installed" in again.err


def test_printing_a_unit_changes_nothing_and_stops_later_than_its_trainers(run: Run) -> None:
    result = run("service", "print", *WORKER, "--worker-token", TOKEN, "--shutdown-grace", "2m")
    assert result.code == 0
    assert "TimeoutStopSec=135\n" in result.out
    assert "KillMode=process\n" in result.out


def test_a_server_runs_as_who_was_named(run: Run) -> None:
    result = run("service", "print", "server", "--host", "0.0.0.0", "--ssl", "--run-as", "fleet")
    assert "simpletuner server --host 0.0.0.0 --ssl" in result.out
    assert "User=fleet\n" in result.out
    assert "LoadCredential" not in result.out


def test_a_secret_does_not_go_into_a_unit(run: Run) -> None:
    result = run("service", "print", "server", "--database-url", "postgresql://fleet:geheim@db/fleet")
    assert result.code == 2
    assert "geheim" not in result.out + result.err


def test_a_token_with_a_typo_is_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    result = run(
        "service", "install", *WORKER, "--worker-token", TOKEN[:-1] + "!", "--root", str(tmp_path / "image")
    )
    assert result.code == 4
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("plain-1", "plain-1"),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "hi"\\', '"say \\"hi\\"\\\\"'),
        ("", '""'),
        ("a;b", '"a;b"'),
    ],
)
def test_systemd_reads_every_word_as_it_was_given(word: str, shown: str) -> None:
    assert quoted(word) == shown
