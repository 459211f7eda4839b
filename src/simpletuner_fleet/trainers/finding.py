"""Finds the Python that the trainer is installed for, where nobody named one, and checks the one that was named."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.core.worker_errors import TrainerPythonMissing
from simpletuner_fleet.trainers.contract import Answers
from simpletuner_fleet.trainers.packages import missing_packages

TRAINER_PACKAGES = ("simpletuner", "accelerate")
ENVIRONMENT_FOLDERS = (".venv", "venv")


def checked_python(named: str) -> str:
    """Returns the path as it can be run; raises TrainerPythonMissing where there is no Python."""
    path = Path(named).expanduser()
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = f"Name the program in it: --trainer-python {inside}" if inside.exists() else ""
        raise TrainerPythonMissing(f"--trainer-python {named} is a folder, not a Python.", next_step=hint)
    if not path.is_file():
        raise TrainerPythonMissing(
            f"--trainer-python: there is no file {named}.",
            next_step="Give the Python of the trainer's environment, for example ~/simpletuner/.venv/bin/python.",
        )
    if not os.access(path, os.X_OK):
        raise TrainerPythonMissing(
            f"--trainer-python: {named} is not executable by this user.", next_step=f"chmod +x {named}"
        )
    return os.path.abspath(path)


class LookedAt(NamedTuple):
    """Names a Python that has no trainer, and what it lacks; None where it cannot be run at all."""

    python: str
    missing: tuple[str, ...] | None


class TrainerSearch(NamedTuple):
    python: str | None
    """The one that has it."""
    looked_at: tuple[LookedAt, ...]
    """Those that were passed over."""


def find_trainer_python(
    environment: Mapping[str, str], own: str, folder: Path, answers: Answers | None = None
) -> TrainerSearch:
    """Finds the first of the usual places whose Python has the trainer."""
    answers = {} if answers is None else answers
    looked_at: list[LookedAt] = []
    for python in dict.fromkeys(usual_places(environment, own, folder)):
        if not os.access(python, os.X_OK):
            continue
        missing = missing_packages(python, environment, answers, *TRAINER_PACKAGES)
        if missing == ():
            return TrainerSearch(python, tuple(looked_at))
        looked_at.append(LookedAt(python, missing))
    return TrainerSearch(None, tuple(looked_at))


def usual_places(environment: Mapping[str, str], own: str, folder: Path) -> Iterator[str]:
    """Yields the Pythons of this program's own environment and of the active one, then those of usual folders.

    These are the working folder's, those of a checkout at home, and of tools of uv and pipx.
    """
    yield own
    if active := environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX"):
        yield f"{active}/bin/python"
    home = Path(environment.get("HOME") or "/nonexistent")
    checkouts = (folder, folder / "SimpleTuner", home / "SimpleTuner", home / "simpletuner")
    for place in (*checkouts, Path("/opt/simpletuner"), Path("/workspace/SimpleTuner")):
        yield from (str(place / name / "bin" / "python") for name in ENVIRONMENT_FOLDERS)
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield str(data / "uv" / "tools" / "simpletuner" / "bin" / "python")
    yield str(data / "pipx" / "venvs" / "simpletuner" / "bin" / "python")
    path = environment.get("PATH")
    for command in ("simpletuner", "python", "python3"):
        if program := shutil.which(command, path=path):
            yield (
                str(Path(os.path.realpath(program)).parent / "python")
                if command == "simpletuner"
                else program
            )
