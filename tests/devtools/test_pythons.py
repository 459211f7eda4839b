"""Stand-ins are real programs: an interpreter is a script that answers with its version, `./dev` one that notes its call."""

from pathlib import Path

import pytest

from devtools.pythons import find_all, main


def interpreter(path: Path, version: str) -> Path:
    return program(path, f"echo {version}")


def program(path: Path, line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tmp_path}/bin:{tmp_path}/sbin", "HOME": f"{tmp_path}/home"}


def test_they_are_found_on_the_path_and_with_pyenv_and_uv(tmp_path: Path) -> None:
    on_path = interpreter(tmp_path / "bin" / "python3.11", "3.11")
    of_pyenv = interpreter(tmp_path / "home/.pyenv/versions/3.12.1/bin/python3.12", "3.12")
    of_uv = interpreter(tmp_path / "home/.local/share/uv/python/cpython-3.13.5-linux/bin/python3.13", "3.13")
    expected = {"3.11": on_path, "3.12": of_pyenv, "3.13": of_uv}
    assert find_all(environment(tmp_path)) == expected


def test_a_shim_that_does_not_run_and_one_of_another_version_are_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python3.12", "exit 127")
    interpreter(tmp_path / "bin" / "python3.13", "3.9")
    good = interpreter(tmp_path / "sbin" / "python3.12", "3.12")
    assert find_all(environment(tmp_path)) == {"3.12": good}


def test_each_one_runs_the_tests_in_an_environment_of_its_own_and_the_missing_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for version in ("3.11", "3.13"):
        interpreter(tmp_path / "bin" / f"python{version}", version)
    program(tmp_path / "dev", 'echo "ran $PYTHON in $DEV_VENV: $*"')
    assert main(["-k", "drain"], environment(tmp_path), tmp_path) == 0
    printed = capfd.readouterr().out
    for version in ("3.11", "3.13"):
        where = f"{tmp_path}/.dev/pythons/{version}"
        assert f"ran {tmp_path}/bin/python{version} in {where}: test -k drain" in printed
        assert f"Python {version}  passed" in printed
    for version in ("3.12", "3.14"):
        assert f"Python {version}: MISSING" in printed
        assert f"Python {version}  MISSING  not tested" in printed


def test_one_failure_is_a_failure_and_the_others_run_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for version in ("3.11", "3.12", "3.13"):
        interpreter(tmp_path / "bin" / f"python{version}", version)
    program(tmp_path / "dev", "case $PYTHON in *3.12) exit 1 ;; esac")
    assert main([], environment(tmp_path), tmp_path) == 1
    printed = capfd.readouterr().out
    assert "Python 3.11  passed" in printed
    assert "Python 3.12  FAILED" in printed
    assert "Python 3.13  passed" in printed


def test_a_single_python_is_not_taken_for_all_of_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    interpreter(tmp_path / "bin" / "python3.11", "3.11")
    program(tmp_path / "dev", "echo ran")
    assert main([], environment(tmp_path), tmp_path) == 1
    printed = capfd.readouterr()
    assert "ran" not in printed.out.splitlines()
    assert "not run on all Pythons" in printed.err
    assert "next:" in printed.err
