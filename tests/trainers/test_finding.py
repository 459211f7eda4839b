"""Which Python has the trainer."""

import subprocess
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.cli.doctor import checks_machine
from simpletuner_fleet.cli.doctor.findings import FindingMark
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.worker_errors import TrainerPythonMissing
from simpletuner_fleet.trainers.finding import checked_python, find_trainer_python
from simpletuner_fleet.trainers.installed import describe, trainers_for, version_label


def python_with(folder: Path, *packages: str) -> Path:
    """A program that is this Python with packages of its own."""
    library = folder / "library"
    for package in packages:
        (library / package).mkdir(parents=True)
        (library / package / "__init__.py").touch()
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={library} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def test_a_python_that_is_none_is_refused_with_what_to_do(tmp_path: Path) -> None:
    environment = tmp_path / ".venv"
    python = python_with(environment)
    with pytest.raises(TrainerPythonMissing, match="there is no file /nonexistent/python"):
        checked_python("/nonexistent/python")
    with pytest.raises(TrainerPythonMissing) as folder:
        checked_python(str(environment))
    assert folder.value.next == f"Name the program in it: --trainer-python {python}"
    (tmp_path / "text").touch()
    with pytest.raises(TrainerPythonMissing, match="not executable"):
        checked_python(str(tmp_path / "text"))
    assert checked_python(str(python)) == str(python)


def test_the_usual_places_are_looked_at_and_only_one_that_has_the_trainer_is_taken(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    python_with(folder / ".venv")
    environment = {"HOME": str(home), "PATH": "/usr/bin"}
    search = find_trainer_python(environment, sys.executable, folder)
    assert search.python is None
    looked_at = {one.python: one.missing for one in search.looked_at}
    assert looked_at[str(folder / ".venv" / "bin" / "python")] == ("simpletuner", "accelerate")
    checkout = python_with(home / "SimpleTuner" / ".venv", "simpletuner", "accelerate")
    assert find_trainer_python(environment, sys.executable, folder).python == str(checkout)
    active = python_with(tmp_path / "active", "simpletuner", "accelerate")
    environment["VIRTUAL_ENV"] = str(tmp_path / "active")
    assert find_trainer_python(environment, sys.executable, folder).python == str(active)


@pytest.mark.parametrize("tool", ["uv/tools/simpletuner", "pipx/venvs/simpletuner"])
def test_a_tool_of_uv_or_pipx_is_found(tmp_path: Path, tool: str) -> None:
    python = python_with(tmp_path / ".local" / "share" / tool, "simpletuner", "accelerate")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    assert find_trainer_python(environment, sys.executable, tmp_path / "empty").python == str(python)


def test_what_is_found_is_described_and_told_as_a_label(tmp_path: Path) -> None:
    python = python_with(tmp_path, "simpletuner", "accelerate")
    info = tmp_path / "library" / "simpletuner-3.1.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: simpletuner\nVersion: 3.1.6\n")
    registry = trainers_for(str(python), {"PATH": "/usr/bin"})
    assert version_label(registry) == {"trainer": "3.1.6"}
    first, *missing = describe(registry)
    assert first == f"SimpleTuner 3.1.6 ({python})"
    assert len(missing) == 3


def test_a_python_without_the_trainer_is_said_to_have_none(tmp_path: Path) -> None:
    python = python_with(tmp_path)
    registry = trainers_for(str(python), {"PATH": "/usr/bin"})
    assert version_label(registry) == {}
    first, how = describe(registry)
    assert first == f"SimpleTuner is not installed in {python}"
    assert "pip install 'simpletuner[cuda]'" in how


def test_where_it_is_nowhere_the_places_are_named_with_what_each_lacks(tmp_path: Path) -> None:
    half = python_with(tmp_path / "SimpleTuner" / ".venv", "simpletuner")
    broken = tmp_path / "simpletuner" / "venv" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    registry = trainers_for(None, {"HOME": str(tmp_path), "PATH": "/usr/bin"})
    first, places, how = describe(registry)
    assert first == "SimpleTuner was not found"
    assert f"{half} (no accelerate)" in places
    assert f"{broken} (it does not run)" in places
    assert "--trainer-python" in how


def test_a_worker_does_not_start_with_a_python_that_is_none(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "simpletuner_fleet.cli.main",
        "worker",
        "--orchestrator-url",
        "http://127.0.0.1:1",
    ]
    token = tokens.make(tokens.WORKER, bytes(32))
    options = [
        "--worker-token",
        token,
        "--trainer-python",
        "/nonexistent/python",
        "--work-dir",
        str(tmp_path),
    ]
    started = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=60, check=False)
    assert started.returncode != 0
    assert "--trainer-python: there is no file /nonexistent/python" in started.stderr


def test_doctor_tells_what_a_worker_would_find(tmp_path: Path) -> None:
    (missing,) = checks_machine.trainer("/nonexistent/python", {})
    assert missing.mark is FindingMark.BAD
    (without,) = checks_machine.trainer(str(python_with(tmp_path / "a")), {"PATH": "/usr/bin"})
    assert without.mark is FindingMark.DOUBT
    python = python_with(tmp_path / "b", "simpletuner", "accelerate")
    (seen,) = checks_machine.trainer(str(python), {"PATH": "/usr/bin"})
    assert seen.mark is FindingMark.GOOD
    assert str(python) in seen.what
