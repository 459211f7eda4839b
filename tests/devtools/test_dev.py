import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True, check=False)


def test_a_bare_call_lists_every_command_that_there_is() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    dispatch = script.rpartition("case $command in")[2]
    commands = set(re.findall(r"^    ([a-z]+)\)", dispatch, flags=re.MULTILINE))
    bare = dev()
    assert bare.returncode == 0
    assert set(re.findall(r"^  ([a-z]+) ", bare.stdout, flags=re.MULTILINE)) == commands


def test_an_unknown_command_says_what_why_and_next() -> None:
    unknown = dev("dance")
    assert unknown.returncode == 1
    assert "There is no command 'dance'." in unknown.stderr
    assert "why:" in unknown.stderr
    assert "next:" in unknown.stderr


def test_the_locks_pin_with_hashes_and_name_no_host() -> None:
    for lock in ("requirements.lock", "requirements-bench.lock"):
        text = (ROOT / lock).read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9][^ \n]*==", text, flags=re.MULTILINE)
        assert len(pins) > 40
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text


FAKE_PYTHON = """#!/bin/sh
case "$*" in
    *"print(sys.executable)"*) echo "$0" ;;
    *"-m venv"*) for folder; do :; done; rm -rf "$folder"/*; exit 1 ;;
esac
"""
"""Answers as a Python does that is looked for, and empties a folder as `venv --clear` does; then it fails."""


class Checkout:
    """A checkout with an environment of its own, both made of small fakes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in ("dev", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, root / name)
        self.python = root / "python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def make(self, environment: str, at: Path | None = None) -> None:
        """What `python -m venv` leaves, as if it had been called for this path."""
        folder = self.root / environment
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(self.python)
        (folder / "bin" / "activate").write_text(f"VIRTUAL_ENV={at or folder}\n")
        (folder / "precious").write_text("in use")

    def files(self) -> set[Path]:
        return set(self.root.rglob("*"))

    def dev(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHON": str(self.python)}
        environ.pop("DEV_VENV", None)
        return subprocess.run(
            [self.root / "dev", *arguments], capture_output=True, text=True, check=False, env=environ
        )


@pytest.mark.parametrize(
    ("command", "linked"),
    [
        ("setup", ".venv"),
        ("setup", ".dev"),
        ("setup", ".dev/tools"),
        ("lock", ".dev"),
        ("lock", ".dev/tools"),
    ],
)
def test_an_environment_behind_a_link_is_not_emptied(tmp_path: Path, linked: str, command: str) -> None:
    other, mine = Checkout(tmp_path / "other"), Checkout(tmp_path / "mine")
    for environment in (".venv", ".dev/tools"):
        other.make(environment)
    (mine.root / linked).parent.mkdir(exist_ok=True)
    (mine.root / linked).symlink_to(other.root / linked)
    before = other.files(), mine.files()
    said = mine.dev(command)
    assert (other.files(), mine.files()) == before
    assert said.returncode == 1
    assert f"{mine.root / linked} is a symbolic link, and nothing was changed." in said.stderr
    assert f"({other.root / linked})" in said.stderr
    assert f"rm '{mine.root / linked}'" in said.stderr


def test_a_path_that_ends_as_this_one_is_another(tmp_path: Path) -> None:
    mine = Checkout(tmp_path / "mine")
    mine.make(".dev/tools")
    mine.make(".venv", at=Path("/elsewhere") / (mine.root / ".venv").relative_to("/"))
    assert mine.dev("setup").returncode == 1
    assert not (mine.root / ".venv" / "precious").exists()


@pytest.mark.parametrize("holds", ["nothing", "tools made here"])
def test_a_link_to_a_place_of_its_own_is_followed(tmp_path: Path, holds: str) -> None:
    """As to a larger disk."""
    mine = Checkout(tmp_path / "mine")
    (tmp_path / "disk").mkdir()
    (mine.root / ".dev").symlink_to(tmp_path / "disk")
    if holds == "tools made here":
        mine.make(".dev/tools")
        (mine.root / ".dev/tools/bin/python").unlink()  # as after an upgrade of Python
    said = mine.dev("setup")
    assert "symbolic link" not in said.stderr
    assert not (tmp_path / "disk" / "tools" / "precious").exists()
